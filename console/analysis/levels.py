"""Levels of a sweep: ratios of sums over the requests of each, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from console.analysis.statistics import BOOTSTRAP_MIN_REQUESTS, ratio_interval, ratio_of_sums
from console.analysis.step_fit import StepPoint, mean_square_context

MIN_POOLED_FREEDOM = 4
"""Degrees of freedom needed before the spread is pooled over levels."""


@dataclass(frozen=True)
class Level:
    """One level of a sweep: ratios of sums over its requests, with 95 % intervals (None where not measurable)."""

    value: float
    requests: int
    context: float
    tokens: float
    steps: float
    decode_s: float
    commit_length: float
    step_ms: float
    tok_s: float
    commit_length_ci: tuple[float, float] | None
    step_ms_ci: tuple[float, float] | None
    tok_s_ci: tuple[float, float] | None
    ttft_s: float | None

    def to_json(self) -> dict[str, Any]:
        """One entry of the result's `levels`."""
        return {
            "level": self.value,
            "requests": self.requests,
            "context": self.context,
            "tokens": self.tokens,
            "steps": self.steps,
            "commit_length": self.commit_length,
            "commit_length_ci": None if self.commit_length_ci is None else list(self.commit_length_ci),
            "step_ms": self.step_ms,
            "step_ms_ci": None if self.step_ms_ci is None else list(self.step_ms_ci),
            "tok_s": self.tok_s,
            "tok_s_ci": None if self.tok_s_ci is None else list(self.tok_s_ci),
            "ttft_s": self.ttft_s,
        }


Rows = Sequence[Mapping[str, Any]]


def levels_of(rows: Rows, among: Sequence[Rows] = ()) -> list[Level]:
    """One Level a planned value, lowest first. Every row has steps, tokens and decode time.

    `among` are other requests of the same run, a group each, whose levels lend their spread.
    """
    ordered = _by_level(rows)
    groups = [group for others in (among or (rows,)) for _, group in _by_level(others)]
    spread = {
        "commit": _pooled_spread([[r["N"] / r["steps"] for r in group] for group in groups]),
        "step": _pooled_spread([[r["decode_s"] / r["steps"] for r in group] for group in groups]),
        "rate": _pooled_spread([[r["N"] / r["decode_s"] for r in group] for group in groups]),
    }
    return [_level(value, group, spread) for value, group in ordered]


def _by_level(rows: Rows) -> list[tuple[float, Rows]]:
    groups: dict[float, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(float(row["level"] if row.get("level") is not None else row["P"]), []).append(row)
    return sorted(groups.items(), key=lambda item: item[0])


def _pooled_spread(groups: Sequence[Sequence[float]]) -> tuple[float, int] | None:
    """(standard deviation of the logarithm, degrees of freedom) pooled over levels; None if too few repeats.

    A handful of repeats a level says little about its spread; the relative spread of the machine is one figure.
    """
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < MIN_POOLED_FREEDOM:
        return None
    squares = 0.0
    for group in groups:
        logs = [math.log(v) for v in group]
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((v - mean) ** 2 for v in logs)
    return math.sqrt(squares / freedom), freedom


def _interval(
    above: Sequence[float], below: Sequence[float], spread: tuple[float, int] | None
) -> tuple[float, float] | None:
    ratio = ratio_of_sums(above, below)
    if ratio is None:
        return None
    if spread is None or len(above) >= BOOTSTRAP_MIN_REQUESTS:
        return ratio_interval(above, below)
    sigma, freedom = spread
    reach = math.exp(float(stats.t.ppf(0.975, freedom)) * sigma / math.sqrt(len(above)))
    return ratio / reach, ratio * reach


def _commit_interval(
    tokens: Sequence[float], steps: Sequence[float], spread: tuple[float, int] | None
) -> tuple[float, float] | None:
    """As any, but a step commits one token at least; and where no step committed more there is nothing to vary."""
    if tokens == steps and len(steps) > 1:
        return 1.0, 1.0
    found = _interval(tokens, steps, spread)
    return None if found is None else (max(found[0], min(1.0, math.fsum(tokens) / math.fsum(steps))), found[1])


def _level(value: float, rows: Sequence[Mapping[str, Any]], spread: Mapping[str, tuple[float, int] | None]) -> Level:
    tokens, steps = [float(r["N"]) for r in rows], [float(r["steps"]) for r in rows]
    seconds = [float(r["decode_s"]) for r in rows]
    milliseconds = [s * 1000.0 for s in seconds]
    waits = [float(r["ttft_s"]) for r in rows if r.get("ttft_s") is not None]
    all_steps = math.fsum(steps)
    return Level(
        value=value,
        requests=len(rows),
        context=math.fsum(_context(r) * s for r, s in zip(rows, steps, strict=True)) / all_steps,
        tokens=math.fsum(tokens),
        steps=all_steps,
        decode_s=math.fsum(seconds),
        commit_length=math.fsum(tokens) / all_steps,
        step_ms=math.fsum(milliseconds) / all_steps,
        tok_s=math.fsum(tokens) / math.fsum(seconds),
        commit_length_ci=_commit_interval(tokens, steps, spread["commit"]),
        step_ms_ci=_interval(milliseconds, steps, spread["step"]),
        tok_s_ci=_interval(tokens, seconds, spread["rate"]),
        ttft_s=math.fsum(waits) / len(waits) if waits else None,
    )


def _context(row: Mapping[str, Any]) -> float:
    return float(row["ctx_mid"]) if row.get("ctx_mid") is not None else row["P"] + row["N"] / 2.0


def step_point(row: Mapping[str, Any]) -> StepPoint:
    """A request as a point of the step-time curve."""
    square = mean_square_context(row["P"], row["N"]) if row.get("P") is not None else None
    return StepPoint(_context(row), row["decode_s"] / row["steps"] * 1000.0, float(row["steps"]), square)
