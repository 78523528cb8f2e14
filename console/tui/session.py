"""The session: one host's operations, what is known of it now, and what is going on; screens only show it.

What goes on belongs here and not to a screen, so that leaving a screen stops nothing. No Textual in this file.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from console.deployment.change import ChangePlan, Choices, Outcome, Phase
from console.errors import OperatorError, UsageError
from console.experiments.playbook import Playbook
from console.experiments.store import default_store_folder
from console.operations import Operations
from console.snapshot import Snapshot
from console.tui.archive import Archive
from console.tui.change_progress import ChangeProgress
from console.tui.change_progress import advanced as change_advanced
from console.tui.glyphs import Glyphs, glyphs_for
from console.tui.happenings import Happenings, Weight
from console.tui.log_buffer import LogBuffer
from console.tui.runs import RunView, advanced, begun, lost
from console.tui.view import View
from console.tui.words import count_of

if TYPE_CHECKING:
    from console.box.doctor import Check
    from console.box.empty_log import EmptyLog


@dataclass(frozen=True)
class Examined:
    """What the doctor found last, when that was, and what kept it from looking, if something did."""

    checks: tuple[Check, ...] = ()
    at_s: float | None = None
    looking_since_s: float | None = None  # while it looks
    trouble: str | None = None


@dataclass
class Session:
    """Mutable only through its methods; `changed` is called after each of them that made a difference."""

    operations: Operations
    changed: Callable[[], None]
    read_only: bool = False
    ascii_only: bool = False
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    snapshot: Snapshot | None = None
    log: LogBuffer = field(default_factory=LogBuffer)
    log_trouble: str | None = None
    log_empty: EmptyLog | None = None  # why there is no record, once somebody has asked
    happenings: Happenings = field(default_factory=Happenings)
    run: RunView | None = None
    change: ChangeProgress | None = None
    verb: str | None = None  # start, stop or restart while one is on its way
    archive: Archive = field(default_factory=lambda: Archive(default_store_folder()))
    examined: Examined = field(default_factory=lambda: Examined())

    @property
    def glyphs(self) -> Glyphs:
        """What the screens draw with."""
        return glyphs_for(self.ascii_only)

    @property
    def host(self) -> str:
        """The host's name."""
        return self.operations.name

    def view(self) -> View:
        """This moment, for the widgets."""
        return View(
            self.host,
            self.clock(),
            self.wall_clock(),
            self.snapshot,
            self.glyphs,
            self.read_only,
            self.happenings.unread,
            self.change.left_s(self.clock()) if self.change is not None else None,
        )

    def note(self, weight: Weight, text: str) -> None:
        """Keep that this happened."""
        self.happenings = self.happenings.with_one(self.wall_clock(), weight, text)
        self.changed()

    def read_all(self) -> None:
        """The operator has seen what happened."""
        self.happenings = self.happenings.all_read()
        self.changed()

    def refuse_if_read_only(self, what: str) -> None:
        """Raise `UsageError` where this console may not change anything: the gate that every change goes through."""
        if self.read_only:
            raise UsageError(f"{what} is refused: this console is read-only", where=self.host)

    async def follow_snapshots(self) -> None:
        """Take in every Snapshot until the operations are closed."""
        async for snapshot in self.operations.snapshots():
            before, self.snapshot = self.snapshot, snapshot
            self._note_changes(before, snapshot)
            self.changed()

    async def follow_records(self) -> None:
        """Take in the journal until the operations are closed."""
        async for batch in self.operations.records(since=None, follow=True):
            self.log.extend(batch)
            self.changed()

    async def run_playbook(self, playbook: Playbook, params: Mapping[str, Any]) -> None:
        """Start a run and follow it to its end; one at a time."""
        self.refuse_if_read_only(f"running {playbook.title}")
        if self.run is not None and not self.run.over:
            raise OperatorError(f"{self.run.title} is still running", where=self.host, mend="wait or cancel it")
        await self._follow_run(begun(playbook.title, params, self.clock()), self.operations.run(playbook, params))

    async def attach_run(self, run_id: str, title: str, params: Mapping[str, Any]) -> None:
        """Follow a run that goes on without this console, from its first event; one at a time."""
        if self.run is not None and not self.run.over:
            raise OperatorError(f"{self.run.title} is still being followed", where=self.host)
        await self._follow_run(begun(title, params, self.clock()), self.operations.attach(run_id))

    async def _follow_run(self, run: RunView, events: AsyncIterator[dict[str, Any]]) -> None:
        self.run = run
        self.changed()
        try:
            async for event in events:
                self.run = advanced(self.run, event, self.clock())
                self.changed()
        except OperatorError as error:
            self.run = lost(self.run, str(error), self.clock())
            raise
        if not self.run.over:
            self.run = lost(self.run, "its events ended without a result", self.clock())
        self._note_run_end(self.run)

    async def cancel_run(self) -> None:
        """Ask the run in progress to stop."""
        self.refuse_if_read_only("cancelling")
        if self.run is None or self.run.over or self.run.run_id is None:
            raise OperatorError("no run to cancel", where=self.host)
        await self.operations.cancel(self.run.run_id)

    async def apply(self, plan: ChangePlan, choices: Choices | None = None) -> None:
        """Put a plan into force and follow it to its outcome; one at a time."""
        self.refuse_if_read_only("a settings change")
        if self.change is not None and self.change.on_its_way:
            raise OperatorError("a settings change is still on its way", where=self.host)
        await self._follow_change(ChangeProgress(self.clock()), self.operations.apply(plan, choices))

    async def take_up_change(self) -> None:
        """Follow the change that the box works on, where there is one: of an earlier console, or of somebody else."""
        if self.change is not None and self.change.on_its_way:
            return
        found = await self.operations.change_under_way()
        if found is None or (self.change is not None and self.change.on_its_way):
            return
        self.note("info", f"a settings change by {found.who} is under way")
        steps = self.operations.follow_change(found.request_id)
        await self._follow_change(ChangeProgress(self.clock(), found.who), steps)

    async def say(self, word: Literal["confirm", "revert"]) -> None:
        """The operator's word on the change that waits for one; the outcome tells whether it came in time."""
        self.refuse_if_read_only(word)
        if self.change is None or not self.change.waits:
            raise OperatorError("no settings change waits for a word", where=self.host)
        self.change = replace(self.change, word=word)
        self.changed()
        try:
            async for _ in self.operations.say(word):
                pass  # whoever follows the change shows it
        except OperatorError:
            if self.change is not None and self.change.on_its_way:
                self.change = replace(self.change, word=None)  # it did not get there
                self.changed()
            raise

    async def _follow_change(self, change: ChangeProgress, steps: AsyncIterator[Phase | Outcome]) -> None:
        self.change = change
        self.changed()
        try:
            async for step in steps:
                self.change = change_advanced(self.change, step, self.clock())
                if isinstance(step, Phase) and step.name == "waiting":
                    self.note("warning", "the new settings wait for your word: on Service, c keeps them, v reverts")
                self.changed()
        except OperatorError as error:
            self.change = replace(self.change, outcome=Outcome("rejected", "", reason=str(error)))
            raise
        if self.change.outcome is None:
            self.change = replace(self.change, outcome=Outcome("unknown", "", reason="the link was lost on the way"))
        self._note_outcome(self.change)

    def forget_finished_change(self) -> None:
        """The outcome has been seen: make room for the next plan."""
        if self.change is not None and not self.change.on_its_way:
            self.change = None

    async def service_verb(self, verb: str) -> None:
        """`start`, `stop` or `restart`, to its end; one at a time."""
        self.refuse_if_read_only(verb)
        if self.verb is not None:
            raise OperatorError(f"{self.verb} is still on its way", where=self.host)
        self.verb = verb
        self.changed()
        try:
            state = await self.operations.service(verb)
        finally:
            self.verb = None
            self.changed()
        self.note("success", f"{verb} done: the service is {state.state}")

    async def explain_empty_log(self) -> None:
        """Ask the box why its journal gives nothing."""
        self.log_empty = await self.operations.why_empty()
        self.changed()

    async def examine(self) -> None:
        """Look for what would stop the engine from working; one look at a time."""
        if self.examined.looking_since_s is not None:
            return
        self.examined = replace(self.examined, looking_since_s=self.clock(), trouble=None)
        self.changed()
        try:
            checks = tuple(await self.operations.examine())
            self.examined = Examined(checks, self.clock())
        except OperatorError as error:
            self.examined = replace(self.examined, looking_since_s=None, trouble=str(error))
        self.changed()

    async def mend(self, commands: Sequence[Sequence[str]]) -> None:
        """Run what mends itself, then look again."""
        self.refuse_if_read_only("mending")
        await self.operations.mend(commands)
        self.note("success", f"{count_of(len(commands), 'command')} run on {self.host}: looking again")
        await self.examine()

    def _note_changes(self, before: Snapshot | None, now: Snapshot) -> None:
        if before is None:
            return
        if before.link.name != now.link.name and now.link.name in ("LOST", "LIVE", "DEGRADED"):
            reason = f": {now.link.reason}" if now.link.reason else ""
            self.note("info" if now.link.name == "LIVE" else "warning", f"link {now.link.name}{reason}")
        was, state = before.service and before.service.state, now.service and now.service.state
        if was is not None and state is not None and was != state:
            failed = state in ("failed", "start-limit-hit", "start-timeout", "stuck-in-stop")
            if failed or not self._at_work:
                self.note("failure" if failed else "info", f"service {was} -> {state}")
        known = {alarm.code for alarm in before.alarms}
        for alarm in now.alarms:
            if alarm.code not in known and not (self._at_work and alarm.code == "not_serving"):
                self.note("warning", alarm.sentence)

    @property
    def _at_work(self) -> bool:
        """Whether this console is taking the service down or up: what it does itself is no news."""
        return self.verb is not None or (self.change is not None and self.change.on_its_way)

    def _note_run_end(self, run: RunView) -> None:
        if run.status == "lost":
            self.note("failure", f"{run.title}: {run.trouble}")
            return
        verdict = run.verdict or {}
        words = verdict.get("headline") or (run.result or {}).get("status", "ended")
        good = (run.result or {}).get("exit", 0) in (0, None)
        self.note("success" if good else "warning", f"{run.title}: {words}")

    def _note_outcome(self, change: ChangeProgress) -> None:
        outcome = change.outcome
        assert outcome is not None
        reason = f": {outcome.reason}" if outcome.reason else ""
        self.note(
            "success" if outcome.status == "confirmed" else "failure",
            f"settings change {outcome.status.replace('_', ' ')}{reason}",
        )
