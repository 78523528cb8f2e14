"""A joint fit: one convex step-time curve and the commit lengths that no step count has pinned down.

Rates alone give C/S, never C and S apart. When step times are known at a few contexts and several rates were
taken on the same kind of text, the rates also say something about the curve: rows that share a commit length
must lie on one curve. With few spare degrees of freedom the result is a hypothesis to test, not a finding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from console.analysis.observations import Observation
from console.analysis.step_fit import mean_square_context


@dataclass(frozen=True)
class JointFit:
    """Curve coefficients (ms), the commit length of each group of rows, and how well all of it fits."""

    a_ms: float
    b_ms_per_token: float
    q: float
    commit_lengths: dict[str, float]  # group name -> fitted commit length
    residuals: dict[str, float]  # row label -> ln(observed / fitted)
    rms: float
    spare: int  # observations minus parameters

    def to_json(self) -> dict[str, Any]:
        """For the report's `alternatives`."""
        return {
            "model": "convex, commit lengths free",
            "a_ms": self.a_ms,
            "b_ms_per_token": self.b_ms_per_token,
            "q": self.q,
            "commit_lengths": self.commit_lengths,
            "residuals": self.residuals,
            "rms": self.rms,
            "spare_degrees_of_freedom": self.spare,
        }


def commit_group(row: Observation) -> str:
    """Rows of one method, text kind and stated commit length are taken to share one true commit length."""
    stated = "" if row.commit_length is None else f" C={row.commit_length:g}"
    return f"{row.method}{'' if row.text_kind is None else ' ' + row.text_kind}{stated}"


def fit_jointly(rows: Sequence[Observation]) -> JointFit | None:
    """Least squares on logarithms over measured steps and rates; None without a spare degree of freedom.

    A group of two or more rate rows gets a free commit length; a single row keeps its stated one.
    """
    steps = [r for r in rows if r.context is not None and r.step_ms is not None]
    rates = [r for r in rows if r.step_ms is None and r.context is not None and r.tok_s and r.commit_length]
    members: dict[str, list[Observation]] = {}
    for row in rates:
        members.setdefault(commit_group(row), []).append(row)
    free = [name for name, group in members.items() if len(group) > 1]
    spare = len(steps) + len(rates) - 3 - len(free)
    if len(steps) < 2 or spare < 1 or not rates:
        return None

    step_x = np.array([r.context for r in steps], dtype=float)
    step_y = np.log(np.array([r.step_ms for r in steps], dtype=float))
    rate_x = np.array([r.context for r in rates], dtype=float)
    rate_y = np.log(np.array([r.tok_s for r in rates], dtype=float))
    step_square, rate_square = step_x**2, np.array([_mean_square(r) for r in rates])
    scale_x = max(float(np.max(np.concatenate([step_x, rate_x]))), 1.0)

    def curve(p: NDArray[np.float64], x: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(p[0] + p[1] * x / scale_x + p[2] * square / scale_x**2)

    def residuals(p: NDArray[np.float64]) -> NDArray[np.float64]:
        commit = np.array(
            [p[3 + free.index(commit_group(r))] if commit_group(r) in free else r.commit_length for r in rates],
            dtype=float,
        )
        modelled = np.log(commit) - np.log(curve(p, rate_x, rate_square)) + math.log(1000.0)
        return np.concatenate([step_y - np.log(curve(p, step_x, step_square)), rate_y - modelled])

    low_ms, high_ms = float(np.exp(step_y).min()), float(np.exp(step_y).max())
    start = np.array([low_ms, (high_ms - low_ms) / 2, (high_ms - low_ms) / 2])
    commits = np.array([float(np.mean([r.commit_length or 1.0 for r in members[name]])) for name in free])
    lower = np.concatenate([[1e-6, 0.0, 0.0], np.full(len(free), 0.5)])
    solved = optimize.least_squares(
        residuals, np.maximum(np.concatenate([start, commits]), lower + 1e-6), bounds=(lower, np.inf), x_scale="jac"
    )
    left = residuals(solved.x)
    labels = [r.label for r in steps] + [r.label for r in rates]
    return JointFit(
        a_ms=float(solved.x[0]),
        b_ms_per_token=float(solved.x[1] / scale_x),
        q=float(solved.x[2] / scale_x**2),
        commit_lengths={name: float(solved.x[3 + i]) for i, name in enumerate(free)},
        residuals={label: float(v) for label, v in zip(labels, left, strict=True)},
        rms=float(np.sqrt(np.mean(left**2))),
        spare=spare,
    )


def _mean_square(row: Observation) -> float:
    """Mean of the squared context over the row's steps."""
    context = row.context or 0.0
    if row.prompt_tokens is None:
        return context**2
    if row.window is not None:
        return mean_square_context(row.prompt_tokens + row.window[0], row.window[1] - row.window[0])
    return mean_square_context(row.prompt_tokens, row.output_tokens or 0.0) if row.method == "full" else context**2
