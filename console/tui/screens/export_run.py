"""In which form a run is given away: one letter each."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key
from textual.widgets import Static

from console.tui.glyphs import Glyphs, shown
from console.tui.screens.dialog import Dialog
from console.tui.tones import KEY, PLAIN, QUIET, STRONG

_FORMS = (
    ("m", "md", "Markdown: verdict, levels, parameters, environment"),
    ("h", "html", "HTML: one page with charts, for a browser or a mail"),
    ("c", "csv", "CSV: a line for each request"),
    ("j", "json", "JSON: everything that was kept, events included"),
)


class ExportScreen(Dialog[str]):
    """Answers with the format whose letter was pressed."""

    def __init__(self, folder: Path, glyphs: Glyphs) -> None:
        super().__init__()
        self._folder, self._glyphs = folder, glyphs

    def compose(self) -> ComposeResult:
        """The forms, and where the file will lie."""
        with Vertical(id="export", classes="dialog"):
            yield Static(Content.styled("Export the run: press a letter", STRONG), markup=False, classes="dialog-title")
            for letter, _, words in _FORMS:
                yield Static(Content.assemble((f"{letter}  ", KEY), (words, PLAIN)), markup=False)
            where = f"it is written to {shown(str(self._folder), self._glyphs)}; escape leaves"
            yield Static(Content.styled(where, QUIET), markup=False, id="export-where")

    def on_key(self, event: Key) -> None:
        """A letter picks."""
        for letter, form, _ in _FORMS:
            if event.character == letter:
                event.stop()
                self.dismiss(form)
