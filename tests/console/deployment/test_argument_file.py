"""An argument list in an EnvironmentFile: what systemd would make of it, and edits that touch nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.deployment.argument_file import ArgumentFile, parse_argument_file, split_words
from console.errors import UsageError

FILE = """\
# which GPUs
CUDA_VISIBLE_DEVICES=0,1

SGLANG_ARGS="--model-path /models/qwen3-8b --context-length 32768 --enable-metrics"
; the old way
HF_HOME='/data/hf home'
"""


def test_the_arguments_and_the_rest_are_read() -> None:
    found = parse_argument_file(FILE, "SGLANG_ARGS")
    assert found.words == ("--model-path", "/models/qwen3-8b", "--context-length", "32768", "--enable-metrics")
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "0,1", "HF_HOME": "/data/hf home"}


def test_an_edit_touches_its_own_line_alone() -> None:
    found = parse_argument_file(FILE, "SGLANG_ARGS")
    edited = found.with_words((*found.words, "--page-size", "1"))
    changed = [(old, new) for old, new in zip(FILE.splitlines(), edited.splitlines(), strict=True) if old != new]
    assert changed == [(FILE.splitlines()[3], FILE.splitlines()[3][:-1] + ' --page-size 1"')]


def test_json_becomes_one_word_and_comes_back() -> None:
    words = ("--speculative-config", '{"method":"dflash","num_speculative_tokens":15}', "--empty", "")
    text = ArgumentFile(("A=x",), 0, "A", ()).with_words(words)
    assert text == (
        'A="--speculative-config \'{\\"method\\":\\"dflash\\",\\"num_speculative_tokens\\":15}\' --empty \'\'"\n'
    )
    assert parse_argument_file(text, "A").words == words


@given(st.lists(st.text(st.characters(min_codepoint=32, exclude_characters="'\\", exclude_categories=("C", "Z")))))
def test_whatever_may_be_written_is_read_back(words: list[str]) -> None:
    text = ArgumentFile(("A=x", "# end"), 0, "A", ()).with_words(tuple(words))
    assert parse_argument_file(text, "A").words == tuple(words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A=1\n", "ARGS: is not in the unit's environment file; add a line"),
        ("ARGS=a\nARGS=b\n", "ARGS, line 2: is given twice"),
        ("export ARGS=a\n", "line 1: is no NAME=value"),
        ("ARGS=a \\\n b\n", "line 1: is no NAME=value on one line"),
        ('ARGS="a "b\n', "line 1: mixes quotes"),
        ("ARGS=a'b\n", "line 1: mixes quotes"),
        ('ARGS="--x \'y"\n', 'line 1, "\'y": has a quote without its end'),
    ],
)
def test_what_systemds_versions_read_differently_is_refused_by_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_argument_file(text, "ARGS")
    assert str(caught.value).startswith(says)


def test_a_word_that_would_not_survive_is_refused() -> None:
    for word in ("it's", "a\\b", "two\nlines"):
        with pytest.raises(UsageError, match="cannot be handed over"):
            ArgumentFile(("A=x",), 0, "A", ()).with_words((word,))


def test_words_are_split_as_the_shell_would_without_its_escapes() -> None:
    assert split_words("  a  'b c' d=\"e f\"'g'  ") == ("a", "b c", "d=e fg")
