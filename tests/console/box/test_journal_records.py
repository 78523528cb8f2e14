"""Journal records and the command that prints them: pure functions, each shape that journald can give."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.box.journal import (
    OUTPUT_FIELDS,
    SUPPRESSED_ID,
    JournalSource,
    journal_argv,
    parse_record,
)
from console.box.seam import Seam
from console.box.values import Record

USER = JournalSource("user", "e.service", "ident")
SYSTEM = JournalSource("system", "e.service", "ident")
SUPERVISED = JournalSource("supervisor", "e.service", "ident", ("python3", "/a/supervise.py", "--folder", "/f"))

FIELDS = f"--output-fields={','.join(OUTPUT_FIELDS)}"
BASE = ["journalctl", "--quiet", "--output=json", "--all"]
DROPPED = ["+", f"MESSAGE_ID={SUPPRESSED_ID}", "_UID=0"]
USER_MATCH = [
    *("_UID=7", "SYSLOG_IDENTIFIER=ident", "+", "_UID=7", "_SYSTEMD_USER_UNIT=e.service"),
    *("+", "_UID=7", "USER_UNIT=e.service", *DROPPED),
]
SYSTEM_MATCH = [
    *("_SYSTEMD_UNIT=e.service", "+", "UNIT=e.service", "_PID=1"),
    *("+", "OBJECT_SYSTEMD_UNIT=e.service", "_UID=0", *DROPPED),
]


@pytest.mark.parametrize(
    ("source", "version", "options", "expected"),
    [
        (USER, 252, {"lines": 50}, [*BASE, FIELDS, "--lines=50", *USER_MATCH]),
        (USER, 257, {"since": "@5"}, [*BASE, FIELDS, "--since=@5", *USER_MATCH]),
        (
            USER,
            257,
            {"cursor": "c", "follow": True},
            [*BASE, FIELDS, "--follow", "--no-tail", "--boot=all", "--cursor=c", *USER_MATCH],
        ),
        (SYSTEM, 252, {"follow": True}, [*BASE, FIELDS, "--follow", "--no-tail", "--boot=all", *SYSTEM_MATCH]),
        (SYSTEM, 241, {"follow": True}, [*BASE, FIELDS, "--follow", "--no-tail", *SYSTEM_MATCH]),
        (SYSTEM, 235, {"follow": True}, [*BASE, "--follow", "--no-tail", *SYSTEM_MATCH]),
        # a limit on lines with a cursor gives the second-newest record on 252
        (SYSTEM, 252, {"cursor": "c", "lines": 9, "since": "@1"}, [*BASE, FIELDS, "--cursor=c", *SYSTEM_MATCH]),
        (SUPERVISED, None, {"follow": True}, [*SUPERVISED.supervise, "logs", "--follow"]),
        (
            SUPERVISED,
            None,
            {"follow": True, "cursor": "s=a;i=1"},
            [*SUPERVISED.supervise, "logs", "--follow", "--cursor=s=a;i=1"],
        ),
        (SUPERVISED, 252, {"since": "@1.5", "lines": 3}, [*SUPERVISED.supervise, "logs", "--since=@1.5", "--lines=3"]),
    ],
)
def test_each_systemd_version_gets_the_arguments_it_needs(
    source: JournalSource, version: int | None, options: dict[str, Any], expected: list[str]
) -> None:
    assert journal_argv(source, systemd_version=version, uid=7, **options) == expected


def raw(**fields: Any) -> bytes:
    return json.dumps({"__CURSOR": "c1", "__REALTIME_TIMESTAMP": "1700000000000001", **fields}).encode()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("plain", "plain"),
        ([255, 27, 91, 51, 49, 109], "\ufffd\x1b[31m"),
        ([], ""),
        (None, "(a message too long for journalctl to print)"),
        (["one", "two"], "one\ntwo"),
        ([[104, 105], "there"], "hi\nthere"),
    ],
)
def test_a_message_may_be_text_bytes_nothing_or_several(message: Any, expected: str) -> None:
    record = parse_record(raw(MESSAGE=message))
    assert record is not None and record.message == expected


def test_the_fields_of_a_record_are_typed() -> None:
    record = parse_record(
        raw(
            MESSAGE="m",
            PRIORITY="3",
            SYSLOG_IDENTIFIER="ddtree-engine",
            _PID="77",
            _BOOT_ID="b",
            __MONOTONIC_TIMESTAMP="12",
            _SYSTEMD_INVOCATION_ID="mine",
            _LINE_BREAK="line-max",
        )
    )
    assert record == Record(
        cursor="c1",
        realtime_us=1700000000000001,
        message="m",
        priority=3,
        identifier="ddtree-engine",
        pid=77,
        boot_id="b",
        monotonic_us=12,
        invocation="mine",
        fields={"_LINE_BREAK": "line-max"},
    )


def test_a_record_of_the_manager_about_the_unit_bears_the_units_invocation() -> None:
    record = parse_record(raw(USER_INVOCATION_ID="the unit's", _SYSTEMD_INVOCATION_ID="the manager's"))
    assert record is not None and record.invocation == "the unit's"


def test_odd_priorities_and_numbers_do_not_break_a_record() -> None:
    record = parse_record(raw(MESSAGE="m", PRIORITY="99", _PID=["1", "2"], SYSLOG_IDENTIFIER=[120, 121]))
    assert record is not None
    assert (record.priority, record.pid, record.identifier) == (6, None, "xy")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.just(b"[1]") | st.just(b'{"__CURSOR": 1}'))
def test_no_line_whatsoever_raises(line: bytes) -> None:
    assert parse_record(line) is None or b"__CURSOR" in line


def test_a_record_without_cursor_or_time_is_none() -> None:
    assert parse_record(b'{"MESSAGE": "x"}') is None
    assert parse_record(b'{"__CURSOR": "c", "__REALTIME_TIMESTAMP": "soon"}') is None


# The seam between two stretches


def record(number: int, boot: str = "b") -> Record:
    return Record(cursor=f"c{number}", realtime_us=number * 1_000_000, message=str(number), boot_id=boot)


@given(
    total=st.integers(1, 40),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8),
)
def test_however_often_a_stretch_breaks_off_every_record_comes_once_and_in_order(
    total: int, cuts: list[tuple[int, int]]
) -> None:
    journal = [record(number) for number in range(total)]
    seam, given_out = Seam(), list[Record]()
    for length, batch in [*cuts, (total, total)]:
        seam.reopen()
        start = next((i for i, one in enumerate(journal) if one.cursor == seam.cursor), 0)
        stretch = journal[start : start + length]
        for at in range(0, len(stretch), batch or 1):
            given_out += seam.join(stretch[at : at + (batch or 1)])
    seam.reopen()
    start = next((i for i, one in enumerate(journal) if one.cursor == seam.cursor), 0)
    given_out += seam.join(journal[start:])
    assert given_out == journal


@given(kept_from=st.integers(0, 12))
def test_vacuumed_records_leave_exactly_one_gap_if_the_last_one_given_out_is_gone(kept_from: int) -> None:
    seam = Seam()
    seam.join([record(number) for number in range(5)])
    seam.reopen()
    kept = [record(number) for number in range(max(4, kept_from), 15)]
    joined = seam.join(kept)
    gaps = [one for one in joined if one.marker == "gap"]
    assert len(gaps) == (0 if kept_from <= 4 else 1)
    assert [one.message for one in joined if one.marker is None] == [str(n) for n in range(max(5, kept_from), 15)]
    if gaps:
        assert joined[0] is gaps[0] and gaps[0].cursor == "c4"
        assert "1970-01-01 00:00:04 UTC" in gaps[0].message


def test_a_cursor_nobody_knows_gives_way_to_time_without_doubling() -> None:
    seam = Seam()
    seam.join([record(1), record(2)])
    seam.forget_cursor()
    assert (seam.cursor, seam.since) == (None, "@2.000000")
    seam.reopen()
    joined = seam.join([record(1), record(2), record(3)])
    assert [(one.marker, one.message) for one in joined][1:] == [(None, "3")] and joined[0].marker == "gap"
    assert (seam.cursor, seam.since) == ("c3", None)


def test_a_new_boot_is_marked_once_wherever_it_falls() -> None:
    seam = Seam()
    first = seam.join([record(1, "a"), record(2, "b")])
    seam.reopen()
    second = seam.join([record(2, "b"), record(3, "c")])
    assert [one.marker for one in (*first, *second)] == [None, "reboot", None, "reboot", None]
    assert first[1].cursor == "c1"
