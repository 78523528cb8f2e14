"""One journal record as one line of the screen; what the box wrote is shown, never sent to the terminal."""

from __future__ import annotations

from datetime import datetime

from textual.content import Content

from console.box.values import Record
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import BAD, PLAIN, QUIET, WARN

LEVELS = (("all", 7), ("info", 6), ("notice", 5), ("warning", 4), ("error", 3))
"""Names of the levels that the log may be narrowed to, with the greatest syslog priority each lets through."""

_LETTERS = "FFFEWNID"  # by syslog priority: 0-2 are fatal
LONGEST_MESSAGE = 4000
"""Characters of a message that are drawn, filtered and searched: a runaway line must not stop the screen."""


def log_line(record: Record, glyphs: Glyphs) -> Content:
    """`12:04:59.120 I decode seq=812 …`, a marker of the follower as a rule of its own."""
    if record.marker is not None:
        rule = glyphs.rule * 3
        return Content.styled(f"{rule} {record.marker}: {shown(record.message, glyphs)} {rule}", f"bold {WARN}")
    text = Content.styled(shown(record.message[:LONGEST_MESSAGE], glyphs), _message_tone(record.priority))
    letter = _LETTERS[min(7, max(0, record.priority))]
    return Content.assemble((_time(record.realtime_us), QUIET), (f" {letter} ", _letter_tone(record.priority)), text)


def _time(realtime_us: int) -> str:
    return datetime.fromtimestamp(realtime_us / 1e6).strftime("%H:%M:%S.%f")[:-3]


def _letter_tone(priority: int) -> str:
    return BAD if priority <= 3 else WARN if priority == 4 else QUIET


def _message_tone(priority: int) -> str:
    return BAD if priority <= 3 else WARN if priority == 4 else PLAIN if priority <= 6 else QUIET
