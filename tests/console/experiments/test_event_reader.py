"""Events come out of a growing file exactly once, however it is cut and however often it is read again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from console.experiments.events import EventReader, read_events
from console.experiments.follow import Ending
from console.experiments.result import outcome_of


def line(seq: int, kind: str = "log", text: str = "") -> bytes:
    return json.dumps({"seq": seq, "type": kind, "msg": text}, ensure_ascii=False).encode() + b"\n"


@given(st.lists(st.text(max_size=20), max_size=20), st.data())
def test_any_cuts_and_any_number_of_fresh_starts_give_every_event_once(texts: list[str], data: st.DataObject) -> None:
    whole = b"".join(line(seq, text=text) for seq, text in enumerate(texts))
    reader, seen = EventReader(), []
    kept = b""
    while reader.offset < len(whole):
        read_from = reader.offset + reader.waiting_bytes
        size = data.draw(st.integers(1, len(whole) - read_from))
        lines, events = reader.feed(whole[read_from : read_from + size])
        kept += lines
        seen += events
        if data.draw(st.booleans()):
            reader.restart()
    assert [event["seq"] for event in seen] == list(range(len(texts)))
    assert [event["msg"] for event in seen] == texts
    assert kept == whole
    assert reader.gaps == []


def test_a_line_without_its_newline_is_no_event_yet() -> None:
    events, reader = read_events(line(0) + line(1)[:-1])
    assert [event["seq"] for event in events] == [0]
    assert reader.offset == len(line(0))


def test_doubles_are_dropped_and_gaps_are_counted() -> None:
    events, reader = read_events(line(0) + line(1) + line(1) + line(0) + line(4) + line(5))
    assert [event["seq"] for event in events] == [0, 1, 4, 5]
    assert reader.gaps == [2, 3]
    assert reader.offset == len(line(0)) * 6


def test_what_is_no_event_becomes_a_raw_log_line() -> None:
    events, _ = read_events(b"plain words\n" + b'{"no": "number"}\n' + b"\xff\xfe\n" + b"\n" + b"[1]\n" + line(0))
    assert [(event["type"], event.get("raw")) for event in events] == [("log", True)] * 4 + [("log", None)]
    assert events[0]["msg"] == "plain words"
    assert "\ufffd" in events[2]["msg"]


def test_an_end_event_is_what_makes_a_run_whole() -> None:
    ended = Ending("ended", {"code": 0, "signal": None, "reason": None})
    for data, status in (
        (line(0, "hello") + b'{"seq": 1, "type": "end", "status": "done"}\n', "done"),
        (line(0, "hello") + line(1), "truncated"),
        (line(0, "hello") + b'{"seq": 2, "type": "end", "status": "done"}\n', "incomplete"),
        (b"", "truncated"),
    ):
        events, reader = read_events(data)
        assert outcome_of(events, reader, ended).status == status
    events, reader = read_events(line(0, "hello"))
    assert outcome_of(events, reader, Ending("lost")).status == "lost"
    killed = Ending("ended", {"code": None, "signal": "SIGKILL", "reason": None})
    assert (outcome_of(events, reader, killed).status, outcome_of(events, reader, killed).exit) == ("killed", 137)
    late = Ending("ended", {"code": 124, "signal": None, "reason": "deadline"})
    assert (outcome_of(events, reader, late).status, outcome_of(events, reader, late).exit) == ("deadline", 124)
