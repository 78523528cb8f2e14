"""Runs: every run of every host that this console has kept; read, filtered, pinned, held against each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from textual import on
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from console.errors import OperatorError
from console.experiments.store import RunSummary, Store, StoredRun
from console.private_file import write_private
from console.tui.glyphs import Glyphs
from console.tui.keys import RUNS, bindings
from console.tui.screens.asking import perform
from console.tui.screens.export_run import ExportScreen
from console.tui.screens.screen import ConsoleScreen
from console.tui.screens.service import ServiceScreen
from console.tui.session import Session
from console.tui.tones import BAD, PLAIN, QUIET, WARN, within
from console.tui.view import View
from console.tui.widgets.listing import Listing
from console.tui.widgets.pane import Pane
from console.tui.widgets.run_list import columns_of, draw_run_row, matching
from console.tui.widgets.stored_report import draw_compared, draw_stored
from console.tui.words import count_of

Drawn = Callable[[int, Glyphs], list[Content]]
"""A report that is drawn anew for each width."""
READ_AFTER_S = 0.2
"""Pause after which the run under the cursor is read from disk."""


class RunsScreen(ConsoleScreen):
    """The list, and below it the run under the cursor or a comparison."""

    which = "runs"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(RUNS)]
    AUTO_FOCUS = "#runs-list"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._all: Sequence[RunSummary] | None = None  # None: not read yet
        self._shown: Sequence[RunSummary] = ()
        self._filter = ""
        self._marked: list[str] = []  # ids, in the order in which they were marked
        self._report: Drawn | StoredRun | None = None
        self._fault: str | None = None
        self._read_timer: Timer | None = None
        self._seen_run: tuple[str | None, bool] = (None, False)

    def body(self) -> Iterable[Widget]:
        """Status, list, report, the line to type in."""
        yield Pane(self._draw_status, id="runs-status")
        with Vertical(id="runs-main"):
            yield Listing(self._draw_row, self.session.glyphs, id="runs-list")
            with VerticalScroll(id="runs-report"):
                yield Pane(self._draw_report, id="runs-report-pane")
        yield Input(
            id="runs-input", compact=True, placeholder="filter: words that are all in the line; blank shows all"
        )

    def on_mount(self) -> None:
        """Nothing is being typed at first."""
        self._input.display = False

    def on_screen_resume(self) -> None:
        """Another console may have added runs meanwhile."""
        self._read_list()

    def bring_up_to_date(self, view: View) -> None:
        """Read the list again when the run in progress begins or ends."""
        run = self.session.run
        seen = (run.run_id, run.over) if run else (None, False)
        if seen != self._seen_run:
            self._seen_run = seen
            self._read_list()

    def pane_to_zoom(self) -> Widget:
        """The report."""
        return self.query_one("#runs-report")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys show only where they do something."""
        if action == "compare":
            return len(self._marked) == 2
        if action == "take_up":
            return self._goes_on or bool(self._proposed)
        return True

    def action_open(self) -> None:
        """The report takes the whole screen, or gives it back."""
        if self._input.display:
            return
        self.toggle_class("-reading")
        if self.has_class("-reading"):
            self.query_one("#runs-report").focus()
        else:
            self._listing.focus()

    def action_filter(self) -> None:
        """Ask for words."""
        self.remove_class("-reading")
        self._input.value = self._filter
        self._input.display = True
        self._input.focus()

    def action_mark(self) -> None:
        """Mark the run under the cursor, or take the mark away; a third mark takes the place of the first."""
        here = self._here
        if here is None:
            return
        if here.id in self._marked:
            self._marked.remove(here.id)
        else:
            self._marked = [*self._marked, here.id][-2:]
        self._fill()
        self.refresh_view()

    def action_compare(self) -> None:
        """Hold the later of the two against the earlier."""
        self._stop_reading()  # or the run under the cursor would take the comparison's place
        self._work(self._compare, "report")

    def action_pin(self) -> None:
        """Pin, or unpin."""
        here = self._here
        if here is not None:
            perform(self, self.session, self._pin(here))

    def action_export(self) -> None:
        """Ask in which form, then write it."""
        here = self._here
        if here is not None:
            dialog = ExportScreen(self._exports, self.session.glyphs)
            self.app.push_screen(dialog, lambda form: self._write_as(here, form))

    def action_take_up(self) -> None:
        """Follow a run that goes on; of one that is over, take its proposal to the form. Nothing is applied by that."""
        here = self._here
        if here is not None and self._goes_on:
            perform(self, self.session, self._follow(here))
        elif self._proposed:
            perform(self, self.session, self._propose(self._proposed))

    def key_escape(self) -> None:
        """Back to the list, its filter as it was."""
        if self._input.display:
            self._close_input()
        elif self.has_class("-reading"):
            self.action_open()

    @on(Input.Submitted, "#runs-input")
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        self._filter = event.value.strip()
        self._close_input()
        self._fill(0)
        self._read_soon()

    @on(Listing.Moved)
    def _moved(self, event: Listing.Moved) -> None:
        event.stop()
        self._fill()
        self._read_soon()

    def _read_list(self) -> None:
        self._work(self._load_list, "list")

    def _read_soon(self) -> None:
        self._stop_reading()
        self._read_timer = self.set_timer(READ_AFTER_S, self._read_run)

    def _stop_reading(self) -> None:
        if self._read_timer is not None:
            self._read_timer.stop()

    def _read_run(self) -> None:
        here = self._here
        if here is not None and not (isinstance(self._report, StoredRun) and self._report.record.id == here.id):
            self._work(partial(self._load_run, here), "report")

    def _work(self, work: Callable[[], Awaitable[None]], group: str) -> None:
        """Do it beside the screen; a newer one of its group takes its place."""
        self.run_worker(work, group=group, exclusive=True, exit_on_error=False)

    async def _load_list(self) -> None:
        before = self._here
        try:
            self._all, self._fault = await self.session.archive.ask(Store.runs), None
        except OperatorError as error:
            self._fault = str(error)
            self.refresh_view()
            return
        self._fill()
        places = [place for place, run in enumerate(self._shown) if before is not None and run.id == before.id]
        self._fill(places[0] if places else 0)
        self._read_run()
        self.refresh_bindings()
        self.refresh_view()

    async def _load_run(self, run: RunSummary) -> None:
        try:
            self._report = await self.session.archive.ask(lambda store: store.show(run.id))
        except OperatorError as error:
            self._report = partial(_told, str(error))
        self.query_one("#runs-report", VerticalScroll).scroll_home(animate=False)
        self.refresh_bindings()
        self.refresh_view()

    async def _compare(self) -> None:
        from console.experiments.compare import compare  # brings in numpy and scipy

        marked = [run for run in self._all or () if run.id in self._marked]
        earlier, later = sorted(marked, key=lambda run: run.started)
        compared = await self.session.archive.ask(lambda store: compare(store.show(earlier.id), store.show(later.id)))
        self._report = partial(draw_compared, compared)
        self.add_class("-reading")
        self.query_one("#runs-report").focus()
        self.refresh_view()

    async def _pin(self, run: RunSummary) -> None:
        when = datetime.fromtimestamp(self.session.wall_clock(), UTC).isoformat(timespec="seconds")
        await self.session.archive.ask(lambda store: store.unpin(run.id) if run.pinned else store.pin(run.id, when))
        words = "is no longer the golden run of" if run.pinned else "is the golden run of"
        self.session.note("success", f"{run.id} {words} {run.playbook} on {run.host}")
        self._read_list()

    def _write_as(self, run: RunSummary, form: str | None) -> None:
        if form is not None:
            perform(self, self.session, self._export(run, form))

    async def _export(self, run: RunSummary, form: str) -> None:
        from console.experiments.export import export

        text = await self.session.archive.ask(lambda store: export(store.show(run.id), form))
        path = self._exports / f"{run.id}.{form}"
        _write(path, text)
        self.session.note("success", f"written to {path}")

    async def _follow(self, run: RunSummary) -> None:
        stored = await self.session.archive.ask(lambda store: store.show(run.id))
        await self.run_action("app.go('playbooks')")
        await self.session.attach_run(run.id, run.playbook, stored.record.params)

    async def _propose(self, changes: Mapping[str, Any]) -> None:
        await self.run_action("app.go('service')")
        cast(ServiceScreen, self.app.screen).take_changes({name: str(value) for name, value in changes.items()})

    def _fill(self, cursor: int | None = None) -> None:
        self._shown = matching(self._all or (), self._filter)
        self._listing.fill([True] * len(self._shown), cursor)

    def _close_input(self) -> None:
        self._input.display = False
        self._listing.focus()
        self.refresh_view()

    def _draw_status(self, view: View, width: int, _height: int) -> list[Content]:
        if self._fault is not None:
            return [Content.styled(f" {view.glyphs.no} {self._fault}", BAD)]
        if self._all is None:
            return [Content.styled(" reading the runs kept here", QUIET)]
        count = count_of(len(self._all), "run")
        parts = [Content.styled(f" {len(self._shown):,} of {count}" if self._filter else f" {count}", PLAIN)]
        if self._filter:
            parts.append(Content.styled(f"filter {self._filter}", WARN))
        if self._marked:
            words = "c compares them" if len(self._marked) == 2 else "space marks another to compare"
            parts.append(Content.styled(f"{len(self._marked)} marked: {words}", QUIET))
        return [within(parts, width, "   ")]

    def _draw_row(self, item: int, width: int) -> list[Content]:
        run, columns = self._shown[item], columns_of(self._shown)
        here = item == self._listing.cursor
        return draw_run_row(run, columns, width, self.session.glyphs, here=here, marked=self._marked)

    def _draw_report(self, view: View, width: int, _height: int) -> list[Content]:
        if self._all is not None and not self._shown:
            kept = "no run passes the filter: / changes it" if self._all else "no run yet: p, then a letter, makes one"
            return [Content.styled(f" {kept}", QUIET)]
        if isinstance(self._report, StoredRun):
            return draw_stored(self._report, width, view.glyphs)
        return self._report(width, view.glyphs) if self._report is not None else []

    @property
    def _here(self) -> RunSummary | None:
        return self._shown[self._listing.cursor] if self._shown else None

    @property
    def _goes_on(self) -> bool:
        """Whether the run under the cursor runs on this host now."""
        here = self._here
        return here is not None and here.status == "running" and here.host == self.session.host

    @property
    def _proposed(self) -> Mapping[str, Any]:
        """The settings that the verdict of the run under the cursor proposes for this host."""
        here, report = self._here, self._report
        if here is None or not isinstance(report, StoredRun) or report.record.id != here.id:
            return {}
        changes = ((report.result or {}).get("verdict") or {}).get("changes")
        return changes if isinstance(changes, Mapping) and here.host == self.session.host else {}

    @property
    def _exports(self) -> Path:
        return self.session.archive.folder / "exports"

    @property
    def _listing(self) -> Listing:
        return self.query_one("#runs-list", Listing)

    @property
    def _input(self) -> Input:
        return self.query_one("#runs-input", Input)


def _told(why: str, _width: int, glyphs: Glyphs) -> list[Content]:
    return [Content.styled(f" {glyphs.no} {why}", BAD)]


def _write(path: Path, text: str) -> None:
    try:
        write_private(path, text)
    except OSError as error:
        raise OperatorError(error.strerror or str(error), where=str(path), mend="make room or rights there") from error
