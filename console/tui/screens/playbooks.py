"""Playbooks: the catalogue, the run in progress, and its verdict. Leaving the screen stops nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.widget import Widget

from console.experiments.playbook import Playbook
from console.tui.keys import EVERYWHERE, PLAYBOOKS, bindings
from console.tui.screens.asking import ask_first, host_question
from console.tui.screens.running import run_after_questions
from console.tui.screens.screen import ConsoleScreen
from console.tui.session import Session
from console.tui.tones import QUIET
from console.tui.view import View
from console.tui.widgets.catalogue import draw_details, draw_item, title_width
from console.tui.widgets.listing import Listing
from console.tui.widgets.pane import Pane
from console.tui.widgets.run_report import draw_run


class PlaybooksScreen(ConsoleScreen):
    """The list on the left; beside it the playbook under the cursor, or the run."""

    which = "playbooks"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(PLAYBOOKS)]
    AUTO_FOCUS = "#catalogue"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._playbooks: Sequence[Playbook] = ()
        self._shown_run: float | None = None  # start of the run that this screen turned to by itself

    def body(self) -> Iterable[Widget]:
        """List and report."""
        with Horizontal(id="playbooks-main"):
            yield Listing(self._draw_item, self.session.glyphs, id="catalogue")
            with VerticalScroll(id="playbooks-report"):
                yield Pane(self._draw_report, id="playbooks-report-pane")

    def on_mount(self) -> None:
        """Read the catalogue."""
        super().on_mount()
        self._read()

    def on_screen_resume(self) -> None:
        """A script may have been mended meanwhile."""
        super().on_screen_resume()
        self._read()

    def bring_up_to_date(self, view: View) -> None:
        """Turn to a run when it begins, and leave the choice to the operator afterwards."""
        run = self.session.run
        if run is not None and run.started_s != self._shown_run:
            self._shown_run = run.started_s
            self._turn_to_run(True)

    def pane_to_zoom(self) -> Widget:
        """The report."""
        return self.query_one("#playbooks-report")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys show only where they do something."""
        run = self.session.run
        if action == "cancel":
            return run is not None and not run.over
        if action == "leave":
            return self.has_class("-run")
        if action == "apply":
            return self.has_class("-run") and bool(_proposed(self.session))
        if action == "run":
            return not self.has_class("-run")
        return True

    def action_run(self) -> None:
        """Run the playbook under the cursor."""
        if self._playbooks:
            run_after_questions(self, self.session, self._playbooks[self._listing.cursor])

    def action_leave(self) -> None:
        """Back to the list."""
        self._turn_to_run(False)

    def action_cancel(self) -> None:
        """Ask, then cancel."""
        run = self.session.run
        if run is not None and not run.over:
            consequences = [f"{run.title} ends where it is; what it measured so far is kept."]
            question = host_question(self.session, "Cancel the run?", consequences, "Cancel the run")
            ask_first(self, self.session, question, self.session.cancel_run)

    async def action_apply(self) -> None:
        """Take the settings the verdict proposes to the form."""
        await self.run_action("app.propose")

    def on_key(self, event: Key) -> None:
        """A playbook's own letter runs it, unless the key means something on every screen: then p goes before it."""
        if self.focused is not self._listing or event.key in self._taken_keys():
            return
        for playbook in self._playbooks:
            if playbook.key and event.character == playbook.key:
                event.stop()
                event.prevent_default()
                run_after_questions(self, self.session, playbook)

    def _taken_keys(self) -> set[str]:
        keys = (*PLAYBOOKS, *EVERYWHERE)
        return {key.key for key in keys if self.check_action(key.action.partition("(")[0], ())}

    @on(Listing.Moved)
    def _moved(self, event: Listing.Moved) -> None:
        event.stop()
        self._fill()
        self._turn_to_run(False)

    def _read(self) -> None:
        self._playbooks = self.session.operations.playbooks()
        self._fill()
        self.refresh_view()

    def _fill(self) -> None:
        self._listing.fill([True] * len(self._playbooks))

    def _turn_to_run(self, wanted: bool) -> None:
        self.set_class(wanted and self.session.run is not None, "-run")
        if not wanted:
            self._listing.focus()
        self.refresh_bindings()
        self.refresh_view()

    def _draw_item(self, item: int, width: int) -> list[Content]:
        titles = title_width(self._playbooks)
        here = item == self._listing.cursor
        return draw_item(self._playbooks[item], width, self.session.glyphs, titles=titles, here=here)

    def _draw_report(self, view: View, width: int, _height: int) -> list[Content]:
        run = self.session.run
        if run is not None and self.has_class("-run"):
            return draw_run(run, view.now_s, width, view.glyphs)
        if not self._playbooks:
            return [Content.styled(" No playbook was found.", QUIET)]
        return draw_details(self._playbooks[self._listing.cursor], width, view.glyphs)

    @property
    def _listing(self) -> Listing:
        return self.query_one("#catalogue", Listing)


def _proposed(session: Session) -> bool:
    verdict = session.run.verdict if session.run else None
    return bool(verdict and verdict.get("changes"))
