"""The result of a run: its end as the box tells it, its verdict as the analysis gives it. A function of events and exit."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.analysis.groups import groups_of
from console.analysis.judges import judge_run
from console.analysis.judges.facts import RunFacts
from console.analysis.run_verdict import exit_code_of
from console.errors import ExitCode
from console.experiments.conditions import changes_since
from console.experiments.events import EventReader
from console.experiments.follow import Ending
from console.experiments.reading import COMMON, environment_of, first_of, sample_rows

_STATUS_OF_REASON = {"cancelled": "cancelled", "deadline": "deadline", "terminated": "terminated", "busy": "busy"}
_EXIT_OF_STATUS = {"cancelled": 130, "deadline": 124, "terminated": 143, "lost": 1, "truncated": 1, "incomplete": 1}


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `exit` is the exit status of `ddtree run`: the script's own, or the verdict's when it was done."""

    status: str
    exit: int
    signal: str | None
    message: str | None


def outcome_of(events: Sequence[Mapping[str, Any]], reader: EventReader, ending: Ending) -> Outcome:
    """What the run's own end, its numbering and exit.json say together, the worst word first.

    Absence of `end` is a truncated run, never inferred from quiet; a gap in the numbers is an incomplete one.
    """
    ended = ending.exit or {}
    last = next((event for event in reversed(events) if event.get("type") == "end"), None)
    error = next((event for event in reversed(events) if event.get("type") == "error"), None)
    message = None if error is None else str(error.get("msg"))
    name, code = ended.get("signal"), ended.get("code")
    if ending.state == "lost":
        status, message = "lost", message or "the script and its runner are gone, and neither said why"
    elif ended.get("reason") in _STATUS_OF_REASON:
        status = _STATUS_OF_REASON[ended["reason"]]
        if status == "busy":
            message = f"another run has the engine: {ended.get('holder', 'unknown')}"
    elif name is not None:
        status, message = "killed", message or f"the script was ended by {name}"
    elif last is None:
        status, message = "truncated", message or f"the script ended with status {code} and no end event"
    elif reader.gaps:
        status, message = "incomplete", f"{len(reader.gaps)} events are missing, the first is number {reader.gaps[0]}"
    else:
        status = str(last.get("status", "done"))
    return Outcome(status, _exit_of(status, code, name), name, message)


def _exit_of(status: str, code: int | None, name: str | None) -> int:
    if status in _EXIT_OF_STATUS and (code in (0, None) or status in ("cancelled", "deadline", "terminated")):
        return _EXIT_OF_STATUS[status]
    if code is not None:
        return int(code)
    return 128 + signal.Signals[name].value if name else 1


def result_event(
    run_id: str, playbook_id: str, events: Sequence[Mapping[str, Any]], reader: EventReader, ending: Ending
) -> dict[str, Any]:
    """The last event of every run: `{"type": "result", "run_id", "playbook", "status", "exit", "verdict", "fit", "levels",
    "groups", "summary", "message"}`; `groups` are the arms or kinds of a run that has no levels of its own. A run that did not end well has no verdict, whatever it measured before."""
    outcome = outcome_of(events, reader, ending)
    summary = next((event.get("stats") for event in reversed(events) if event.get("type") == "summary"), None)
    judged = judge(playbook_id, events) if outcome.status in ("done", "failed_check", "inconclusive") else None
    verdict = _void(events, outcome) if outcome.status == "void" else None
    exit_status = outcome.exit
    if judged is not None:
        verdict = {name: value for name, value in judged.items() if name not in ("fit", "levels")}
        exit_status = int(exit_code_of(str(judged["class"]))) if outcome.exit == ExitCode.DONE else outcome.exit
    levels = judged.get("levels") or [] if judged else []
    return {
        "type": "result",
        "run_id": run_id,
        "playbook": playbook_id,
        "status": outcome.status,
        "exit": exit_status,
        "signal": outcome.signal,
        "message": outcome.message,
        "verdict": verdict,
        "fit": judged.get("fit") if judged else None,
        "levels": levels,
        "groups": groups_of(sample_rows(events)) if judged is not None and not levels else [],
        "summary": summary,
    }


def _void(events: Sequence[Mapping[str, Any]], outcome: Outcome) -> dict[str, Any]:
    """The verdict of a run that the script itself found contaminated."""
    error: Mapping[str, Any] = next((event for event in reversed(events) if event.get("type") == "error"), {})
    return {
        "class": f"void:{error.get('code', 'contaminated')}",
        "headline": outcome.message or "the run was contaminated",
        "factors": None,
        "warnings": [],
        "next": "mend the cause and run again",
    }


def judge(playbook_id: str, events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The script's own verdict where it gave one, else the analysis of its samples; None where it has neither."""
    own = next((event for event in reversed(events) if event.get("type") == "verdict"), None)
    if own is not None:
        return {name: value for name, value in own.items() if name not in COMMON}
    if not any(event.get("type") == "sample" for event in events):
        return None
    hello = first_of(events, "hello")
    reference = first_of(events, "reference") or None
    return judge_run(
        RunFacts(
            playbook_id,
            sample_rows(events),
            environment_of(events),
            hello.get("params") or {},
            first_of(reversed(events), "summary").get("stats") or {},
            reference,
            () if reference is None else changes_since(reference, playbook_id, events),
        )
    )
