"""Bytes of events.jsonl -> events, each exactly once: dense numbers checked, doubles dropped, half a line waited for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EventReader:
    """Reads a growing file piece by piece.

    `offset` counts the bytes of whole lines read so far: reading again from there, after whatever happened in between,
    loses and doubles nothing.
    """

    offset: int = 0
    next_seq: int = 0
    gaps: list[int] = field(default_factory=list)  # numbers that never came
    ended: bool = False  # the writer's own last word has been read
    _rest: bytes = b""

    def feed(self, data: bytes) -> tuple[bytes, list[dict[str, Any]]]:
        """The whole lines that `data` completes, as they are, and their events.

        A line that is no event becomes a raw `log`; doubles are among the lines and not among the events.
        """
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        lines += newline
        self.offset += len(lines)
        events = [self._event(line) for line in lines.split(b"\n")[:-1]]
        return lines, [event for event in events if event is not None]

    def restart(self) -> None:
        """Forget half a line: the file will be read again from `offset`."""
        self._rest = b""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a line whose end has not come."""
        return len(self._rest)

    def _event(self, line: bytes) -> dict[str, Any] | None:
        text = line.decode("utf-8", "replace")
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("seq"), int) or "type" not in event:
            return {"type": "log", "level": "info", "msg": text, "raw": True} if text.strip() else None
        seq = event["seq"]
        if seq < self.next_seq:
            return None
        self.gaps += range(self.next_seq, min(seq, self.next_seq + 1000))
        self.next_seq = seq + 1
        self.ended = self.ended or event["type"] == "end"
        return event


def read_events(data: bytes) -> tuple[list[dict[str, Any]], EventReader]:
    """Every event of a whole file, and the reader that says what was missing."""
    reader = EventReader()
    _, events = reader.feed(data)
    return events, reader
