"""The doctor's findings: each with its verdict in a word, what was seen, and below it what mends it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from console.tui.glyphs import Glyphs, shown
from console.tui.tones import ACCENT, BAD, GOOD, KEY, PLAIN, QUIET, STRONG, WARN, Piece
from console.tui.view import View
from console.tui.words import count_of, duration

if TYPE_CHECKING:
    from console.box.doctor import Check
    from console.tui.session import Examined

_TONES = {"pass": GOOD, "warn": WARN, "fail": BAD}


def rows_of(checks: Sequence[Check]) -> list[Check | str]:
    """The findings under the names of their groups, each group once, in the order in which they were first met."""
    rows: list[Check | str] = []
    for group in dict.fromkeys(check.group for check in checks):
        rows += [group, *(check for check in checks if check.group == group)]
    return rows


def draw_checkup_row(
    row: Check | str, width: int, glyphs: Glyphs, *, names: int, host: str, here: bool = False
) -> list[Content]:
    """A group's name, or a finding: its text beside its name, its mend below. `names` is the width of that column."""
    if isinstance(row, str):
        return [Content.styled(f" {row}", QUIET)]
    mark = {"pass": glyphs.yes, "warn": glyphs.warn, "fail": glyphs.no}[row.verdict]
    head: list[Piece] = [
        (f" {glyphs.pointer if here else ' '} ", KEY),
        (f"{mark:<2} {row.verdict}  ", _TONES[row.verdict]),
        (f"{shown(row.name, glyphs):<{names}}  ", STRONG if here else PLAIN),
    ]
    indent = sum(len(piece[0]) for piece in head)
    room = max(20, width - indent - 1)
    first, *others = textwrap.wrap(shown(row.text, glyphs), room) or [""]
    lines = [Content.assemble(*head, (first, PLAIN if row.verdict != "pass" else QUIET))]
    lines += [Content.styled(" " * indent + line, PLAIN) for line in others]
    if row.mend:
        words = re.sub(r"\bHOST\b", host, row.mend)
        mend, *rest = textwrap.wrap(f"{glyphs.arrow} {shown(words, glyphs)}", room, subsequent_indent="  ")
        itself = ("   f runs it", QUIET) if row.commands and len(mend) + 12 <= room else ("", QUIET)
        lines.append(Content.assemble(" " * indent, (mend, ACCENT), itself))
        lines += [Content.styled(" " * indent + line, ACCENT) for line in rest]
    return lines


def draw_examined(examined: Examined, view: View, width: int, glyphs: Glyphs) -> list[Content]:
    """When it was looked, what came of it, and what a look costs."""
    if examined.trouble is not None:
        return [Content.styled(f" {glyphs.no} {shown(examined.trouble, glyphs)}", BAD)]
    since_s = examined.looking_since_s
    if examined.at_s is None:
        took = "" if since_s is None else f" for {duration(view.now_s - since_s)}"
        return [Content.styled(f" looking at the box{took}; nothing is touched, and torch is slow to load", QUIET)]
    counts = [(verdict, sum(check.verdict == verdict for check in examined.checks)) for verdict in _TONES]
    parts: list[Piece] = [" "]
    for verdict, count in counts:
        parts += [(f"{count} {verdict}", _TONES[verdict] if count else QUIET), "   "]
    mends = sum(len(check.commands) for check in examined.checks)
    if mends:
        parts.append((f"f mends with {count_of(mends, 'command')}   ", PLAIN))
    age = "looking again" if since_s is not None else f"looked {duration(view.now_s - examined.at_s)} ago"
    parts.append((age, QUIET))
    return [Content.assemble(*parts)]
