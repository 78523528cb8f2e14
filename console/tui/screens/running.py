"""From a playbook to its run: the fault if it has one, the form if it has parameters, the question if it restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.screen import ModalScreen, Screen

from console.errors import OperatorError
from console.experiments.playbook import Playbook
from console.tui.screens.asking import ask_first, host_question, perform
from console.tui.screens.parameters import ParametersScreen
from console.tui.session import Session
from console.tui.widgets.catalogue import effect_sentences


def run_after_questions(screen: Screen[Any], session: Session, playbook: Playbook) -> None:
    """Run `playbook` once the operator has answered what must be asked; while a dialog is open, nothing."""
    if isinstance(screen.app.screen, ModalScreen):
        return
    if not playbook.valid:
        session.note("info", f"{playbook.title or playbook.id} cannot run: {playbook.faults[0]}")
        return
    try:
        session.refuse_if_read_only(f"running {playbook.title}")
    except OperatorError as error:
        session.note("failure", str(error))
        return
    if playbook.params:
        dialog = ParametersScreen(playbook, engine_names(session), session.glyphs)
        screen.app.push_screen(dialog, lambda values: _confirmed(screen, session, playbook, values))
    else:
        _confirmed(screen, session, playbook, {})


def engine_names(session: Session) -> dict[str, int | float]:
    """What bounds and estimates may ask of the engine."""
    snapshot = session.snapshot
    if snapshot is None:
        return {}
    longest = snapshot.settings.get("context_length") or (snapshot.engine and snapshot.engine.max_context)
    return {"engine.max_context": longest} if isinstance(longest, int) else {}


def _confirmed(screen: Screen[Any], session: Session, playbook: Playbook, values: Mapping[str, Any] | None) -> None:
    if values is None:
        return
    chosen = dict(values)
    engine = session.snapshot.engine if session.snapshot else None
    effects = playbook.effects_on(engine.kind if engine else None)
    if "restarts_service" not in effects:
        perform(screen, session, _shown_run(screen, session, playbook, chosen))
        return
    question = host_question(session, f"Run {playbook.title}?", effect_sentences(playbook, effects), "Run it")
    ask_first(screen, session, question, lambda: _shown_run(screen, session, playbook, chosen))


async def _shown_run(screen: Screen[Any], session: Session, playbook: Playbook, values: Mapping[str, Any]) -> None:
    """Run it, and show it wherever it was started from."""
    await screen.app.run_action("app.go('playbooks')")
    await session.run_playbook(playbook, values)
