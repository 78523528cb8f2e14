"""The confirm dialog: what will happen, on which host, what it stops. Cancel stands first and has the keyboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input, Static

from console.tui.glyphs import Glyphs, shown
from console.tui.screens.dialog import Dialog
from console.tui.tones import PLAIN, QUIET, STRONG, WARN


@dataclass(frozen=True)
class Question:
    """What is asked. `typed` is a word that must be typed before yes is possible, for production hosts."""

    title: str
    host: str
    tag: str | None
    consequences: Sequence[str]
    yes: str
    typed: str | None = None


class ConfirmScreen(Dialog[bool]):
    """Answers True only when yes was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "app.focus_previous", "Previous", show=False),
        Binding("right,down", "app.focus_next", "Next", show=False),
    ]

    def __init__(self, question: Question, glyphs: Glyphs) -> None:
        super().__init__()
        self._question = question
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """Title, host, consequences, then Cancel and yes."""
        question = self._question
        with Vertical(id="confirm", classes="dialog"):
            yield Static(Content.styled(question.title, STRONG), markup=False, classes="dialog-title")
            yield Static(self._text(), markup=False, id="confirm-text")
            if question.typed is not None:
                yield Input(placeholder=f"type {question.typed} to allow it", id="confirm-typed", compact=True)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="confirm-no", compact=True)
                yield Button(question.yes, id="confirm-yes", compact=True, disabled=question.typed is not None)

    def on_mount(self) -> None:
        """The harmless answer has the keyboard."""
        self.query_one("#confirm-no", Button).focus()

    @on(Input.Changed, "#confirm-typed")
    def _allow(self, event: Input.Changed) -> None:
        self.query_one("#confirm-yes", Button).disabled = event.value.strip() != self._question.typed

    @on(Button.Pressed)
    def _answer(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "confirm-yes")

    def _text(self) -> Content:
        question, glyphs = self._question, self._glyphs
        tag = f" [{question.tag}]" if question.tag else ""
        lines = [Content.assemble(("on ", QUIET), (shown(question.host + tag, glyphs), f"bold {WARN}"))]
        lines += [Content.styled(f"{glyphs.middle_dot} {shown(line, glyphs)}", PLAIN) for line in question.consequences]
        return Content("\n").join(lines)
