"""A form on screen: rows under a cursor, the help of the field, and one line to type in."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from console.tui.glyphs import Glyphs, shown
from console.tui.tones import ACCENT, BAD, PLAIN, QUIET
from console.tui.widgets.fields import Check, Field, Form, draw_field
from console.tui.widgets.listing import Listing


class FormView(Vertical):
    """Shows a Form and lets it be edited: `edit` opens the line to type in, left and right walk through choices."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave_edit", "Leave it", show=False),
        Binding("left", "turn(-1)", "Previous choice", show=False),
        Binding("right", "turn(1)", "Next choice", show=False),
    ]

    class Changed(Message):
        """The form has other values now."""

    def __init__(self, form: Form, check: Check, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.form = form
        self._check = check
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """The rows, then help, then the line to type in."""
        yield Listing(self._draw_row, self._glyphs, id="form-rows")
        yield Static(id="form-help", markup=False)
        yield Input(id="form-input", compact=True)

    def on_mount(self) -> None:
        """Nothing is being typed at first."""
        self._input.display = False
        self.show(self.form)

    def show(self, form: Form) -> None:
        """Draw `form`; the cursor stays on its row."""
        self.form = form
        rows = form.rows()
        self._rows.fill([isinstance(row, Field) for row in rows])
        self._show_help()

    def set_field(self, name: str, text: str) -> None:
        """Put `text` into a field, as if it had been typed."""
        self._take(self.form.edited(name, text, self._check))

    @property
    def here(self) -> Field | None:
        """The field under the cursor."""
        rows = self.form.rows()
        row = rows[self._rows.cursor] if self._rows.cursor < len(rows) else None
        return row if isinstance(row, Field) else None

    @property
    def editing(self) -> bool:
        """Whether something is being typed."""
        return bool(self._input.display)

    def edit(self) -> None:
        """Begin to type a value; a field with choices goes to its next one instead."""
        here = self.here
        if here is None:
            return
        if here.choices:
            self.action_turn(1)
            return
        self._input.password = here.secret
        self._input.value = self.form.text(here.name)
        self._input.display = True
        self._input.focus()
        self._input.cursor_position = len(self._input.value)

    def undo(self) -> None:
        """Give the field under the cursor its old value back."""
        here = self.here
        if here is not None:
            self.set_field(here.name, here.value)

    def action_turn(self, step: int) -> None:
        """Walk through the choices of the field under the cursor."""
        here = self.here
        if here is not None and here.choices and not self.editing:
            self._take(self.form.turned(here.name, step, self._check))

    def action_leave_edit(self) -> None:
        """Stop typing and keep the value as it was."""
        if self.editing:
            self._input.display = False
            self._rows.focus()
            self._show_help()

    def focus_rows(self) -> None:
        """Put the keyboard on the rows."""
        self._rows.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        event.stop()
        here = self.here
        self.action_leave_edit()
        if here is not None:
            self.set_field(here.name, event.value.strip())

    def on_listing_moved(self, event: Listing.Moved) -> None:
        """The help follows the cursor."""
        event.stop()
        self.action_leave_edit()
        self._rows.fill([isinstance(row, Field) for row in self.form.rows()])
        self._show_help()

    def _take(self, form: Form) -> None:
        self.show(form)
        self.post_message(self.Changed())

    def _draw_row(self, item: int, width: int) -> list[Content]:
        row = self.form.rows()[item]
        if isinstance(row, str):
            return [Content.styled(f" {row}", QUIET)]
        return draw_field(self.form, row, width, self._glyphs, here=item == self._rows.cursor)

    def _show_help(self) -> None:
        here = self.here
        if here is None:
            self._help.update("")
            return
        fault = self.form.faults.get(here.name)
        line = Content.assemble((here.name, ACCENT), (f"  {shown(here.help, self._glyphs)}", PLAIN))
        allowed = f"   {here.allowed}" if here.allowed and here.allowed not in here.help else ""
        self._help.update(line.append_text(allowed, BAD if fault else QUIET))

    @property
    def _rows(self) -> Listing:
        return self.query_one("#form-rows", Listing)

    @property
    def _help(self) -> Static:
        return self.query_one("#form-help", Static)

    @property
    def _input(self) -> Input:
        return self.query_one("#form-input", Input)
