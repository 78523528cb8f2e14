"""How the verbs say things to people: aligned columns, durations, sizes, and colour only beside a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09}


@dataclass(frozen=True)
class Style:
    """Paints words where the output is a terminal that wants colour; elsewhere gives them back as they are."""

    colour: bool = False

    def good(self, text: str) -> str:
        """Green."""
        return self._painted("32", text)

    def doubtful(self, text: str) -> str:
        """Yellow."""
        return self._painted("33", text)

    def bad(self, text: str) -> str:
        """Red."""
        return self._painted("31", text)

    def faint(self, text: str) -> str:
        """Dimmed."""
        return self._painted("2", text)

    def strong(self, text: str) -> str:
        """Bold."""
        return self._painted("1", text)

    def _painted(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


def columns(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Rows as aligned columns, two blanks between them; numbers to the right. The last column is never padded."""
    table = [list(head)] * bool(head) + [list(row) for row in rows]
    if not table:
        return ""
    widths = [max(len(row[i]) for row in table if i < len(row)) for i in range(max(map(len, table)))]
    numeric = [all(_is_number(row[i]) for row in table[bool(head) :] if i < len(row)) for i in range(len(widths))]
    lines = []
    for row in table:
        cells = [cell.rjust(widths[i]) if numeric[i] else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return text == "" or text.replace(",", "").replace(".", "", 1).replace("-", "", 1).isdecimal()


def lasted(seconds: float) -> str:
    """`4 s`, `3m20s`, `2h05m`, `3d04h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def gigabytes(count: int | None) -> str:
    """Bytes as `88.1 GB`; `?` when unknown."""
    return "?" if count is None else f"{count / 1e9:.1f} GB"


def printable(text: str) -> str:
    """Text from the box with its control codes shown, so that none of them reaches the terminal."""
    return text.translate(_CONTROL)
