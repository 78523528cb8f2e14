"""A settings change on screen: the plan before, the phases during, the outcome after."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.content import Content

from console.deployment.change import ChangePlan, Generation, InFlight, Outcome, Phase, Stray
from console.tui.change_progress import ChangeProgress
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import BAD, GOOD, KEY, PLAIN, QUIET, STRONG, WARN
from console.tui.words import byte_size, count_of, day_and_clock, duration

_PLAN_WORDS = {
    "staged": "written beside the old file",
    "armed": "the box has taken over",
    "checking": "the engine reads the new settings",
    "clearing": "ending a process in the way",
    "draining": "waiting for requests to end",
    "stopping": "stopping the engine",
    "loading": "starting with the new settings",
    "ready": "a token was generated",
    "probe": "settings read back, test completion",
    "soak": "watching that it stays up",
    "waiting": "waiting for somebody to confirm",
    "confirmed": "in force",
    "rolling_back": "going back to the old settings",
    "rolled_back": "the old settings serve again",
    "rollback_failed": "the old settings do not start either",
}


def draw_plan(plan: ChangePlan, width: int, glyphs: Glyphs) -> list[Content]:
    """Diff, capacity arithmetic, warnings, and what is interrupted."""
    lines = [_heading("change")]
    if not plan.differences:
        lines += _wrapped("nothing: these settings are in the file already", width, glyphs, QUIET)
    for one in plan.differences:
        old, new = (shown(_text(value), glyphs) for value in (one.old, one.new))
        lines.append(
            Content.assemble(
                (f"   {one.name}  ", PLAIN), (old, QUIET), (f" {glyphs.arrow} ", QUIET), (new, f"bold {WARN}")
            )
        )
    if plan.capacity:
        lines.append(_heading("capacity"))
        for line in plan.capacity:
            lines += _wrapped(line, width, glyphs, PLAIN)
    for warning in plan.warnings:
        lines += _wrapped(f"{glyphs.warn} {warning}", width, glyphs, WARN)
    if plan.differences:
        lines += _wrapped(consequence(plan), width, glyphs, QUIET)
        lines.append(Content.assemble(("   ctrl+s", KEY), (" applies it, after a question", QUIET)))
    return lines


def consequence(plan: ChangePlan, on_in_flight: InFlight = "abort") -> str:
    """What applying it interrupts, in a sentence."""
    if not plan.restarts:
        return "Nothing restarts."
    if plan.requests_in_flight == 0:
        return "The engine restarts; no request is in flight."
    if on_in_flight == "wait":
        return "The engine restarts once no request runs; if they do not end in time, nothing is changed."
    if plan.requests_in_flight is None:
        return "The engine restarts; whether requests are in flight is not known."
    return f"The engine restarts; {count_of(plan.requests_in_flight, 'request')} in flight will be cut off."


def stray_words(stray: Stray) -> str:
    """`process 4321 (python -m engine serve) holds port 8765 and 3.2 GB`, for a process that is in the way."""
    port = f"port {stray.port} and " if stray.port is not None else ""
    gpu = f" and {byte_size(stray.gpu_bytes)} of GPU memory" if stray.gpu_bytes else ""
    holds = f"{port}{byte_size(stray.memory_bytes)}{gpu}"
    return f"process {stray.pid} ({stray.command or 'no command line'}) holds {holds}"


def draw_fault(text: str, width: int, glyphs: Glyphs) -> list[Content]:
    """Why the form cannot be applied."""
    return [_heading("cannot be applied"), *_wrapped(f"{glyphs.no} {text}", width, glyphs, BAD)]


def draw_progress(change: ChangeProgress, now_s: float, width: int, glyphs: Glyphs) -> list[Content]:
    """What it is at, or how it ended, then every phase with the time it was reached: the first row is always seen."""
    if change.outcome is None and change.waits:
        lines = [_countdown(change, now_s, glyphs)]
        lines += _wrapped("without a word it goes back by itself, this console or not", width, glyphs, QUIET)
    elif change.outcome is None:
        at = _phase_words(change.phases[-1]) if change.phases else "asking the box"
        whose = f"{change.who} applies, watched" if change.who else "applying"
        took = f"{shown(whose, glyphs)} for {duration(now_s - change.started_s)}"
        lines = [
            Content.assemble((f" {glyphs.pointer} {took}: ", f"bold {WARN}"), (shown(at, glyphs), PLAIN)),
            Content.styled("   leaving this screen, or the console, does not stop it", QUIET),
        ]
    else:
        lines = draw_outcome(change.outcome, width, glyphs)
    for index, phase in enumerate(change.phases):
        running = change.outcome is None and index == len(change.phases) - 1
        lines += _phase(phase, running, width, glyphs)
    return lines


def _countdown(change: ChangeProgress, now_s: float, glyphs: Glyphs) -> Content:
    """What the operator has to do now, and for how long it can be done."""
    if change.word is not None:
        return Content.styled(f" {glyphs.pointer} {change.word} is on its way to the box", f"bold {WARN}")
    left_s = change.left_s(now_s)
    if left_s == 0.0:
        return Content.styled(f" {glyphs.pointer} The time is up: the box decides now", f"bold {WARN}")
    rest = "" if left_s is None else f"{duration(left_s)} left: "
    return Content.assemble(
        (f" {glyphs.pointer} {rest}", f"bold {WARN}"), ("c", KEY), (" keeps the new settings, ", STRONG), ("v", KEY),
        (" reverts", STRONG),
    )  # fmt: skip


def draw_outcome(outcome: Outcome, width: int, glyphs: Glyphs) -> list[Content]:
    """The outcome card: how it ended, why, and what is in force."""
    good = outcome.status == "confirmed"
    words = {
        "confirmed": "Confirmed: the new settings are in force.",
        "rejected": "Refused before anything was touched.",
        "base_changed": "Somebody else changed the settings in between; nothing was done.",
        "busy": "Another change is on its way; nothing was done.",
        "rolled_back": "Rolled back: the old settings serve again.",
        "rollback_failed": "Rollback failed: neither the new nor the old settings serve.",
        "unknown": "Not known yet: the link was lost. The box knows; history tells after a reconnect.",
    }[outcome.status]
    mark = glyphs.yes if good else glyphs.no
    lines = [Content.styled(f" {mark} {words}", f"bold {GOOD}" if good else BAD)]
    if outcome.generation is not None:
        lines[0] = lines[0].append(Content.styled(f"   generation {outcome.generation}", QUIET))
    if outcome.reason:
        lines += _wrapped(outcome.reason, width, glyphs, PLAIN)
    return lines


def draw_generation(
    one: Generation, width: int, glyphs: Glyphs, *, here: bool = False, whole: bool = False
) -> list[Content]:
    """A line of the history, marked where the cursor is; `whole` adds every difference on a line of its own."""
    fine = one.outcome in ("confirmed", "installed", "current")
    changed = ", ".join(f"{d.name} {_text(d.old)} {glyphs.arrow} {_text(d.new)}" for d in one.differences)
    line = Content.assemble(
        (f" {glyphs.pointer if here else ' '} ", KEY),
        (f"{one.number:>4}  ", PLAIN),
        (f"{shown(day_and_clock(one.when), glyphs)}  ", QUIET),
        (f"{shown(one.who, glyphs):<16} ", QUIET),
        (f"{shown(one.outcome.replace('_', ' '), glyphs):<12} ", GOOD if fine else WARN),
        (
            shown(changed or ("the first settings" if one.number == 0 else "no difference"), glyphs),
            PLAIN if changed else QUIET,
        ),
    )
    if not whole:
        return [line]
    details = [
        Content.assemble(
            (f"         {d.name}  ", PLAIN), (shown(_text(d.old), glyphs), QUIET), (f" {glyphs.arrow} ", QUIET),
            (shown(_text(d.new), glyphs), STRONG),
        )
        for d in one.differences
    ]  # fmt: skip
    return [line, *details]


def changes_back_to(history: Sequence[Generation], number: int) -> dict[str, str]:
    """The changes that undo every generation after `number`: leaf name -> the value it had then."""
    changes: dict[str, str] = {}
    for one in sorted(history, key=lambda generation: -generation.number):
        if one.number <= number:
            break
        if one.outcome == "confirmed":  # a generation that was rolled back has changed nothing
            changes.update({d.name: _text(d.old, empty="") for d in one.differences})
    return changes


def _phase(phase: Phase, running: bool, width: int, glyphs: Glyphs) -> list[Content]:
    bad = phase.name in ("rolling_back", "rolled_back", "rollback_failed", "base_changed", "busy", "rejected")
    mark = glyphs.pointer if running else glyphs.no if bad else glyphs.yes
    tone = WARN if running or bad else GOOD
    return [
        Content.assemble(
            (f" {mark} ", tone),
            (f"{phase.name.replace('_', ' '):<13}", PLAIN),
            (f"{phase.elapsed_s:>7.1f} s  ", QUIET),
            (shown(_phase_words(phase), glyphs), QUIET),
        )
    ]


def _phase_words(phase: Phase) -> str:
    return phase.text or _PLAN_WORDS.get(phase.name, phase.name.replace("_", " "))


def _heading(text: str) -> Content:
    return Content.styled(f" {text}", QUIET)


def _wrapped(text: str, width: int, glyphs: Glyphs, tone: str) -> list[Content]:
    lines = textwrap.wrap(shown(text, glyphs), max(20, width - 4)) or []
    return [Content.styled(f"   {line}", tone) for line in lines]


def _text(value: object, empty: str = "(empty)") -> str:
    if value is None or value == "":
        return empty
    return str(value).lower() if isinstance(value, bool) else str(value)
