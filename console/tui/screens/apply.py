"""The question before a settings change: what it costs, what is in the way, and what only the operator can decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Static

from console.deployment.change import ChangePlan, Choices, InFlight, Stray
from console.tui.glyphs import Glyphs, shown
from console.tui.screens.confirm import Question
from console.tui.screens.dialog import Dialog
from console.tui.settings_form import setting_text
from console.tui.tones import PLAIN, QUIET, STRONG, WARN
from console.tui.widgets.change_report import consequence, stray_words
from console.tui.widgets.fields import Field, Form
from console.tui.widgets.form_view import FormView

KEEP, IN_FLIGHT, IN_THE_WAY = "keep them", "in flight", "in the way"
_KEEP_WORDS: dict[str, float | None] = {
    "after my word, 2 min": 120.0,
    "after my word, 5 min": 300.0,
    "after my word, 15 min": 900.0,
    "after my word, 30 s": 30.0,
    "as soon as proven": None,
}
"""How the new settings come to hold -> seconds for the word. The first is the default: it cannot strand anybody."""
_IN_FLIGHT_WORDS: dict[str, InFlight] = {"cut off": "abort", "wait for their end": "wait"}
_HINT = "enter changes a choice, tab moves on, escape leaves"
_LEAVE, _END = "leave alone: refused", "end"


class ApplyScreen(Dialog[Choices]):
    """Answers with the operator's choices, or None. Cancel stands first and has the keyboard."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "app.focus_previous", "Previous", show=False),
        Binding("right,down", "app.focus_next", "Next", show=False),
        Binding("enter", "turn", "Next choice", show=False),
        Binding("pageup", "scroll_page(-1)", "Page up", show=False),
        Binding("pagedown", "scroll_page(1)", "Page down", show=False),
    ]

    def __init__(self, question: Question, plan: ChangePlan, strays: Sequence[Stray], glyphs: Glyphs) -> None:
        super().__init__()
        self._question = question
        self._plan = plan
        self._strays = strays
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """Title, what it costs, the choices, then Cancel and yes."""
        question = self._question
        with Vertical(id="apply", classes="dialog"):
            yield Static(Content.styled(question.title, STRONG), markup=False, classes="dialog-title")
            with VerticalScroll(id="apply-page", can_focus=False):
                yield Static(self._text(), markup=False, id="apply-text")
            yield FormView(
                _choices_form(self._plan, self._strays), lambda _name, _text: None, self._glyphs, id="apply-form"
            )
            if question.typed is not None:
                yield Input(placeholder=f"type {question.typed} to allow it", id="confirm-typed", compact=True)
            yield Static(Content.styled(_HINT, QUIET), markup=False, id="apply-hint")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="apply-no", compact=True)
                yield Button(question.yes, id="apply-yes", compact=True, disabled=question.typed is not None)

    def on_mount(self) -> None:
        """The harmless answer has the keyboard."""
        self.query_one("#apply-no", Button).focus()

    def action_turn(self) -> None:
        """The next choice of the row under the cursor."""
        self._form.action_turn(1)

    def action_scroll_page(self, pages: int) -> None:
        """What it costs may be more than fits."""
        page = self.query_one("#apply-page", VerticalScroll)
        page.scroll_relative(y=pages * max(1, page.size.height - 1), animate=False)

    @on(FormView.Changed)
    def _changed(self, event: FormView.Changed) -> None:
        event.stop()
        self.query_one("#apply-text", Static).update(self._text(self._choices()))

    @on(Input.Changed, "#confirm-typed")
    def _allow(self, event: Input.Changed) -> None:
        self.query_one("#apply-yes", Button).disabled = event.value.strip() != self._question.typed

    @on(Button.Pressed)
    def _answer(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(self._choices() if event.button.id == "apply-yes" else None)

    def _choices(self) -> Choices:
        form = self._form.form
        answers = {one.name: form.text(one.name) for one in form.fields}
        return Choices(
            on_in_flight=_IN_FLIGHT_WORDS[answers.get(IN_FLIGHT, "cut off")],
            confirm_s=_KEEP_WORDS[answers[KEEP]],
            end=tuple(self._strays) if answers.get(IN_THE_WAY, _LEAVE) != _LEAVE else (),
        )

    def _text(self, choices: Choices | None = None) -> Content:
        question, plan, glyphs = self._question, self._plan, self._glyphs
        choices = choices or Choices()
        tag = f" [{question.tag}]" if question.tag else ""
        facts = [f"{one.name}: {setting_text(one.old)} to {setting_text(one.new)}" for one in plan.differences]
        facts += [consequence(plan, choices.on_in_flight)]
        cautions = [f"Mind: {warning}" for warning in plan.warnings]
        cautions += [f"In the way: {stray_words(stray)}" for stray in self._strays]
        lines = [Content.assemble(("on ", QUIET), (shown(question.host + tag, glyphs), f"bold {WARN}"))]
        lines += [Content.styled(f"{glyphs.middle_dot} {shown(line, glyphs)}", PLAIN) for line in facts]
        lines += [Content.styled(f"{glyphs.warn} {shown(line, glyphs)}", WARN) for line in cautions]
        lines += [Content.styled(f"{glyphs.middle_dot} {shown(line, glyphs)}", QUIET) for line in plan.capacity]
        return Content("\n").join(lines)

    @property
    def _form(self) -> FormView:
        return self.query_one("#apply-form", FormView)


def _choices_form(plan: ChangePlan, strays: Sequence[Stray]) -> Form:
    fields = []
    if strays:
        end = f"{_END} process {', '.join(str(stray.pid) for stray in strays)}"
        help_text = (
            "a process that holds the port or the settings and is not the service's; one that stays stops the change"
        )
        fields.append(_choice(IN_THE_WAY, help_text, (_LEAVE, end)))
    if plan.restarts and plan.requests_in_flight != 0:
        help_text = "requests that run now; whichever it is goes into the record"
        fields.append(_choice(IN_FLIGHT, help_text, tuple(_IN_FLIGHT_WORDS)))
    help_text = "without your word in time, the box puts the old settings back by itself"
    fields.append(_choice(KEEP, help_text, tuple(_KEEP_WORDS)))
    return Form(tuple(fields))


def _choice(name: str, help_text: str, choices: tuple[str, ...]) -> Field:
    return Field(name, "", choices[0], choices[0], help_text, "", choices)
