"""Help: every key of the screen it was asked on, and the verbs of the command line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.actions import VERBS
from console.tui.keys import EVERYWHERE, HELP, KEYS, Key, ScreenName
from console.tui.screens.dialog import Dialog
from console.tui.tones import KEY, PLAIN, QUIET, STRONG
from console.tui.view import View
from console.tui.widgets.pane import Pane

_KEY_WIDTH, _TITLE_WIDTH = 9, 14


class HelpScreen(Dialog[None]):
    """One page, scrolled with the arrows, left with escape or `?`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q", "leave", "Leave", show=False)]

    def __init__(self, which: ScreenName, view: View) -> None:
        super().__init__()
        self._which: ScreenName = which
        self._view_then = view

    def compose(self) -> ComposeResult:
        """The page."""
        with Vertical(id="help", classes="dialog"):
            yield Static(Content.styled(f"Help: {self._which}", STRONG), markup=False, classes="dialog-title")
            with VerticalScroll(id="help-page"):
                yield Pane(lambda _view, width, _height: help_page(self._which, width))
            yield Static(Content.styled("escape leaves", QUIET), markup=False)

    def on_mount(self) -> None:
        """The page does not change."""
        self.query_one(Pane).show(self._view_then)


def help_page(which: ScreenName, width: int) -> list[Content]:
    """Keys of the screen, those that work everywhere, then the verbs of the command line."""
    return [
        *_keys(which.capitalize(), KEYS[which], width),
        Content(""),
        *_keys("Everywhere", (HELP, *EVERYWHERE), width),
        Content(""),
        *_verbs(width),
    ]


def _keys(title: str, keys: Sequence[Key], width: int) -> list[Content]:
    lines = [Content.styled(title, f"bold {PLAIN}")]
    for key in keys:
        head = Content.assemble((f" {key.label:<{_KEY_WIDTH}}", KEY), (f"{key.title:<{_TITLE_WIDTH}}", PLAIN))
        lines += _hanging(head, key.help, width)
    return lines


def _verbs(width: int) -> list[Content]:
    lines = [Content.styled("On the command line", f"bold {PLAIN}")]
    for verb in VERBS.values():
        head = Content.styled(f" ddtree {verb.name}".ljust(_KEY_WIDTH + _TITLE_WIDTH + 1), PLAIN)
        lines += _hanging(head, verb.title, width)
    return lines


def _hanging(head: Content, text: str, width: int) -> list[Content]:
    """`head`, then `text` wrapped beside it."""
    room = max(20, width - head.cell_length)
    first, *others = textwrap.wrap(text, room) or [""]
    indent = " " * head.cell_length
    return [Content.assemble(head, (first, QUIET)), *(Content.styled(f"{indent}{line}", QUIET) for line in others)]
