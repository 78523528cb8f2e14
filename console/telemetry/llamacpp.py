"""llama.cpp's server log -> Sample, one a finished request (facts/measurement.md 6.3).

`print_timing` writes a block: a head, prompt, eval and total lines, then with speculation a line of draft counts. Steps
are not printed, but every step emits one token that no draft gave: steps = tokens - accepted drafts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from console.telemetry.reader import Losses, Reading, from_json, number, whole
from console.telemetry.sample import Sample

ENGINE = "llamacpp"

_STAMP = r"(?:\d+\.\d+\.\d+\.\d+ [A-Z] )?"  # newer builds: time since start, and a level
_HEAD = re.compile(rf"{_STAMP}slot print_timing: id +([0-9]{{1,15}}) \| task +([0-9]{{1,15}}) \| *")
_TIMING = re.compile(
    r" *(prompt eval|eval|total) time = +([0-9]{1,15}(?:\.[0-9]+)?) ms / +([0-9]{1,15}) tokens"
    r"(?: \( *[\d.]+ ms per token, +[\d.]+ tokens per second\))?"
)
_DRAFT = re.compile(
    r"draft acceptance(?: rate)? = +([0-9]{1,15}(?:\.[0-9]+)?) \( *([0-9]{1,15}) accepted / +([0-9]{1,15}) generated\)"
    r"(?:, mean acceptance length = +([0-9]{1,15}(?:\.[0-9]+)?))?"
    r"(?:, acceptance rate per position = \(([0-9]\.[0-9]+(?:, [0-9]\.[0-9]+)*)\))?"
)
_GRAPHS = re.compile(r"graphs reused = +\d+")
_TIMINGS = re.compile(r'"timings": (\{.*\})')


@dataclass(frozen=True)
class _Draft:
    """The draft counts of one request."""

    accepted: int
    generated: int
    mean_length: float | None = None  # drafted steps only
    per_position: tuple[float, ...] = ()


@dataclass
class _Block:
    """The request whose lines are being read."""

    time: str | None
    slot: int | None = None
    task: int | None = None
    prompt_tokens: int | None = None
    prompt_ms: float | None = None
    tokens: int | None = None
    wall_ms: float | None = None
    total_ms: float | None = None

    def note(self, what: str, ms: float, tokens: int) -> None:
        """Take in one timing line."""
        if what == "prompt eval":
            self.prompt_ms, self.prompt_tokens = ms, tokens
        elif what == "eval":
            self.wall_ms, self.tokens = ms, tokens
        else:
            self.total_ms = ms


class LlamaCppReader:
    """Gathers a request's lines into one Sample; the line after a block tells whether it had drafts."""

    engine = ENGINE

    def __init__(self) -> None:
        self._open: _Block | None = None
        self._losses = Losses()

    def read(self, message: str, time: str | None) -> Reading:
        """What the line is to the block being read. A line outside the block completes it."""
        reading = self._read(message, time)
        return Reading(reading.taken, tuple(map(self._losses.mark, reading.samples))) if reading.samples else reading

    def lost(self, why: str) -> None:
        """See console.telemetry.reader.LogReader. Half a block says nothing that can be trusted."""
        self._open = None
        self._losses.add(why)

    def _read(self, message: str, time: str | None) -> Reading:
        answer = _answer(message, time)
        if answer is not None:
            return Reading(True, (*self.finish(), answer))
        head = _HEAD.match(message)
        text = message[head.end() :].strip() if head else message.strip()
        task = int(head[2]) if head else None
        done = self._finish_other_than(task)
        timing, draft = _TIMING.fullmatch(text), _DRAFT.fullmatch(text)
        if draft:
            block, self._open = self._open or _Block(time, _slot(head), task), None
            return Reading(True, (*done, _request(block, _draft_of(draft))))
        if timing:
            if timing[1] == "prompt eval" and self._open is not None and self._open.prompt_ms is not None:
                done += self.finish()
            block = self._open = self._open or _Block(time, _slot(head), task)
            block.note(timing[1], float(timing[2]), int(timing[3]))
            return Reading(True, done)
        if head and not text:
            done += self.finish()
            self._open = _Block(time, _slot(head), task)
            return Reading(True, done)
        if _GRAPHS.fullmatch(text) and self._open is not None:
            return Reading(True, done)
        return Reading(False, (*done, *self.finish()))

    def _finish_other_than(self, task: int | None) -> tuple[Sample, ...]:
        if task is None or self._open is None or self._open.task in (None, task):
            return ()
        return self.finish()

    def finish(self) -> tuple[Sample, ...]:
        """The request whose block is still open: it had no drafts."""
        block, self._open = self._open, None
        return () if block is None or block.tokens is None else (_request(block, None),)


def _request(block: _Block, draft: _Draft | None) -> Sample:
    notes = []
    steps = commit = step_ms = tok_s = rate = None
    extra: dict[str, Any] = {
        key: value
        for key, value in {
            "slot": block.slot,
            "task": block.task,
            "prompt_tokens": block.prompt_tokens,
            "prompt_ms": block.prompt_ms,
            "total_ms": block.total_ms,
        }.items()
        if value is not None
    }
    if draft is None:
        notes.append("commit_length, step_ms: no draft counts (speculation off)")
    else:
        extra |= {"accepted": draft.accepted, "drafted": draft.generated}
        if draft.mean_length is not None:
            extra["mean_acceptance_length"] = draft.mean_length  # llama.cpp's own: drafted steps only
        if draft.per_position:
            extra["acceptance_per_position"] = list(draft.per_position)
        if draft.generated:
            rate = draft.accepted / draft.generated
    if block.tokens is None:
        notes.append("tokens, steps, tok_s: the lines with the request's times are missing")
        commit = draft.mean_length if draft else None
        if commit is not None:
            notes.append("commit_length: steps that drafted only")
    else:
        if draft is not None and draft.accepted < block.tokens:
            steps = block.tokens - draft.accepted
            commit = block.tokens / steps
        if block.wall_ms:
            tok_s = 1000.0 * block.tokens / block.wall_ms
            step_ms = block.wall_ms / steps if steps else None
    return Sample(
        "request",
        ENGINE,
        block.time,
        tokens=block.tokens,
        steps=steps,
        commit_length=commit,
        step_ms=step_ms,
        tok_s=tok_s,
        accept_rate=rate,
        extra=extra,
        notes=tuple(notes),
    )


def _slot(head: re.Match[str] | None) -> int | None:
    return int(head[1]) if head else None


def _draft_of(match: re.Match[str]) -> _Draft:
    positions = tuple(float(part) for part in match[5].split(", ")) if match[5] else ()
    return _Draft(int(match[2]), int(match[3]), float(match[4]) if match[4] else None, positions)


def _answer(message: str, time: str | None) -> Sample | None:
    """A completion's `timings` object, whole or as the `"timings": {…}` fragment of it."""
    text = message.strip()
    fragment = _TIMINGS.fullmatch(text)
    if fragment is None and not (text.startswith("{") and '"timings"' in text):
        return None
    try:
        value = from_json(fragment[1] if fragment else text)
    except ValueError:
        return None
    timings = value if fragment else value.get("timings")
    if not isinstance(timings, dict) or whole(timings.get("predicted_n")) is None:
        return None
    block = _Block(
        time,
        prompt_tokens=whole(timings.get("prompt_n")),
        prompt_ms=number(timings.get("prompt_ms")),
        tokens=timings["predicted_n"],
        wall_ms=number(timings.get("predicted_ms")),
    )
    accepted, generated = whole(timings.get("draft_n_accepted")), whole(timings.get("draft_n"))
    draft = _Draft(accepted, generated) if accepted is not None and generated is not None else None
    return _request(block, draft)
