"""The words of a command line are read by the table, and a slip is answered with the nearest thing there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.actions import SESSION, VERBS
from console.command_line import Request, read_command_line
from console.errors import ExitCode, UsageError


def read(line: str, hosts: tuple[str, ...] = ("gpu-01",)) -> Request:
    return read_command_line(line.split(), VERBS, SESSION, hosts.__contains__)


def refused(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(line)
    assert caught.value.exit_code == ExitCode.USAGE
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_settings_repeat_and_keep_their_text() -> None:
    request = read("restart gpu-01 --set page_size=64 --set drafter=a=b --dry-run --json")
    assert request.verb is VERBS["restart"]
    assert request.arguments["host"] == "gpu-01"
    assert request.arguments["set"] == {"page_size": "64", "drafter": "a=b"}
    assert request.arguments["dry-run"] is True
    assert request.session["json"] is True
    assert request.session["read-only"] is False


def test_options_stand_before_or_after_the_verb() -> None:
    assert read("--json status gpu-01 --check") == read("status --check gpu-01 --json")


def test_a_value_may_follow_an_equals_sign() -> None:
    assert read("logs gpu-01 --grep=a=b --since=10m").arguments["grep"] == "a=b"


def test_two_dashes_end_the_options() -> None:
    assert read("parse -- --strange-name").arguments["file"] == (Path("--strange-name"),)


def test_a_lone_dash_is_standard_input() -> None:
    assert read("parse --engine sglang -").arguments == {"engine": "sglang", "file": (Path("-"),)}


@pytest.mark.parametrize(
    ("text", "count"), [("16GiB", 16 << 30), ("80GB", 80_000_000_000), ("80e9", 80_000_000_000), ("1.5k", 1500)]
)
def test_bytes_take_units(text: str, count: int) -> None:
    assert read(f"capacity DIR --context-length 10 --memory {text}").arguments["memory"] == count


def test_without_a_verb_the_console_is_wanted_on_a_host() -> None:
    assert read("gpu-01").host == "gpu-01"
    assert read("ops@10.0.0.7:2222").host == "ops@10.0.0.7:2222"
    assert read("").host is None


def test_a_known_host_is_a_host_even_if_it_resembles_a_verb() -> None:
    assert read("statu", hosts=("statu",)).host == "statu"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("statsu", "did you mean status?"),
        ("statsu demo", "did you mean status?"),
        ("frobnicate demo", "no verb 'frobnicate'"),
        ("gpu-01 status", "write the verb first: ddtree status gpu-01"),
        ("restart gpu-01 --sett page_size=1", "no option --sett; did you mean --set?"),
        ("status gpu-01 --jsn", "did you mean --json?"),
        ("status", "needs HOST"),
        ("status gpu-01 gpu-02", "takes no 'gpu-02'"),
        ("restart gpu-01 --set page_size", "'page_size' is no NAME=VALUE"),
        ("restart gpu-01 --set a=1 --set a=2", "a is given twice"),
        ("logs gpu-01 --since", "--since: needs a value"),
        ("logs gpu-01 --since 1h --since 2h", "--since: is given twice"),
        ("status gpu-01 --check=yes", "--check: takes no value"),
        ("parse --engine sglan x", "did you mean sglang?"),
        ("capacity DIR --context-length many", "'many' is not a whole number"),
        ("capacity DIR --context-length 1 --memory lots", "write 80GB"),
        ("capacity DIR", "needs --context-length N"),
        ("status -x gpu-01", "no option -x"),
    ],
)
def test_a_slip_is_answered_in_one_line(line: str, words: str) -> None:
    assert words in refused(line)


def test_help_is_asked_for_without_the_arguments_it_explains() -> None:
    assert read("restart --help").verb is VERBS["restart"]
    assert read("restart -h").help
    assert read("--help").verb is None


def test_every_verb_can_be_typed_as_its_usage_says() -> None:
    for verb in VERBS.values():
        assert verb.usage.startswith(f"ddtree {verb.name}")
        names = [argument.name for argument in (*verb.arguments, *SESSION)]
        assert len(names) == len(set(names)), verb.name
        assert verb.title and verb.help.endswith((".", "run.")), verb.name


def test_keys_of_verbs_are_not_given_twice() -> None:
    keys = [verb.key for verb in VERBS.values() if verb.key]
    assert len(keys) == len(set(keys))


def test_an_option_of_two_values_takes_both_and_leaves_the_host_alone() -> None:
    assert read("history --diff 0 12 gpu-01").arguments == {"host": "gpu-01", "diff": (0, 12)}
    assert read("history gpu-01 --diff=3 1").arguments["diff"] == (3, 1)
    assert "diff" not in {k for k, v in read("history gpu-01").arguments.items() if v is not None}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("history gpu-01 --diff", "needs 2 values"),
        ("history gpu-01 --diff 3", "needs 2 values"),
        ("history gpu-01 --diff 3 --json", "'--json' is not a whole number"),
        ("history gpu-01 --diff -1 2", "'-1' is not a whole number"),
        ("history gpu-01 --diff 1 2 --diff 2 3", "is given twice"),
        ("history gpu-01 --diff 1 2 3", "takes no '3'"),
    ],
)
def test_a_diff_of_other_than_two_generations_is_refused(line: str, why: str) -> None:
    assert why in refused(line)
