"""The log as a value that grows: a ring of numbered records, and the numbers of those that a filter lets through.

A record's number never changes, so that a view can hold on to a record while thousands come in below it and old
ones leave above it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from console.box.values import Record
from console.errors import UsageError
from console.tui.widgets.log_line import LONGEST_MESSAGE

KEPT = 50_000
"""Records kept in memory, some 20 MB of them."""


@dataclass(frozen=True)
class LogFilter:
    """Which records are shown: those whose message matches (or, inverse, does not) and that are grave enough.

    Markers that the follower put in pass always: a gap must not be filtered away.
    """

    text: str = ""
    pattern: re.Pattern[str] | None = None
    inverse: bool = False
    least_priority: int = 7

    def lets_through(self, record: Record) -> bool:
        """Whether `record` is shown."""
        if record.marker is not None:
            return True
        if record.priority > self.least_priority:
            return False
        if self.pattern is None:
            return True
        return bool(self.pattern.search(record.message, 0, LONGEST_MESSAGE)) is not self.inverse


def parse_filter(text: str, least_priority: int = 7) -> LogFilter:
    """`decode|prefill` shows what matches, `!decode` what does not, blank shows all; a wrong pattern is a UsageError."""
    inverse = text.startswith("!")
    pattern = text[1:] if inverse else text
    if not pattern:
        return LogFilter(least_priority=least_priority)
    return LogFilter(text, compiled(pattern), inverse, least_priority)


def compiled(pattern: str) -> re.Pattern[str]:
    """A search pattern; small letters match both cases."""
    try:
        return re.compile(pattern, re.IGNORECASE if pattern == pattern.lower() else 0)
    except re.error as error:
        raise UsageError(
            str(error), where=f"pattern {pattern!r}", mend=r"write \ before . * + ? ( ) [ ] to mean itself"
        ) from error


class LogBuffer:
    """The newest `limit` records, numbered from 0 up, under the filter in force."""

    def __init__(self, limit: int = KEPT) -> None:
        self.limit = limit
        self.filter = LogFilter()
        self.received = 0  # records ever; the next one's number
        self._records: list[Record] = []  # the newest, by number from `_base` up
        self._base = 0
        self._numbers: list[int] = []  # numbers let through, rising; those before `_skip` have left the ring
        self._skip = 0

    @property
    def oldest(self) -> int:
        """The number of the oldest record kept."""
        return max(self._base, self.received - self.limit)

    def __len__(self) -> int:
        """How many records the filter lets through."""
        return len(self._numbers) - self._skip

    def extend(self, records: Iterable[Record]) -> None:
        """Take in new records; the oldest leave when the ring is full."""
        for record in records:
            self._records.append(record)
            if self.filter.lets_through(record):
                self._numbers.append(self.received)
            self.received += 1
        self._skip = bisect_left(self._numbers, self.oldest, lo=self._skip)
        if len(self._records) >= 2 * self.limit:  # now and then, so that a record costs the same at any rate
            del self._records[: self.oldest - self._base]
            self._base = self.oldest
        if self._skip >= self.limit:
            del self._numbers[: self._skip]
            self._skip = 0

    def set_filter(self, chosen: LogFilter) -> None:
        """Show what `chosen` lets through from now on, of old and new records."""
        self.filter = chosen
        self._numbers = [number for number, record in self._kept() if chosen.lets_through(record)]
        self._skip = 0

    def record(self, number: int) -> Record:
        """The record of that number; raises IndexError when it has left the ring or has not come."""
        if not self.oldest <= number < self.received:
            raise IndexError(number)
        return self._records[number - self._base]

    def number_at(self, place: int) -> int:
        """The number of the record in that place among those shown, 0 being the oldest."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._numbers[self._skip + place]

    def place_of(self, number: int) -> int:
        """The place of a record, or of the next one shown where itself is filtered out or gone; `len(self)` past the end."""
        return bisect_left(self._numbers, number, lo=self._skip) - self._skip

    def find(self, pattern: re.Pattern[str], start: int, step: int) -> int | None:
        """The place of the next record shown that matches, from place `start` in direction `step`, going round once."""
        count = len(self)
        for distance in range(count):
            place = (start + distance * step) % count
            if pattern.search(self.record(self.number_at(place)).message, 0, LONGEST_MESSAGE):
                return place
        return None

    def shown(self) -> Iterator[Record]:
        """The records the filter lets through, oldest first."""
        return (self.record(number) for number in self._numbers[self._skip :])

    def _kept(self) -> Iterator[tuple[int, Record]]:
        return ((number, self._records[number - self._base]) for number in range(self.oldest, self.received))
