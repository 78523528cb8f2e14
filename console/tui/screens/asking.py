"""Doing something for the operator: after a question where it interrupts, and never without saying how it ended."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from textual.screen import ModalScreen, Screen

from console.errors import OperatorError
from console.tui.screens.confirm import ConfirmScreen, Question
from console.tui.session import Session

Work = Coroutine[Any, Any, None]


def perform(screen: Screen[Any], session: Session, work: Work) -> None:
    """Do `work` on the App, so that leaving the screen does not stop it; what goes wrong becomes an event."""
    screen.app.run_worker(_reported(session, work), group="work", exit_on_error=False)


def ask_first(screen: Screen[Any], session: Session, question: Question, work: Callable[[], Work]) -> None:
    """Do `work` after a yes. While a dialog is open another press of the opening key asks nothing."""
    if isinstance(screen.app.screen, ModalScreen):
        return
    try:
        session.refuse_if_read_only(question.yes.lower())
    except OperatorError as error:
        session.note("failure", str(error))
        return

    def answered(yes: bool | None) -> None:
        if yes:
            perform(screen, session, work())

    screen.app.push_screen(ConfirmScreen(question, session.glyphs), answered)


def host_question(session: Session, title: str, consequences: Sequence[str], yes: str) -> Question:
    """A question about this host; on a production host its name must be typed."""
    tag = session.snapshot.tag if session.snapshot else None
    production = session.operations.production or (tag is not None and tag.upper().startswith("PROD"))
    return Question(title, session.host, tag, consequences, yes, typed=session.host if production else None)


async def _reported(session: Session, work: Work) -> None:
    try:
        await work
    except OperatorError as error:
        session.note("failure", str(error))
