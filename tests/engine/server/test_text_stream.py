"""Stop strings and hold-back, wherever rounds fall."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text_stream import TextStream
from engine.tokenizer import Tokenizer, load_tokenizer

ALPHABET = st.sampled_from([*"abk le,", "é", "😀"])


@pytest.fixture(scope="module")
def tokenizer(speaking_model: Path) -> Tokenizer:
    loaded = load_tokenizer(speaking_model)
    assert loaded is not None
    return loaded


def rounds(token_ids: list[int], sizes: list[int]) -> list[list[int]]:
    """`token_ids` cut into rounds of the given sizes, the rest one by one."""
    cut, rest = [], token_ids
    for size in sizes:
        cut.append(rest[:size])
        rest = rest[size:]
    return [part for part in [*cut, *([token] for token in rest)] if part]


def told(stream: TextStream, parts: list[list[int]]) -> tuple[list[str], int, str | None]:
    texts, used = [], 0
    for part in parts:
        piece = stream.push(part)
        texts.append(piece.text)
        used += piece.tokens
        if piece.stop is not None:
            return texts, used, piece.stop
    return [*texts, stream.rest()], used, None


def test_a_stop_inside_a_round_cuts_text_and_tokens_there(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abc,def")
    texts, used, stop = told(TextStream(tokenizer, (",",)), [ids])
    assert (texts, used, stop) == (["abc"], 4, ",")


def test_a_stop_over_two_rounds_hands_out_no_part_of_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abxyzcd")
    texts, used, stop = told(TextStream(tokenizer, ("xyz",)), rounds(ids, [3, 1, 3]))
    assert (texts, used, stop) == (["ab", "", ""], 5, "xyz")


def test_text_that_only_began_like_a_stop_comes_out_as_soon_as_that_is_known(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("axyb")
    texts, _, stop = told(TextStream(tokenizer, ("xyz",)), rounds(ids, []))
    assert (texts, stop) == (["a", "", "", "xyb", ""], None)


def test_held_text_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    texts, used, stop = told(TextStream(tokenizer, ("xyz",)), rounds(tokenizer.encode("axy"), []))
    assert ("".join(texts), used, stop) == ("axy", 3, None)


def test_of_two_stops_the_earlier_one_ends_the_text(tokenizer: Tokenizer) -> None:
    texts, _, stop = told(TextStream(tokenizer, ("cd", "bcd")), [tokenizer.encode("abcd")])
    assert (texts, stop) == (["a"], "bcd")


def test_stops_in_the_first_min_tokens_do_not_count(tokenizer: Tokenizer) -> None:
    texts, used, stop = told(TextStream(tokenizer, (",",), min_tokens=3), [tokenizer.encode("a,b,c")])
    assert ("".join(texts), used, stop) == ("a,b", 4, ",")


def test_without_a_tokenizer_tokens_are_used_and_text_is_empty() -> None:
    piece = TextStream(None).push([1, 2, 3])
    assert (piece.text, piece.tokens, piece.stop) == ("", 3, None)


@given(
    text=st.text(ALPHABET, max_size=30),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(1, 7), max_size=12),
)
def test_rounds_change_nothing(speaking_model: Path, text: str, stops: list[str], sizes: list[int]) -> None:
    loaded = load_tokenizer(speaking_model)
    assert loaded is not None
    ids = loaded.encode(text)
    one_by_one, used_singly, stop_singly = told(TextStream(loaded, tuple(stops)), rounds(ids, []))
    in_rounds, used, stop = told(TextStream(loaded, tuple(stops)), rounds(ids, sizes))
    assert ("".join(in_rounds), used, stop) == ("".join(one_by_one), used_singly, stop_singly)
    assert "".join(in_rounds) == up_to_the_first_stop_completed(loaded, ids, stops)


def up_to_the_first_stop_completed(tokenizer: Tokenizer, ids: list[int], stops: list[str]) -> str:
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        starts = [text.find(stop) for stop in stops if stop in text]
        if starts:
            return text[: min(starts)]
    return tokenizer.decode(ids)
