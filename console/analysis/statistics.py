"""Intervals for the figures of a run. Commit length, step time and rate are ratios of sums, so their intervals are too."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

BOOTSTRAP_MIN_REQUESTS = 12
"""Below this a percentile bootstrap covers too little; the delta method with Student's t is used instead."""
WIDEST = math.log(1e6)
"""An interval that reaches further says no less than that nothing is known."""


def ratio_of_sums(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """sum(numerators) / sum(denominators), the only mean that keeps tok/s = commit length / step time; None if empty."""
    below = math.fsum(denominators)
    return math.fsum(numerators) / below if below > 0 else None


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], *, level: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """Confidence interval of a ratio of sums over requests, which are the independent units; None below two.

    Twelve requests or more: cluster bootstrap with 5,000 resamples. Fewer: delta method on the logarithm,
    var = n/(n-1) * sum((y - R x)^2) / (R sum x)^2, with Student's t, so that a rate is never below zero.
    """
    count = len(numerators)
    ratio = ratio_of_sums(numerators, denominators)
    if count < 2 or ratio is None:
        return None
    y, x = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if count >= BOOTSTRAP_MIN_REQUESTS:
        picks = np.random.default_rng(seed).integers(0, count, size=(5000, count))
        resampled = y[picks].sum(axis=1) / x[picks].sum(axis=1)
        tail = (1.0 - level) / 2.0
        low, high = np.quantile(resampled, [tail, 1.0 - tail])
        return float(low), float(high)
    variance = count / (count - 1) * float(np.sum((y - ratio * x) ** 2)) / float(x.sum()) ** 2
    if ratio <= 0:
        return None
    reach = math.exp(min(float(stats.t.ppf(0.5 + level / 2.0, count - 1)) * math.sqrt(variance) / ratio, WIDEST))
    return ratio / reach, ratio * reach
