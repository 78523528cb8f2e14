"""Fault: one thing wrong with a script file, at a place; and the source with its lines, as every check reads it."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, order=True)
class Fault:
    """One thing wrong, where, and what would mend it. `line` and `column` count from 1, in characters; 0: the whole file."""

    line: int
    column: int
    source: str  # the whole source line, without its newline
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, col {self.column}: {self.message}" if self.line else self.message

    @property
    def caret(self) -> str:
        """A line that puts `^` under the place when printed below `source` in a terminal (tabs and wide letters kept)."""
        blanks = ("\t" if letter == "\t" else " " * _cells(letter) for letter in self.source[: max(self.column, 1) - 1])
        return "".join(blanks) + "^"

    def to_json(self) -> dict[str, object]:
        """`{"line", "column", "source", "message"}`."""
        return {"line": self.line, "column": self.column, "source": self.source, "message": self.message}


def _cells(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


@dataclass(frozen=True)
class Source:
    """A script's text, split at line feeds alone, as Python's own reader counts lines once CR has been refused."""

    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Source lines without their line feeds; line 1 is `lines[0]`."""
        return self.text.split("\n")

    def line(self, number: int) -> str:
        """Line `number` (from 1); empty outside the file."""
        return self.lines[number - 1] if 1 <= number <= len(self.lines) else ""

    def fault(self, line: int, column: int, message: str) -> Fault:
        """A fault at a place, held inside the file (Python reports an end of file one line too far)."""
        line = min(max(line, 1), len(self.lines))
        return Fault(line, max(column, 1), self.line(line), message)

    def fault_at(self, index: int, message: str) -> Fault:
        """A fault at a character offset of the text."""
        before = self.text[:index]
        return self.fault(before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1, message)

    def column_of_bytes(self, line: int, byte_offset: int) -> int:
        """The 1-based character column of a 0-based UTF-8 byte offset, which is what `ast` nodes carry."""
        encoded = self.line(line).encode("utf-8")[: max(byte_offset, 0)]
        return len(encoded.decode("utf-8", errors="ignore")) + 1
