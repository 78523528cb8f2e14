"""RunFacts: what a judge looks at, taken from a run's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from console.analysis.levels import Level
from console.analysis.run_verdict import report
from console.analysis.screening import screen, void_reason, void_words
from console.analysis.verdicts import Caution

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunFacts:
    """One run: the requests that count, the engine as it was, what the playbook was asked and what it summed up."""

    playbook: str
    rows: Sequence[Row]
    env: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] | None = None  # the golden run that the playbook was given
    changes: Sequence[object] = ()  # conditions that differ from the golden run's, each as `key: before -> after`


@dataclass(frozen=True)
class Screened:
    """Requests that may be judged, or the verdict where they may not."""

    rows: Sequence[Row]
    cautions: list[Caution]
    ended: dict[str, Any] | None = None


def screened(facts: RunFacts, *, loops_count: bool = False) -> Screened:
    """The usable requests. `loops_count`: repetition is no reason to leave a request out (nothing is timed)."""
    rows = [{**row, "distinct2": None, "top1": None, "loop": None} for row in facts.rows] if loops_count else facts.rows
    kept, cautions = screen(rows)
    void = void_reason(rows, kept)
    if void is not None:
        words = void_words(void, rows, kept)
        return Screened(
            [], cautions, report(f"void:{void}", words, None, None, [], cautions, "mend the cause and run again")
        )
    if any(not row.get("steps") or not row.get("decode_s") or not row.get("N") for row in kept):
        return Screened([], cautions, inconclusive("the engine gave no exact step count", cautions))
    return Screened(kept, cautions)


def inconclusive(
    words: str, cautions: Sequence[Caution] = (), following: str = "run it again with more repeats"
) -> dict[str, Any]:
    """The verdict where nothing can be said, and why."""
    return report("inconclusive", words, None, None, [], cautions, following)


def verdict(
    klass: str, headline: str, cautions: Sequence[Caution], following: str, *, levels: Sequence[Level] = (), **more: Any
) -> dict[str, Any]:
    """A verdict without fit and factors, with what else the judge found."""
    return {**report(klass, headline, None, None, levels, cautions, following), **more}


def total(rows: Sequence[Row], name: str) -> float:
    """The sum of one figure."""
    return float(sum(row[name] for row in rows))


def commit_of(rows: Sequence[Row]) -> float:
    """Commit length of several requests, a ratio of sums."""
    return total(rows, "N") / total(rows, "steps")


def step_ms_of(rows: Sequence[Row]) -> float:
    """Step time of several requests in ms, a ratio of sums."""
    return 1000.0 * total(rows, "decode_s") / total(rows, "steps")


def rate_of(rows: Sequence[Row]) -> float:
    """Tokens a second of several requests, a ratio of sums."""
    return total(rows, "N") / total(rows, "decode_s")


def rates(rows: Sequence[Row]) -> tuple[float, ...]:
    """Each request's rate."""
    return tuple(float(row["N"] / row["decode_s"]) for row in rows)
