"""Seam: joins stretches of a journal, each read from the last record of the one before, into one sequence."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from console.box.values import Record


class Seam:
    """Knows the last record that was given out. A stretch should begin with it; if it does not, records are missing."""

    def __init__(self, cursor: str | None = None) -> None:
        self.cursor = cursor
        """Where the next stretch should begin; None: at the beginning, or by time (`since`)."""
        self._last: Record | None = None
        self._opening = True
        self._by_time = False

    @property
    def since(self) -> str | None:
        """The time to begin the next stretch from when there is no cursor: `@SECONDS` of the last record."""
        return f"@{self._last.realtime_us / 1e6:.6f}" if self._by_time and self._last is not None else None

    def reopen(self) -> None:
        """A new stretch begins."""
        self._opening = True

    def forget_cursor(self) -> None:
        """The journal cannot find the cursor: begin the next stretch by time, with a gap."""
        self.cursor = None
        self._by_time = True

    def join(self, records: Iterable[Record]) -> list[Record]:
        """The records that are new, with a marker where some are missing and where the box was rebooted."""
        joined: list[Record] = []
        for record in records:
            if self._opening and self.given_out(record):
                if not self._by_time:  # a cursor is one record's own; several records may bear one time
                    self._last, self._opening = record, False
                continue
            if self._opening and (self.cursor is not None or self._by_time):
                joined.append(self._marker("gap", record, f"lines are missing here, {self._span(record)}"))
            self._opening = self._by_time = False
            if self._rebooted(record):
                joined.append(self._marker("reboot", record, "the box was rebooted"))
            joined.append(record)
            self._last, self.cursor = record, record.cursor
        return joined

    def given_out(self, record: Record) -> bool:
        """Whether it is the last record that was given out (or, by time, not later than that one)."""
        if self._by_time:
            return self._last is not None and record.realtime_us <= self._last.realtime_us
        return record.cursor == self.cursor

    def _rebooted(self, record: Record) -> bool:
        last = self._last.boot_id if self._last is not None else None
        return last is not None and record.boot_id is not None and record.boot_id != last

    def _span(self, record: Record) -> str:
        until = _clock(record.realtime_us)
        return f"{_clock(self._last.realtime_us)} to {until}" if self._last is not None else f"until {until}"

    def _marker(self, kind: Literal["gap", "reboot"], record: Record, message: str) -> Record:
        """A record of the console's own, with the cursor to go on from that the record before it had."""
        return Record(
            cursor=self.cursor or (self._last.cursor if self._last is not None else ""),
            realtime_us=record.realtime_us,
            message=message,
            priority=4,
            boot_id=record.boot_id,
            marker=kind,
        )


def _clock(realtime_us: int) -> str:
    return datetime.fromtimestamp(realtime_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
