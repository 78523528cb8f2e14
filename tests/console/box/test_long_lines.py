"""Lines that the journal stored in pieces come whole, whatever comes between and wherever a stretch breaks off."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from console.box.long_lines import CUT, LINE_BREAK, LongLines
from console.box.values import Record


def record(number: int, message: str, *, pid: int = 1, cut: bool = False, run: str | None = "r1") -> Record:
    return Record(
        cursor=f"c{number}",
        realtime_us=number,
        message=message,
        pid=pid,
        invocation=run,
        fields={LINE_BREAK: CUT} if cut else {},
    )


def test_a_line_bears_the_time_of_its_beginning_and_the_cursor_of_its_end() -> None:
    lines = LongLines()
    assert lines.join([record(1, "aa", cut=True), record(2, "bb", cut=True)]) == []
    (whole,) = lines.join([record(3, "c")])
    assert (whole.message, whole.realtime_us, whole.cursor, dict(whole.fields)) == ("aabbc", 1, "c3", {})


def test_other_streams_pass_and_do_not_get_mixed_in() -> None:
    lines = LongLines()
    joined = lines.join(
        [record(1, "a", cut=True), record(2, "other", pid=2), record(3, "x", pid=3, cut=True), record(4, "b")]
    )
    assert [one.message for one in joined] == ["other", "ab"]
    assert [one.message for one in lines.rest()] == ["x"]


def test_a_line_whose_end_is_lost_is_given_out_before_the_gap_and_before_the_next_run() -> None:
    lines = LongLines()
    gap = replace(record(2, "lines are missing"), marker="gap")
    assert [one.message for one in lines.join([record(1, "a", cut=True), gap, record(3, "b")])] == [
        "a",
        gap.message,
        "b",
    ]
    later = lines.join(
        [record(4, "c", cut=True), record(5, "manager", pid=9, run=None), record(6, "d", run="r2", pid=7)]
    )
    assert [one.message for one in later] == ["manager", "c", "d"]


def test_a_line_that_never_ends_does_not_fill_the_memory() -> None:
    lines = LongLines(longest_chars=10)
    joined = lines.join([record(number, "12345", cut=True) for number in range(4)])
    assert [one.message for one in joined] == ["123451234512345"]


@given(st.lists(st.tuples(st.integers(1, 3), st.lists(st.sampled_from("xyz"), min_size=1, max_size=4)), max_size=12))
def test_however_lines_are_cut_and_wherever_batches_end_each_comes_once(lines: list[tuple[int, list[str]]]) -> None:
    cut = [
        (pid, text, at < len(parts) - 1, index)
        for index, (pid, parts) in enumerate(lines)
        for at, text in enumerate(parts)
    ]
    records = [record(n, text, pid=pid, cut=more) for n, (pid, text, more, _) in enumerate(cut)]
    for batch in (1, 2, len(records) or 1):
        joiner = LongLines()
        out = [one for at in range(0, len(records), batch) for one in joiner.join(records[at : at + batch])]
        assert joiner.rest() == []
        assert [one.message for one in out] == ["".join(parts) for _, parts in lines]
