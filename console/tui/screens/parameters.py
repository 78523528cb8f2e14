"""The form before a run: every parameter with its help; enter on Run starts it with the values shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Static

from console.errors import UsageError
from console.experiments.playbook import Playbook
from console.tui.glyphs import Glyphs
from console.tui.params_form import fault_in, params_form, values_of
from console.tui.screens.dialog import Dialog
from console.tui.tones import BAD, PLAIN, QUIET, STRONG
from console.tui.widgets.catalogue import estimate_words
from console.tui.widgets.form_view import FormView


class ParametersScreen(Dialog[dict[str, Any]]):
    """Answers with the values of a run, or None. The Run button has the keyboard: enter, enter takes the defaults."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "edit", "Edit", show=False),
        Binding("u", "undo", "Undo", show=False),
    ]

    def __init__(self, playbook: Playbook, engine: Mapping[str, int | float], glyphs: Glyphs) -> None:
        super().__init__()
        self._playbook = playbook
        self._engine = engine
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """Title, form, what it will take, buttons."""
        playbook = self._playbook
        with Vertical(id="parameters", classes="dialog"):
            yield Static(Content.styled(f"Run {playbook.title}", STRONG), markup=False, classes="dialog-title")
            yield FormView(params_form(playbook, self._engine), self._fault, self._glyphs, id="parameters-form")
            yield Static(id="parameters-words", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Run", id="parameters-run", compact=True)
                yield Button("Cancel", id="parameters-cancel", compact=True)

    def on_mount(self) -> None:
        """Run has the keyboard."""
        self.query_one("#parameters-run", Button).focus()
        self._say_what_it_takes()

    def action_edit(self) -> None:
        """Type the value under the cursor."""
        self._form.edit()

    def action_undo(self) -> None:
        """The default again."""
        self._form.undo()

    @on(FormView.Changed)
    def _changed(self, event: FormView.Changed) -> None:
        event.stop()
        self._say_what_it_takes()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "parameters-cancel":
            self.dismiss(None)
            return
        try:
            self.dismiss(self._values())
        except UsageError as error:
            self._words.update(Content.styled(error.what, BAD))

    def _say_what_it_takes(self) -> None:
        try:
            took = estimate_words(self._playbook, self._values())
        except UsageError as error:
            self._words.update(Content.styled(error.what, BAD))
            return
        self._words.update(Content.assemble(("takes about ", QUIET), (took, PLAIN)))

    def _values(self) -> dict[str, Any]:
        return values_of(self._playbook, self._form.form.edits, self._engine)

    def _fault(self, name: str, text: str) -> str | None:
        return fault_in(self._playbook, name, text, self._engine)

    @property
    def _form(self) -> FormView:
        return self.query_one("#parameters-form", FormView)

    @property
    def _words(self) -> Static:
        return self.query_one("#parameters-words", Static)
