"""Events: what happened since the console was opened. Opening this page is reading them."""

from __future__ import annotations

import textwrap
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
from console.tui.view import View
from console.tui.widgets.pane import Pane
from console.tui.words import clock

_TONES: dict[Weight, str] = {"info": QUIET, "success": GOOD, "warning": WARN, "failure": BAD}


class EventsScreen(Dialog[None]):
    """The newest on top."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("e,q", "leave", "Leave", show=False)]

    def __init__(self, happenings: Happenings, view: View) -> None:
        super().__init__()
        self._happenings = happenings
        self._view_then = view

    def on_mount(self) -> None:
        """What has happened does not change."""
        self.query_one(Pane).show(self._view_then)

    def compose(self) -> ComposeResult:
        """The page."""
        with Vertical(id="events", classes="dialog"):
            yield Static(Content.styled("Events", STRONG), markup=False, classes="dialog-title")
            with VerticalScroll(id="events-page"):
                yield Pane(lambda view, width, _height: events_page(self._happenings, width, view.glyphs))
            yield Static(Content.styled("escape leaves", QUIET), markup=False)


def events_page(happenings: Happenings, width: int, glyphs: Glyphs) -> list[Content]:
    """An event each: time, weight in a word, what happened; unread ones are marked."""
    lines = [line for item in reversed(happenings.items) for line in _lines(item, width, glyphs)]
    return lines or [Content.styled("Nothing has happened yet.", QUIET)]


def _lines(item: Happening, width: int, glyphs: Glyphs) -> list[Content]:
    unread = not item.read and item.weight in ("warning", "failure")
    head = Content.assemble(
        (f"{glyphs.dot if unread else ' '} ", WARN),
        (f"{clock(item.wall_s)}  ", QUIET),
        (f"{item.weight:<8} ", _TONES[item.weight]),
    )
    first, *rest = textwrap.wrap(shown(item.text, glyphs), max(20, width - head.cell_length)) or [""]
    indent = " " * head.cell_length
    return [Content.assemble(head, (first, PLAIN)), *(Content.styled(indent + words, PLAIN) for words in rest)]
