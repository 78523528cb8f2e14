"""One journal record, whole: its message as written, and its fields."""

from __future__ import annotations

from datetime import datetime

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.box.values import Record
from console.tui.glyphs import Glyphs, shown
from console.tui.screens.dialog import Dialog
from console.tui.tones import PLAIN, QUIET, STRONG

_NAME_WIDTH = 14


class RecordScreen(Dialog[None]):
    """The message wrapped to the dialog's width, the fields below it."""

    def __init__(self, record: Record, glyphs: Glyphs) -> None:
        super().__init__()
        self._record = record
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """The page."""
        with Vertical(id="record", classes="dialog"):
            yield Static(Content.styled("Record", STRONG), markup=False, classes="dialog-title")
            with VerticalScroll(id="record-page"):
                yield Static(record_page(self._record, self._glyphs), markup=False)
            yield Static(Content.styled("escape leaves", QUIET), markup=False)


def record_page(record: Record, glyphs: Glyphs) -> Content:
    """The message line by line with its control characters shown, then what the journal knows of it."""
    message = [Content.styled(shown(line, glyphs), PLAIN) for line in record.message.split("\n")]
    facts = {
        "time": datetime.fromtimestamp(record.realtime_us / 1e6).isoformat(sep=" ", timespec="microseconds"),
        "priority": str(record.priority),
        "identifier": record.identifier,
        "pid": None if record.pid is None else str(record.pid),
        "invocation": record.invocation,
        "boot": record.boot_id,
        "cursor": record.cursor,
        **record.fields,
    }
    lines = [
        Content.assemble((f"{shown(name, glyphs):<{_NAME_WIDTH}} ", QUIET), (shown(value, glyphs), PLAIN))
        for name, value in facts.items()
        if value is not None
    ]
    return Content("\n").join([*message, Content(""), *lines])
