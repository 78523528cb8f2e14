"""Step time against context: s(x) = a + b x + q x^2 with a, b, q >= 0 (ms; x in tokens of context).

`a` is what a step costs at no context (weights, draft, tree build, launch, host), `b` the reads of the cached
keys and values, `q` what grows faster than that. Fitted by non-negative least squares; the quadratic term is
kept only when it lowers the Bayesian information criterion, and never on fewer than four context levels.

Where a drafter reads a window only, or another kernel takes over, the slope changes at one context: a hinge,
s(x) = a + b min(x, W) + b2 max(0, x - W), tried where asked for and taken only on strong evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]
LEVEL_WIDTH = 0.05
"""Contexts closer than this share of each other count as one level."""
MIN_LEVELS_TO_VERIFY = 4
"""Below this many levels curvature cannot be told from noise."""
MIN_LEVELS_FOR_HINGE = 5
LEVELS_FOR_MEDIAN_SLOPE = 5
STRONG_EVIDENCE = 6.0
"""By so much a hinge must lower the information criterion: its knot was looked for, which flatters it."""


@dataclass(frozen=True)
class StepPoint:
    """A measured step time: mean context of the steps, their mean square if known, and how many steps they were."""

    context: float
    step_ms: float
    weight: float = 1.0
    context_square: float | None = None  # mean of x^2 over the window, which exceeds the square of the mean


@dataclass(frozen=True)
class StepFit:
    """A fitted step-time curve. Intervals are 95 %; None where no residual degree of freedom is left."""

    model: Literal["constant", "linear", "convex", "hinge"]
    a_ms: float
    b_ms_per_token: float
    q: float
    levels: int
    points: int
    verified: bool  # enough levels to have seen curvature
    a_ci: tuple[float, float] | None = None
    b_ci: tuple[float, float] | None = None
    q_ci: tuple[float, float] | None = None
    r2: float | None = None
    max_residual: float | None = None  # largest |observed/fitted - 1|
    leave_one_out: float | None = None  # largest relative error on a level left out
    median_slope: float | None = None  # ms a token, of the slopes between any two requests (Theil and Sen)
    covariance: tuple[tuple[float, ...], ...] | None = None  # of a, b and q, or of a, b and b2
    knot: float | None = None  # context at which the slope changes from b to b2
    b2_ms_per_token: float | None = None

    def columns_at(self, context: float) -> tuple[float, ...]:
        """What the coefficients are multiplied with at `context`, as many as the covariance has rows."""
        third = context * context if self.knot is None else max(0.0, context - self.knot)
        second = context if self.knot is None else min(context, self.knot)
        return (1.0, second, third)[: len(self.covariance or ())]

    def at(self, context: float) -> float:
        """Step time in ms at `context` tokens."""
        if self.knot is not None:
            beyond = (self.b2_ms_per_token or 0.0) * max(0.0, context - self.knot)
            return self.a_ms + self.b_ms_per_token * min(context, self.knot) + beyond
        return self.a_ms + self.b_ms_per_token * context + self.q * context * context

    def to_json(self) -> dict[str, Any]:
        """The contract's `fit` object."""
        return {
            "model": self.model,
            "a_ms": self.a_ms,
            "b_ms_per_token": self.b_ms_per_token,
            "q": self.q,
            "levels": self.levels,
            "points": self.points,
            "verified": self.verified,
            "a_ci": None if self.a_ci is None else list(self.a_ci),
            "b_ci": None if self.b_ci is None else list(self.b_ci),
            "q_ci": None if self.q_ci is None else list(self.q_ci),
            "r2": self.r2,
            "max_residual": self.max_residual,
            "leave_one_out": self.leave_one_out,
            "median_slope_ms_per_token": self.median_slope,
            "knot": self.knot,
            "b2_ms_per_token": self.b2_ms_per_token,
        }


def mean_square_context(prompt_tokens: float, output_tokens: float) -> float:
    """Mean of x^2 while the context grows from P to P + N: ((P+N)^3 - P^3) / (3N)."""
    if output_tokens <= 0:
        return prompt_tokens * prompt_tokens
    end = prompt_tokens + output_tokens
    return float((end**3 - prompt_tokens**3) / (3.0 * output_tokens))


def context_levels(contexts: Sequence[float]) -> list[int]:
    """The level number of each context, 0 for the lowest; near contexts share a level."""
    order = sorted(range(len(contexts)), key=lambda i: contexts[i])
    numbers = [0] * len(contexts)
    level, start = -1, -math.inf
    for index in order:
        if contexts[index] - start > max(LEVEL_WIDTH * abs(contexts[index]), 1.0):
            level, start = level + 1, contexts[index]
        numbers[index] = level
    return numbers


def fit_steps(points: Sequence[StepPoint], *, hinge: bool = False) -> StepFit | None:
    """Fit the curve to measured step times; None when there is nothing to fit.

    One context level gives a constant; two or three a line whose curvature is unverified; four or more a line
    or a parabola, whichever has the lower information criterion. With `hinge`, a change of slope is looked for too.
    """
    usable = [p for p in points if p.step_ms > 0 and p.weight > 0 and math.isfinite(p.step_ms)]
    if not usable:
        return None
    numbers = context_levels([p.context for p in usable])
    levels = max(numbers) + 1
    if levels == 1:
        return _solve(usable, numbers, degree=0)
    linear = _solve(usable, numbers, degree=1)
    if levels < MIN_LEVELS_TO_VERIFY:
        return linear
    convex = _solve(usable, numbers, degree=2)
    smooth = convex if convex.q > 0 and _bic(usable, convex, 3) < _bic(usable, linear, 2) else linear
    if not hinge or levels < MIN_LEVELS_FOR_HINGE:
        return smooth
    bent = _best_hinge(usable, numbers)
    gain = _bic(usable, smooth, 3 if smooth.model == "convex" else 2) - _bic(usable, bent, 4)
    return bent if gain > STRONG_EVIDENCE else smooth


def _best_hinge(points: Sequence[StepPoint], numbers: Sequence[int]) -> StepFit:
    """The hinge with the best knot among the inner levels' contexts and the middles between them."""
    contexts = [
        float(np.mean([p.context for p, n in zip(points, numbers, strict=True) if n == level]))
        for level in range(max(numbers) + 1)
    ]
    middles = [(low + high) / 2 for low, high in pairwise(contexts)]
    fits = [_solve(points, numbers, degree=2, knot=knot) for knot in sorted((*contexts[1:-1], *middles[1:-1]))]
    return min(fits, key=lambda fit: _bic(points, fit, 4))


def _columns(points: Sequence[StepPoint], degree: int, knot: float | None = None) -> Array:
    """Design matrix [points, degree + 1]."""
    x = np.array([p.context for p in points])
    if knot is not None:
        return np.stack([np.ones_like(x), np.minimum(x, knot), np.maximum(0.0, x - knot)], axis=1)
    square = np.array([p.context**2 if p.context_square is None else p.context_square for p in points])
    return np.stack([np.ones_like(x), x, square][: degree + 1], axis=1)


def _relative_weights(points: Sequence[StepPoint]) -> Array:
    """Square roots of the weights, scaled so that errors count relative to the step time."""
    steps = np.array([p.weight for p in points])
    return np.asarray(np.sqrt(steps / steps.mean()) / np.array([p.step_ms for p in points]))


def _coefficients(points: Sequence[StepPoint], degree: int, knot: float | None = None) -> Array:
    design, scale = _columns(points, degree, knot), _relative_weights(points)
    # Columns of very different size: bring them to unit length before the non-negative solve.
    weighted = design * scale[:, None]
    norms = np.linalg.norm(weighted, axis=0)
    norms[norms == 0] = 1.0
    solution, _ = optimize.nnls(weighted / norms, np.array([p.step_ms for p in points]) * scale)
    return np.asarray(solution / norms)


def _solve(points: Sequence[StepPoint], numbers: Sequence[int], degree: int, knot: float | None = None) -> StepFit:
    observed = np.array([p.step_ms for p in points])
    design, scale = _columns(points, degree, knot), _relative_weights(points)
    beta = _coefficients(points, degree, knot)
    fitted = design @ beta
    levels = max(numbers) + 1

    # Intervals come from the columns that are not pinned at zero.
    active = [i for i in range(degree + 1) if beta[i] > 0]
    spare = len(points) - len(active)
    covariance = np.zeros((degree + 1, degree + 1))
    intervals: list[tuple[float, float] | None] = [None, None, None]
    if spare > 0 and active:
        weighted = design[:, active] * scale[:, None]
        variance = float(np.sum(((observed - fitted) * scale) ** 2) / spare)
        inner = np.linalg.pinv(weighted.T @ weighted) * variance
        covariance[np.ix_(active, active)] = inner
        reach = float(stats.t.ppf(0.975, spare))
        for i in range(degree + 1):
            half = reach * math.sqrt(max(covariance[i, i], 0.0))
            intervals[i] = (max(float(beta[i]) - half, 0.0), float(beta[i]) + half)

    total = float(np.sum(((observed - np.average(observed)) * scale) ** 2))
    residual = float(np.sum(((observed - fitted) * scale) ** 2))
    coefficients = [*[float(v) for v in beta], 0.0, 0.0][:3]
    return StepFit(
        model="hinge" if knot is not None else ("constant", "linear", "convex")[degree],
        a_ms=coefficients[0],
        b_ms_per_token=coefficients[1],
        q=0.0 if knot is not None else coefficients[2],
        levels=levels,
        points=len(points),
        verified=levels >= MIN_LEVELS_TO_VERIFY,
        a_ci=intervals[0],
        b_ci=intervals[1],
        q_ci=None if knot is not None else intervals[2],
        r2=1.0 - residual / total if total > 0 and degree > 0 else None,
        max_residual=float(np.max(np.abs(observed / fitted - 1.0))) if spare > 0 else None,
        leave_one_out=_leave_one_level_out(points, numbers, degree, knot),
        median_slope=_median_slope(points) if levels >= LEVELS_FOR_MEDIAN_SLOPE else None,
        knot=knot,
        b2_ms_per_token=None if knot is None else coefficients[2],
        covariance=tuple(tuple(float(v) for v in row) for row in covariance) if spare > 0 else None,
    )


def _median_slope(points: Sequence[StepPoint]) -> float:
    """The median of the slopes between any two requests, which a few wild step times do not move."""
    return float(stats.theilslopes([p.step_ms for p in points], [p.context for p in points]).slope)


def _leave_one_level_out(
    points: Sequence[StepPoint], numbers: Sequence[int], degree: int, knot: float | None = None
) -> float | None:
    """Largest relative error of the mean step of a level that the fit has not seen; None if it cannot be left out."""
    levels = max(numbers) + 1
    if levels < degree + 2:
        return None
    worst = 0.0
    for level in range(levels):
        kept = [p for p, n in zip(points, numbers, strict=True) if n != level]
        left = [p for p, n in zip(points, numbers, strict=True) if n == level]
        predicted = _columns(left, degree, knot) @ _coefficients(kept, degree, knot)
        observed = np.array([p.step_ms for p in left])
        worst = max(worst, abs(float(np.mean(predicted)) / float(np.mean(observed)) - 1.0))
    return worst


def _bic(points: Sequence[StepPoint], fit: StepFit, parameters: int) -> float:
    third = fit.q if fit.knot is None else fit.b2_ms_per_token or 0.0
    fitted = _columns(points, 2, fit.knot) @ np.array([fit.a_ms, fit.b_ms_per_token, third])
    observed = np.array([p.step_ms for p in points])
    residual = float(np.sum(((observed - fitted) * _relative_weights(points)) ** 2))
    count = len(points)
    return count * math.log(max(residual / count, 1e-18)) + parameters * math.log(count)
