"""`p`, then a letter: run a playbook from any screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.widgets import Static

from console.experiments.playbook import Playbook
from console.tui.glyphs import Glyphs
from console.tui.screens.dialog import Dialog
from console.tui.tones import QUIET, STRONG
from console.tui.widgets.catalogue import draw_item


class PickScreen(Dialog[Playbook]):
    """Answers with the playbook whose letter was pressed; a broken one cannot be picked."""

    def __init__(self, playbooks: Sequence[Playbook], glyphs: Glyphs) -> None:
        super().__init__()
        self._playbooks = playbooks
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """The catalogue."""
        lines = [line for one in self._playbooks for line in draw_item(one, 80, self._glyphs, here=False)]
        with Vertical(id="pick", classes="dialog"):
            yield Static(
                Content.styled("Run a playbook: press its letter", STRONG), markup=False, classes="dialog-title"
            )
            with VerticalScroll(id="pick-page"):
                yield Static(Content("\n").join(lines), markup=False)
            yield Static(Content.styled("escape leaves", QUIET), markup=False)

    def on_key(self, event: Key) -> None:
        """A letter picks."""
        for playbook in self._playbooks:
            if playbook.valid and event.character == playbook.key:
                event.stop()
                self.dismiss(playbook)
