"""Where a request ends inside a committed block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stopping import keep

EOS = 5
BLOCK = [10, 11, 12, 13]


def keep_block(
    tokens: list[int],
    *,
    produced: int = 1,
    max_tokens: int = 99,
    min_tokens: int = 0,
    ignore: bool = False,
    left: int = 99,
) -> tuple[list[int], str | None]:
    return keep(tokens, produced, max_tokens, min_tokens, {EOS}, ignore, left)


@pytest.mark.parametrize("offset", range(4))
def test_an_end_token_at_any_offset_ends_the_block_and_is_kept(offset: int) -> None:
    tokens = [*BLOCK[:offset], EOS, *BLOCK[offset + 1 :]]
    assert keep_block(tokens) == (tokens[: offset + 1], "stop")


def test_a_block_without_an_end_goes_on() -> None:
    assert keep_block(BLOCK) == (BLOCK, None)


def test_ignore_eos_keeps_the_end_token_as_text() -> None:
    assert keep_block([10, EOS, 12], ignore=True) == ([10, EOS, 12], None)


@pytest.mark.parametrize(("max_tokens", "kept"), [(2, 1), (4, 3), (5, 4)])
def test_max_tokens_cuts_the_block_to_the_token(max_tokens: int, kept: int) -> None:
    assert keep_block(BLOCK, produced=1, max_tokens=max_tokens) == (BLOCK[:kept], "length")


def test_the_context_cuts_the_block_to_the_token() -> None:
    assert keep_block(BLOCK, left=3) == (BLOCK[:3], "length")
    assert keep_block(BLOCK, left=5) == (BLOCK, None)


def test_an_end_token_on_the_last_token_allowed_is_a_stop() -> None:
    assert keep_block([10, EOS], produced=1, max_tokens=3) == ([10, EOS], "stop")
    assert keep_block([10, 11, EOS], produced=1, max_tokens=3) == ([10, 11], "length")


def test_end_tokens_among_the_first_min_tokens_do_not_end() -> None:
    assert keep_block([EOS, 11, EOS, 13], produced=1, min_tokens=3) == ([EOS, 11, EOS], "stop")
    assert keep_block([EOS, 11, 12, 13], produced=1, min_tokens=3) == ([EOS, 11, 12, 13], None)


@given(
    st.lists(st.integers(3, 7), max_size=9),
    st.integers(0, 9),
    st.integers(1, 12),
    st.integers(0, 12),
    st.booleans(),
    st.integers(1, 12),
)
def test_no_limit_is_ever_overrun_and_what_is_kept_is_a_beginning(
    tokens: list[int], produced: int, max_tokens: int, min_tokens: int, ignore: bool, left: int
) -> None:
    kept, reason = keep(tokens, produced, max_tokens, min_tokens, {EOS}, ignore, left)
    assert kept == tokens[: len(kept)]
    assert len(kept) <= max(0, min(max_tokens - produced, left))
    if reason is None:
        assert kept == tokens and len(kept) < min(max_tokens - produced, left)
    if reason == "stop":
        assert kept[-1] == EOS and not ignore and produced + len(kept) > min_tokens
