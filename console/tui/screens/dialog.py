"""Dialogs: a frame over the screen that is left with escape, and one at a time."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer | None]):
    """A question or a page over the screen; escape answers None."""

    VERTICAL_BREAKPOINTS = [(0, "-low"), (24, "-middle")]  # noqa: RUF012 as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave", show=False)]

    def action_leave(self) -> None:
        """Leave without an answer."""
        self.dismiss(None)
