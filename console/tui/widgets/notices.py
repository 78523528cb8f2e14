"""Alarms as sentences, each with the key that leads on, and the last lines of the journal."""

from __future__ import annotations

from textual.content import Content

from console.tui.glyphs import shown
from console.tui.tones import BAD, KEY, PLAIN, QUIET, WARN, label, row
from console.tui.view import View
from console.tui.widgets.log_line import log_line


def draw_alarms(view: View, width: int, height: int) -> list[Content]:
    """One sentence an alarm; no row at all when there is none."""
    alarms = view.snapshot.alarms if view.snapshot else ()
    lines = [
        Content.assemble(
            (f" {view.glyphs.warn} ALARM  ", f"bold {WARN}"),
            (shown(alarm.sentence, view.glyphs), f"bold {PLAIN}"),
            *([("  press ", QUIET), (alarm.key, KEY)] if alarm.key else []),
        )
        for alarm in alarms
    ]
    if view.link is not None and view.link.name not in ("LIVE", "CONNECTING") and view.link.reason:
        reason = shown(view.link.reason, view.glyphs)
        lines.insert(0, Content.assemble((" LINK  ", BAD), (reason, PLAIN), ("  press ", QUIET), ("R", KEY)))
    return lines


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
