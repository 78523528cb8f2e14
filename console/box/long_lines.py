"""LongLines: puts lines together again that the journal stored in pieces (journald cuts at 48 KiB)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from console.box.values import Record

LINE_BREAK = "_LINE_BREAK"
STREAM = "_STREAM_ID"
CUT = "line-max"  # of a piece that is not the line's last
LONGEST_CHARS = 16 * 1024 * 1024


@dataclass
class _Open:
    """A line whose end has not come yet."""

    first: Record
    last: Record
    parts: list[str] = field(default_factory=list)
    chars: int = 0

    def add(self, piece: Record) -> None:
        self.parts.append(piece.message)
        self.chars += len(piece.message)
        self.last = piece

    def whole(self) -> Record:
        fields = {name: value for name, value in self.first.fields.items() if name != LINE_BREAK}
        return replace(self.first, message="".join(self.parts), cursor=self.last.cursor, fields=fields)


class LongLines:
    """Holds the pieces of a line until its end has come, and lets everything else pass.

    A line bears the time of its first piece and the cursor of its last. One whose end is lost (a gap, another run of
    the service) or that grows beyond all reason is given out as far as it came.
    """

    def __init__(self, longest_chars: int = LONGEST_CHARS) -> None:
        self._longest = longest_chars
        self._open: dict[tuple[object, ...], _Open] = {}

    def join(self, records: Iterable[Record]) -> list[Record]:
        """The lines that are whole now, in the order of their ends."""
        out: list[Record] = []
        for record in records:
            if record.marker in ("gap", "reboot"):
                out += self.rest()
            stream = (record.identifier, record.pid, record.invocation, record.fields.get(STREAM))
            out += self._of_other_runs(record)
            cut = record.fields.get(LINE_BREAK) == CUT and record.marker is None
            line = self._open.get(stream)
            if line is None and not cut:
                out.append(record)
                continue
            if line is None:
                line = self._open[stream] = _Open(record, record)
            line.add(record)
            if not cut or line.chars > self._longest:
                out.append(self._open.pop(stream).whole())
        return out

    def rest(self) -> list[Record]:
        """The lines whose end has not come, as far as they came; they are given up."""
        lines = [line.whole() for line in self._open.values()]
        self._open.clear()
        return lines

    def _of_other_runs(self, record: Record) -> list[Record]:
        ended = [
            stream
            for stream, line in self._open.items()
            if record.invocation is not None and line.first.invocation not in (None, record.invocation)
        ]
        return [self._open.pop(stream).whole() for stream in ended]
