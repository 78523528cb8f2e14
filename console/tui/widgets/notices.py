"""Alarms as sentences, each with the key that leads on, and the last lines of the journal."""

from __future__ import annotations

from textual.content import Content

from console.tui.glyphs import Glyphs, shown
from console.tui.tones import BAD, KEY, LABEL_WIDTH, QUIET, STRONG, WARN, fitted, label, row
from console.tui.view import View
from console.tui.widgets.log_line import log_line


def draw_alarms(view: View, width: int, height: int) -> list[Content]:
    """One sentence an alarm; no row at all when there is none."""
    alarms = view.snapshot.alarms if view.snapshot else ()
    mark = f"{view.glyphs.warn} ALARM"
    lines = [_sentence(mark, alarm.sentence, alarm.key, WARN, width, view.glyphs) for alarm in alarms]
    if view.link is not None and view.link.name not in ("LIVE", "CONNECTING") and view.link.reason:
        lines.insert(0, _sentence("LINK", view.link.reason, "R", BAD, width, view.glyphs))
    return lines


def _sentence(mark: str, text: str, key: str | None, tone: str, width: int, glyphs: Glyphs) -> Content:
    """A sentence cut so that its key stays on screen."""
    head = Content.styled(f" {mark:<{LABEL_WIDTH - 1}}", f"bold {tone}")
    tail = Content.assemble(("  press ", QUIET), (key, KEY)) if key else Content("")
    room = width - head.cell_length - tail.cell_length
    return Content.assemble(head, fitted(Content.styled(shown(text, glyphs), STRONG), room, glyphs), tail)


def draw_journal(view: View, width: int, height: int) -> list[Content]:
    """As many of the newest records as fit, newest below."""
    records = view.snapshot.records if view.snapshot else ()
    if not records:
        return [row("journal", ("nothing yet: key 3 opens Log and says why", QUIET))]
    shown_records = records[-max(1, height) :]
    return [
        Content.assemble(label("journal" if index == 0 else ""), log_line(record, view.glyphs))
        for index, record in enumerate(shown_records)
    ]
