"""Doctor: what would stop the engine from working on this host, each finding with its mend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget

from console.tui.keys import DOCTOR, bindings
from console.tui.screens.asking import ask_first, host_question, perform
from console.tui.screens.screen import ConsoleScreen
from console.tui.session import Session
from console.tui.view import View
from console.tui.widgets.checkup import draw_checkup_row, draw_examined, rows_of
from console.tui.widgets.listing import Listing
from console.tui.widgets.pane import Pane

if TYPE_CHECKING:
    from console.box.doctor import Check


class DoctorScreen(ConsoleScreen):
    """Looks when it is opened for the first time, and whenever it is asked to."""

    which = "doctor"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(DOCTOR)]
    AUTO_FOCUS = "#checkup"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._checks: tuple[Check, ...] = ()
        self._rows: list[Check | str] = []
        self._asked = False

    def body(self) -> Iterable[Widget]:
        """What came of the look, then every finding."""
        yield Pane(self._draw_state, id="checkup-state")
        yield Listing(self._draw_row, self.session.glyphs, id="checkup")

    def on_screen_resume(self) -> None:
        """Nobody has to ask for the first look."""
        if not self._asked:
            self.action_again()

    def bring_up_to_date(self, view: View) -> None:
        """New findings; the cursor goes to the gravest of them."""
        if self.session.examined.checks is self._checks:
            return
        self._checks = self.session.examined.checks
        self._rows = rows_of(self._checks)
        self._listing.fill([not isinstance(row, str) for row in self._rows], self._gravest())
        self._listing.move_to(self._listing.cursor)

    def pane_to_zoom(self) -> Widget:
        """There is one list."""
        return self._listing

    def action_again(self) -> None:
        """Look again."""
        self._asked = True
        perform(self, self.session, self.session.examine())

    def action_mend(self) -> None:
        """Show the commands, then run them."""
        commands = [argv for check in self._checks for argv in check.commands]
        commands = list(dict.fromkeys(commands))
        if not commands:
            self.session.note("info", "nothing here mends itself safely: what to do stands below each finding")
            return
        consequences = [f"runs there: {' '.join(argv)}" for argv in commands]
        question = host_question(self.session, "Mend what is safe to mend?", consequences, "Run them")
        ask_first(self, self.session, question, lambda: self.session.mend(commands))

    @on(Listing.Moved)
    def _moved(self, event: Listing.Moved) -> None:
        event.stop()
        self._listing.fill([not isinstance(row, str) for row in self._rows])

    def _gravest(self) -> int:
        for verdict in ("fail", "warn", "pass"):
            for place, row in enumerate(self._rows):
                if not isinstance(row, str) and row.verdict == verdict:
                    return place
        return 0

    def _draw_state(self, view: View, width: int, _height: int) -> list[Content]:
        return draw_examined(self.session.examined, view, width, view.glyphs)

    def _draw_row(self, item: int, width: int) -> list[Content]:
        names = max((len(check.name) for check in self._checks), default=0)
        here = item == self._listing.cursor
        host = self.session.host
        return draw_checkup_row(self._rows[item], width, self.session.glyphs, names=names, host=host, here=here)

    @property
    def _listing(self) -> Listing:
        return self.query_one("#checkup", Listing)
