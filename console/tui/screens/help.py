"""Help: every key of the screen it was asked on, and the verbs of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.tui.keys import EVERYWHERE, HELP, KEYS, Key, ScreenName
from console.tui.screens.dialog import Dialog
from console.tui.tones import KEY, PLAIN, QUIET, STRONG

_KEY_WIDTH, _TITLE_WIDTH = 9, 14


class HelpScreen(Dialog[None]):
    """One page, scrolled with the arrows, left with escape or `?`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q", "leave", "Leave", show=False)]

    def __init__(self, which: ScreenName) -> None:
        super().__init__()
        self._which = which

    def compose(self) -> ComposeResult:
        """The page."""
        with Vertical(id="help", classes="dialog"):
            yield Static(Content.styled(f"Help: {self._which}", STRONG), markup=False, classes="dialog-title")
            with VerticalScroll(id="help-page"):
                yield Static(help_page(self._which), markup=False)
            yield Static(Content.styled("escape leaves", QUIET), markup=False)


def help_page(which: ScreenName) -> Content:
    """Keys of the screen, then those that work everywhere."""
    lines = [
        *_section(which.capitalize(), KEYS[which]),
        Content(""),
        *_section("Everywhere", (HELP, *EVERYWHERE)),
    ]
    return Content("\n").join(lines)


def _section(title: str, keys: Sequence[Key]) -> list[Content]:
    lines = [Content.styled(title, f"bold {PLAIN}")]
    for key in keys:
        lines.append(
            Content.assemble(
                (f" {key.label:<{_KEY_WIDTH}}", KEY), (f"{key.title:<{_TITLE_WIDTH}}", PLAIN), (key.help, QUIET)
            )
        )
    return lines
