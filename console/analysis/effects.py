"""Effects of one thing on a rate, a step time or a commit length: estimate, interval, decision, and what a design can see.

Everything is on logarithms, so that ln(tok/s) = ln C - ln S and the three effects add exactly. Student's t throughout:
a percentile bootstrap covers 81 to 91 % at the numbers of blocks that one can afford (measurement.md 2.2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

AB_DELTA = 0.02
"""Smallest effect of interest in an A/B run."""
REGRESSION_DELTA = 0.05
"""Smallest effect of interest between two runs."""
EXACT_FLIPS = 12
"""Up to so many blocks every sign flip is tried; above that 20,000 random ones."""
BLOCKS_FOR_BOOTSTRAP = 20
"""With fewer a bootstrap covers too little to check anything."""
RESAMPLES = 5000
MAX_BLOCKS = 400

Decision = Literal["faster", "slower", "equivalent", "small", "inconclusive"]


@dataclass(frozen=True)
class Effect:
    """A ratio after / before with its intervals. `freedom` counts degrees of freedom, `sd` the spread of one contrast."""

    ratio: float
    ci: tuple[float, float] | None  # 95 %
    ci90: tuple[float, float] | None
    freedom: int
    sd: float | None
    p_flip: float | None = None  # sign-flip permutation
    hodges_lehmann: float | None = None
    ci_bca: tuple[float, float] | None = None  # bootstrap, bias-corrected: from 20 blocks on

    @property
    def non_normal(self) -> bool:
        """Whether t and permutation, or t and bootstrap, contradict each other about a change at the 5 % level."""
        if self.ci is None:
            return False
        changed = _excludes_one(self.ci)
        flips = self.p_flip is not None and (self.p_flip < 0.05) is not changed
        return flips or (self.ci_bca is not None and _excludes_one(self.ci_bca) is not changed)

    def to_json(self) -> dict[str, Any]:
        """`{"ratio", "ci", "ci90", "freedom", "sd", "p_flip", "hodges_lehmann", "ci_bca"}`."""
        return {
            "ratio": self.ratio,
            "ci": None if self.ci is None else list(self.ci),
            "ci90": None if self.ci90 is None else list(self.ci90),
            "freedom": self.freedom,
            "sd": self.sd,
            "p_flip": self.p_flip,
            "hodges_lehmann": self.hodges_lehmann,
            "ci_bca": None if self.ci_bca is None else list(self.ci_bca),
        }


def _excludes_one(ci: tuple[float, float]) -> bool:
    return ci[0] > 1.0 or ci[1] < 1.0


def effect_of_blocks(contrasts: Sequence[float]) -> Effect:
    """The effect from one log-ratio a block: mean, Student's t with n - 1, and two checks that assume less.

    The unit is the block, never the request: requests of one service start share whatever that start was like.
    """
    count = len(contrasts)
    if count == 0:
        raise ValueError("no block")
    values = np.asarray(contrasts, dtype=float)
    mean = float(values.mean())
    if count < 2:
        return Effect(math.exp(mean), None, None, 0, None)
    sd = float(values.std(ddof=1))
    error = sd / math.sqrt(count)
    pairs = [(values[i] + values[j]) / 2 for i in range(count) for j in range(i, count)]
    return Effect(
        ratio=math.exp(mean),
        ci=_interval(mean, error, count - 1, 0.95),
        ci90=_interval(mean, error, count - 1, 0.90),
        freedom=count - 1,
        sd=sd,
        p_flip=sign_flip_p(contrasts),
        hodges_lehmann=math.exp(float(np.median(pairs))),
        ci_bca=_bca(values) if count >= BLOCKS_FOR_BOOTSTRAP and sd > 0 else None,
    )


def _bca(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """95 % of the ratio by the bias-corrected and accelerated bootstrap: a check on Student's t that assumes no shape."""
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    return math.exp(float(found.low)), math.exp(float(found.high))


@dataclass(frozen=True)
class Cell:
    """One combination of conditions: positive figures of the requests before and after."""

    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True)
class Spread:
    """The spread of one request's logarithm within its cell and side, and what it is worth in degrees of freedom."""

    variance: float
    freedom: int


LENT_FREEDOM = 8
"""The spread over all cells counts as so many degrees of freedom beside the own ones of the few that are looked at: four
repeats say little about their spread, and other cells on the same engine scatter much alike, if not the same."""


def spread_of_cells(cells: Sequence[Cell]) -> Spread | None:
    """The spread pooled over cells that both runs have; None without repeats."""
    squares, freedom = 0.0, 0
    for cell in cells:
        if cell.before and cell.after:
            for side in (cell.before, cell.after):
                logs = np.log(np.asarray(side, dtype=float))
                squares += float(((logs - logs.mean()) ** 2).sum())
                freedom += len(side) - 1
    return Spread(squares / freedom, freedom) if freedom else None


def effect_of_cells(cells: Sequence[Cell], *, level: float = 0.95, lent: Spread | None = None) -> Effect | None:
    """The mean log-ratio over cells measured in two separate runs; None without a cell that both runs have.

    The spread is pooled over cells: a handful of repeats each says little about its own. `level` is that of `ci`. `lent` is
    the spread over more cells than these, as far as it is worth more than their own: the two variances are weighed by
    their degrees of freedom, of which the lent one has LENT_FREEDOM at most (a moderated t, as for many small groups).
    """
    both = [cell for cell in cells if cell.before and cell.after]
    if not both:
        return None
    shifts, weights = [], 0.0
    for cell in both:
        sides = [np.log(np.asarray(side, dtype=float)) for side in (cell.before, cell.after)]
        shifts.append(float(sides[1].mean() - sides[0].mean()))
        weights += sum(1.0 / len(side) for side in sides)
    mean = math.fsum(shifts) / len(shifts)
    own = spread_of_cells(both) or Spread(0.0, 0)
    borrowed = 0 if lent is None else min(lent.freedom - own.freedom, LENT_FREEDOM)
    if lent is not None and borrowed > 0:
        freedom = own.freedom + borrowed
        own = Spread((own.freedom * own.variance + borrowed * lent.variance) / freedom, freedom)
    if own.freedom < 2:
        return Effect(math.exp(mean), None, None, own.freedom, None)
    sd = math.sqrt(own.variance)
    error = sd * math.sqrt(weights) / len(shifts)
    return Effect(
        math.exp(mean),
        _interval(mean, error, own.freedom, level),
        _interval(mean, error, own.freedom, 0.90),
        own.freedom,
        sd,
    )


def _interval(mean: float, error: float, freedom: int, level: float) -> tuple[float, float]:
    reach = float(stats.t.ppf(0.5 + level / 2, freedom)) * error
    return math.exp(mean - reach), math.exp(mean + reach)


def sign_flip_p(contrasts: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p of the mean under random signs, exact for few blocks."""
    values = np.asarray(contrasts, dtype=float)
    observed = abs(float(values.mean()))
    if len(values) <= EXACT_FLIPS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
    else:
        signs = np.random.default_rng(seed).choice((1.0, -1.0), size=(20_000, len(values)))
    means = np.abs(signs @ values) / len(values)
    return float(np.mean(means >= observed * (1 - 1e-12)))


def decide(rate: Effect, delta: float = AB_DELTA) -> Decision:
    """What the effect on a rate amounts to, with `delta` the smallest effect of interest (measurement.md 2.3, 4)."""
    if rate.ci is None or rate.ci90 is None:
        return "inconclusive"
    band = 1.0 + delta
    if rate.ci[0] > band:
        return "faster"
    if rate.ci[1] < 1.0 / band:
        return "slower"
    if 1.0 / band < rate.ci90[0] and rate.ci90[1] < band:
        return "equivalent"
    return "small" if rate.ci[0] > 1.0 or rate.ci[1] < 1.0 else "inconclusive"


def minimum_detectable_effect(sd: float, blocks: int, *, power: float = 0.8, alpha: float = 0.05) -> float | None:
    """The smallest relative effect that `blocks` blocks show with that power, two-sided; None below two blocks."""
    if blocks < 2:
        return None
    freedom = blocks - 1
    reach = float(stats.t.ppf(1 - alpha / 2, freedom) + stats.t.ppf(power, freedom))
    return math.expm1(reach * sd / math.sqrt(blocks))


def blocks_needed(sd: float, delta: float = AB_DELTA, *, power: float = 0.8, alpha: float = 0.05) -> int:
    """Blocks after which an effect of `delta` would be seen: the normal formula, iterated for the degrees of freedom."""
    target = math.log1p(delta)
    count = 3
    while count < MAX_BLOCKS:
        reach = float(stats.t.ppf(1 - alpha / 2, count - 1) + stats.t.ppf(power, count - 1))
        if reach * sd / math.sqrt(count) <= target:
            return count
        count += 1
    return MAX_BLOCKS


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values (Holm), in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
