"""`p`, then a letter: run a playbook from any screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.widgets import Static

from console.experiments.playbook import Playbook
from console.tui.screens.dialog import Dialog
from console.tui.tones import QUIET, STRONG
from console.tui.view import View
from console.tui.widgets.catalogue import draw_item, title_width
from console.tui.widgets.pane import Pane


class PickScreen(Dialog[Playbook]):
    """Answers with the playbook whose letter was pressed; a broken one cannot be picked."""

    def __init__(self, playbooks: Sequence[Playbook], view: View) -> None:
        super().__init__()
        self._playbooks = playbooks
        self._view_then = view

    def compose(self) -> ComposeResult:
        """The catalogue."""
        with Vertical(id="pick", classes="dialog"):
            yield Static(
                Content.styled("Run a playbook: press its letter", STRONG), markup=False, classes="dialog-title"
            )
            with VerticalScroll(id="pick-page"):
                yield Pane(self._draw, id="pick-list")
            yield Static(Content.styled("escape leaves", QUIET), markup=False)

    def on_mount(self) -> None:
        """The list does not change."""
        self.query_one(Pane).show(self._view_then)

    def _draw(self, view: View, width: int, _height: int) -> list[Content]:
        titles = title_width(self._playbooks)
        if not self._playbooks:
            return [Content.styled("No playbook was found.", QUIET)]
        return [line for one in self._playbooks for line in draw_item(one, width, view.glyphs, titles=titles)]

    def on_key(self, event: Key) -> None:
        """A letter picks."""
        for playbook in self._playbooks:
            if playbook.valid and event.character == playbook.key:
                event.stop()
                self.dismiss(playbook)
