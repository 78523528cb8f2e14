"""Events: what happened since the console was opened. Opening this page is reading them."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.tui.glyphs import Glyphs, shown
from console.tui.happenings import Happening, Happenings, Weight
from console.tui.screens.dialog import Dialog
from console.tui.tones import BAD, GOOD, PLAIN, QUIET, STRONG, WARN
from console.tui.words import clock

_TONES: dict[Weight, str] = {"info": QUIET, "success": GOOD, "warning": WARN, "failure": BAD}


class EventsScreen(Dialog[None]):
    """The newest on top."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("e,q", "leave", "Leave", show=False)]

    def __init__(self, happenings: Happenings, glyphs: Glyphs) -> None:
        super().__init__()
        self._happenings = happenings
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """The page."""
        with Vertical(id="events", classes="dialog"):
            yield Static(Content.styled("Events", STRONG), markup=False, classes="dialog-title")
            with VerticalScroll(id="events-page"):
                yield Static(events_page(self._happenings, self._glyphs), markup=False)
            yield Static(Content.styled("escape leaves", QUIET), markup=False)


def events_page(happenings: Happenings, glyphs: Glyphs) -> Content:
    """One line an event: time, weight in a word, what happened; unread ones are marked."""
    lines = [_line(item, glyphs) for item in reversed(happenings.items)]
    return Content("\n").join(lines) if lines else Content.styled("Nothing has happened yet.", QUIET)


def _line(item: Happening, glyphs: Glyphs) -> Content:
    unread = not item.read and item.weight in ("warning", "failure")
    return Content.assemble(
        (f"{glyphs.dot if unread else ' '} ", WARN),
        (f"{clock(item.wall_s)}  ", QUIET),
        (f"{item.weight:<8} ", _TONES[item.weight]),
        (shown(item.text, glyphs), PLAIN),
    )
