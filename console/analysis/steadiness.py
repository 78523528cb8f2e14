"""What a sweep's requests show of the machine along the run: drift, warm-up left in them, clocks, figures that stand out.

All of it is told as warnings beside the verdict; nothing is left out or corrected for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from console.analysis.drift import adjusted_step_ms, clock_effect, outliers, steady_from, trend
from console.analysis.step_fit import StepFit
from console.analysis.verdicts import Caution

Row = Mapping[str, Any]
SLOW_START = 0.05
"""A first request slower than the rest by less than this is no warm-up worth a word."""


SLOWED = math.log(1.15)
SLOWED_SHARE = 0.1
"""From this share of slowed requests on, a run is said to be unsteady."""


def steadiness(rows: Sequence[Row], fit: StepFit) -> list[Caution]:
    """Warnings about how still the machine held; `rows` in the order in which they were measured, all with steps."""
    steps = [1000.0 * row["decode_s"] / row["steps"] for row in rows]
    residuals = [math.log(step / fit.at(_context(row))) for step, row in zip(steps, rows, strict=True)]
    found = [_drift(residuals), _warm_up(residuals), _clocks(rows, steps, residuals), _outliers(residuals)]
    return [caution for caution in found if caution is not None]


def unsteady(rows: Sequence[Row], whose: str = "") -> list[Caution]:
    """A warning where many requests were slower than the faster half of the same work: others used the box for a while.

    Nothing is left out for it. `rows` have steps and decode time; `whose` goes before the words.
    """
    cells: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        work = row.get("kind"), row.get("level"), row.get("arm")
        cells.setdefault(work, []).append(math.log(row["decode_s"] / row["steps"]))
    slowed = 0
    for logs in cells.values():
        half = sorted(logs)[: (len(logs) + 1) // 2]
        slowed += sum(one > sum(half) / len(half) + SLOWED for one in logs)
    if slowed < SLOWED_SHARE * len(rows):
        return []
    words = f"{slowed} of {len(rows)} requests had steps over {100 * math.expm1(SLOWED):.0f} % slower than the same work's faster half"
    return [Caution("unsteady", f"{whose}{words}: something else used the box for a while")] if slowed else []


def _context(row: Row) -> float:
    return float(row["ctx_mid"]) if row.get("ctx_mid") is not None else row["P"] + row["N"] / 2.0


def _drift(residuals: Sequence[float]) -> Caution | None:
    found = trend(residuals)
    if found is None or not found.drifts:
        return None
    word = "rises" if found.tau > 0 else "falls"
    return Caution(
        "drift", f"step time {word} along the run beyond what context explains (tau {found.tau:+.2f}, p {found.p:.2g})"
    )


def _warm_up(residuals: Sequence[float]) -> Caution | None:
    cut = steady_from(residuals)
    if not cut or len(residuals) < 8:
        return None
    slower = sum(residuals[:cut]) / cut - sum(residuals[cut:]) / (len(residuals) - cut)
    if slower < SLOW_START:
        return None
    return Caution(
        "warm_up", f"the first {cut} requests are slower than the rest by {100 * math.expm1(slower):.0f} %: warming up"
    )


def _clocks(rows: Sequence[Row], steps: Sequence[float], residuals: Sequence[float]) -> Caution | None:
    clocks = [row.get("clock_mhz") for row in rows]
    if not all(clocks):
        return None
    known = [float(clock) for clock in clocks if clock]
    effect = clock_effect([math.exp(one) for one in residuals], known)
    if effect is None or not effect.matters:
        return None
    slowest = min(range(len(known)), key=lambda i: known[i])
    adjusted = adjusted_step_ms(steps[slowest], known[slowest], max(known), effect)
    return Caution(
        "clocks",
        f"step time follows the GPU clock, which ranged over {100 * effect.spread:.0f} %: at {known[slowest]:.0f} MHz "
        f"{steps[slowest]:.1f} ms, which the highest clock would have made {adjusted:.1f}",
    )


def _outliers(residuals: Sequence[float]) -> Caution | None:
    places = outliers(residuals)
    if not places:
        return None
    return Caution(
        "outliers",
        f"{len(places)} of {len(residuals)} step times stand out for no cause that was seen; they count all the same",
    )
