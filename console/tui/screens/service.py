"""Service: the settings form, what a change would cost, its way into force, and everything that was changed before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widget import Widget

from console.deployment.change import ChangePlan, Choices, Generation
from console.deployment.settings import SETTINGS, Setting
from console.deployment.settings_file import complete
from console.errors import OperatorError
from console.tui.glyphs import shown
from console.tui.keys import SERVICE, Key, bindings
from console.tui.screens.apply import ApplyScreen
from console.tui.screens.asking import ask_first, host_question, perform
from console.tui.screens.confirm import Question
from console.tui.screens.screen import ConsoleScreen
from console.tui.session import Session
from console.tui.settings_form import check_setting, settings_form
from console.tui.tones import QUIET, WARN, within
from console.tui.view import View
from console.tui.widgets.change_report import (
    changes_back_to,
    draw_fault,
    draw_generation,
    draw_plan,
    draw_progress,
)
from console.tui.widgets.fields import Form
from console.tui.widgets.form_view import FormView
from console.tui.widgets.listing import Listing
from console.tui.widgets.pane import Pane
from console.tui.widgets.top_line import state_words
from console.tui.words import count_of

PLAN_AFTER_S = 0.3
"""Pause in typing after which the plan is asked for again."""


class ServiceScreen(ConsoleScreen):
    """The form on the left, plan or progress beside it, the history below."""

    which = "service"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SERVICE)]
    AUTO_FOCUS = "#form-rows"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._table: tuple[Setting, ...] = SETTINGS  # of the engine whose settings the form shows
        self._plan: ChangePlan | None = None
        self._fault: str | None = None
        self._loaded_for: str | None = None  # invocation whose settings the form shows
        self._history: Sequence[Generation] = ()
        self._proposed: dict[str, str] = {}  # settings to put into the form once it is there
        self._opened: int | None = None  # generation whose differences are shown
        self._plan_timer: Timer | None = None

    def body(self) -> Iterable[Widget]:
        """State line, form and report, history."""
        yield Pane(self._draw_state, id="service-state")
        with Horizontal(id="service-main"):
            yield FormView(Form(), self._check, self.session.glyphs, id="service-form")
            with VerticalScroll(id="service-report", can_focus=False):
                yield Pane(self._draw_report, id="service-report-pane")
        with Vertical(id="service-history"):
            yield Pane(self._draw_history_title, id="history-title")
            yield Listing(self._draw_generation, self.session.glyphs, id="history")

    def bring_up_to_date(self, view: View) -> None:
        """Read the settings again when another engine process runs, and after a change."""
        service = view.snapshot.service if view.snapshot else None
        identity = f"{service.invocation} {service.state}" if service else None
        change = self.session.change
        if change is not None and change.outcome is not None:
            identity = f"{identity} {change.outcome.request_id}"
        if identity is not None and identity != self._loaded_for:
            self._loaded_for = identity
            self.run_worker(self._load(), group="load", exclusive=True, exit_on_error=False)

    def pane_to_zoom(self) -> Widget:
        """Form or history, where the keyboard is."""
        return self.query_one("#service-history" if self.focused is self._listing else "#service-form")

    async def action_edit(self) -> None:
        """Type a value, or open and close a generation's differences."""
        if self.focused is self._listing:
            number = self._number_here
            self._opened = None if self._opened == number else number
            self._fill_history()
        else:
            self._form.edit()

    def action_undo(self) -> None:
        """The old value again."""
        self._form.undo()

    def action_history(self) -> None:
        """To the history and back."""
        if self.has_class("-history"):
            self.remove_class("-history")
            self._form.focus_rows()
        else:
            self.add_class("-history")
            self._listing.focus()

    def action_back(self) -> None:
        """Fill the form with the settings of a generation; applying them is the operator's step."""
        number = self._number_here
        if number is None:
            return
        for name, text in changes_back_to(self._history, number).items():
            self._form.set_field(name, text)
        self.remove_class("-history")
        self._form.focus_rows()

    def action_apply(self) -> None:
        """Ask, then apply what the form says now: the plan is made afresh, since the last one may be older."""
        if self._plan_timer is not None:
            self._plan_timer.stop()  # or the plan for what was typed last would take the place of this question
        self.run_worker(self._plan_then_ask(), group="plan", exclusive=True, exit_on_error=False)

    def action_service(self, verb: str) -> None:
        """Start at once; stop and restart after a question."""
        if verb == "start":
            perform(self, self.session, self.session.service_verb(verb))
        else:
            question = _verb_question(verb, self.session)
            ask_first(self, self.session, question, lambda: self.session.service_verb(verb))

    def action_say(self, word: Literal["confirm", "revert"]) -> None:
        """The operator's word on a change that waits for it: it was asked for, so nothing is asked again."""
        perform(self, self.session, self.session.say(word))

    def keys(self) -> tuple[Key, ...]:
        """The keys of a word come first while one is waited for, and are left out while none is."""
        waits = self.session.change is not None and self.session.change.waits
        allowed = super().keys()
        words = tuple(key for key in allowed if key.action.startswith("say("))
        others = tuple(key for key in allowed if key not in words)
        return (*words, *others) if waits else others

    def take_changes(self, changes: Mapping[str, str]) -> None:
        """Put proposed settings into the form, as soon as it has been read from the box."""
        self._proposed = dict(changes)
        self._take_proposed()

    def _take_proposed(self) -> None:
        known = {one.name for one in self._form.form.fields}
        if not known:
            return
        proposed, self._proposed = self._proposed, {}
        for name, text in proposed.items():
            if name in known:
                self._form.set_field(name, text)
            else:
                self.session.note("warning", f"{name} is no setting of this engine: {text} is not taken to the form")

    @on(FormView.Changed)
    def _form_changed(self, event: FormView.Changed) -> None:
        event.stop()
        if self._plan_timer is not None:
            self._plan_timer.stop()
        self._plan_timer = self.set_timer(PLAN_AFTER_S, self._ask_plan)

    @on(Listing.Moved, "#history")
    def _history_moved(self, event: Listing.Moved) -> None:
        event.stop()
        self._fill_history()

    def _ask_plan(self) -> None:
        self.run_worker(self._make_plan(), group="plan", exclusive=True, exit_on_error=False)

    async def _plan_then_ask(self) -> None:
        await self._make_plan()
        plan = self._plan
        if plan is None:
            self.session.note("info", "not applied: the form holds a value that cannot be")
        elif not plan.differences:
            self.session.note("info", "nothing to apply: no setting differs from the file")
        else:
            await self._ask_to_apply(plan)

    async def _ask_to_apply(self, plan: ChangePlan) -> None:
        """What it costs and what is in the way, the operator's choices, and then the change."""
        self.session.refuse_if_read_only("apply")
        strays = await self.session.operations.find_strays(plan)
        if isinstance(self.app.screen, ModalScreen):
            return

        def answered(choices: Choices | None) -> None:
            if choices is not None:
                perform(self, self.session, self.session.apply(plan, choices))

        question = host_question(self.session, "Put these settings in force?", (), "Apply")
        self.app.push_screen(ApplyScreen(question, plan, strays, self.session.glyphs), answered)

    async def _make_plan(self) -> None:
        """What the form as it stands would change; a finished change makes room for it."""
        form = self._form.form
        if form.faults:
            name, fault = next(iter(form.faults.items()))
            self._plan, self._fault = None, f"{name}: {fault}"
        else:
            try:
                self._plan, self._fault = await self.session.operations.plan(form.edits), None
            except OperatorError as error:
                self._plan, self._fault = None, str(error)
        self.session.forget_finished_change()
        self.refresh_view()

    async def _load(self) -> None:
        """The settings in the file and the history; what the operator has typed stays."""
        perform(self, self.session, self.session.take_up_change())
        try:
            plan = await self.session.operations.plan({})
            self._history = await self.session.operations.history()
        except OperatorError as error:
            self._fault = str(error)
            self.refresh_view()
            return
        snapshot = self.session.snapshot
        self._table = plan.table
        fresh = settings_form(plan.values or complete(plan.text), snapshot.settings if snapshot else {}, plan.table)
        for name, text in self._form.form.edits.items():
            fresh = fresh.edited(name, text, self._check)
        self._form.show(fresh)
        self._take_proposed()
        self._plan, self._fault = (plan, None) if not fresh.edits else (self._plan, self._fault)
        self._fill_history()
        self.refresh_view()

    def _check(self, name: str, text: str) -> str | None:
        return check_setting(name, text, self._table)

    def _fill_history(self) -> None:
        self._listing.fill([True] * len(self._history))

    def _draw_state(self, view: View, width: int, _height: int) -> list[Content]:
        service = view.snapshot.service if view.snapshot else None
        state, tone, age = state_words(view)
        parts = [Content.styled(f" {state}", f"bold {tone}")]
        if self.session.verb is not None:
            parts.append(Content.styled(f"{self.session.verb} on its way", WARN))
        if service is not None:
            words = shown(service.status_text or "", view.glyphs)
            if words and service.state != "serving":
                parts.append(Content.styled(words, WARN))  # what it is at: the reason to look here
            parts.append(Content.styled(f"{shown(service.unit, view.glyphs)} ({service.scope})", QUIET))
            if age:
                parts.append(Content.styled(f"since {age}", QUIET))
            if service.restarts:
                parts.append(Content.styled(count_of(service.restarts, "restart"), WARN))
            if service.main_pid:
                parts.append(Content.styled(f"pid {service.main_pid}", QUIET))
            if words and service.state == "serving":
                parts.append(Content.styled(words, QUIET))
        return [within(parts, width, "   ")]

    def _draw_report(self, view: View, width: int, _height: int) -> list[Content]:
        change = self.session.change
        if change is not None:
            return draw_progress(change, view.now_s, width, view.glyphs)
        if self._fault is not None:
            return draw_fault(self._fault, width, view.glyphs)
        if self._plan is None:
            return [Content.styled(" reading the settings on the box", QUIET)]
        return draw_plan(self._plan, width, view.glyphs)

    def _draw_history_title(self, view: View, width: int, _height: int) -> list[Content]:
        words = (
            " history   enter shows what changed, b takes it back to the form" if self._history else " history   empty"
        )
        return [Content.styled(words, QUIET)]

    def _draw_generation(self, item: int, width: int) -> list[Content]:
        one = self._history[item]
        here = item == self._listing.cursor
        return draw_generation(one, width, self.session.glyphs, here=here, whole=one.number == self._opened)

    @property
    def _number_here(self) -> int | None:
        return self._history[self._listing.cursor].number if self._history else None

    @property
    def _form(self) -> FormView:
        return self.query_one("#service-form", FormView)

    @property
    def _listing(self) -> Listing:
        return self.query_one("#history", Listing)


def _verb_question(verb: str, session: Session) -> Question:
    snapshot = session.snapshot
    running = snapshot.running if snapshot else None
    unit = snapshot.service.unit if snapshot and snapshot.service else "the engine"
    in_flight = "not known" if running is None else f"{running}, and they end" if running else "none"
    consequences = [
        f"{unit} {'stops' if verb == 'stop' else 'stops and starts again'}.",
        f"Requests in flight: {in_flight}.",
    ]
    if session.change is not None and session.change.on_its_way:
        whose = f"the settings change by {session.change.who}" if session.change.who else "your settings change"
        consequences.append(f"Then {whose} goes back to the old settings and starts the engine with them.")
    return host_question(session, f"{verb.capitalize()} the engine?", consequences, verb.capitalize())
