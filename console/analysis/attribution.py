"""Exact attribution of a change in rate: ln(r1/r0) = ln(C1/C0) - ln(S1/S0), split further without an order.

Factors are *slowdown* factors: above 1 they make run 1 slower than run 0, and their product is the total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def log_mean(u: float, v: float) -> float:
    """Logarithmic mean (u - v) / ln(u / v), and u when both are equal."""
    if u <= 0 or v <= 0:
        raise ValueError("the logarithmic mean needs positive values")
    return u if math.isclose(u, v, rel_tol=1e-12) else (u - v) / math.log(u / v)


def split_step_change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """ln(S1/S0) split over additive parts of a step (ms), by log-mean weights (LMDI-I); the parts sum to it exactly.

    A part that is zero on one side takes its limit, so nothing is lost; a part zero on both sides contributes 0.
    """
    total_before, total_after = math.fsum(before.values()), math.fsum(after.values())
    total = log_mean(total_after, total_before)
    out: dict[str, float] = {}
    for name in {**before, **after}:
        old, new = before.get(name, 0.0), after.get(name, 0.0)
        # L(u, v) ln(u/v) = u - v, which also holds in the limit v -> 0.
        out[name] = (new - old) / total
    return out


@dataclass(frozen=True)
class Factors:
    """Slowdown factors between two runs. `total` = acceptance x context x kernel x residual."""

    total: float
    acceptance: float
    context: float
    kernel: float
    residual: float
    kernel_measured: bool
    residual_ci: tuple[float, float] | None = None

    @property
    def log_shares(self) -> dict[str, float] | None:
        """Each factor's share of the logarithm of the total, in percent; None when nothing changed."""
        whole = math.log(self.total)
        if abs(whole) < 1e-9:
            return None
        parts = {
            "acceptance": self.acceptance,
            "context": self.context,
            "kernel": self.kernel,
            "residual": self.residual,
        }
        return {name: 100.0 * math.log(value) / whole for name, value in parts.items()}

    def to_json(self) -> dict[str, Any]:
        """The contract's `attribution` object."""
        return {
            "total": self.total,
            "acceptance": self.acceptance,
            "context": self.context,
            "kernel": self.kernel,
            "kernel_measured": self.kernel_measured,
            "residual": self.residual,
            "residual_ci": None if self.residual_ci is None else list(self.residual_ci),
            "log_shares_percent": self.log_shares,
        }


@dataclass(frozen=True)
class Side:
    """One side of a comparison: rate, commit length, step time by the model, step time as measured (or None)."""

    tok_s: float
    commit_length: float
    model_step_ms: float
    measured_step_ms: float | None = None


def factors(before: Side, after: Side) -> Factors:
    """Attribute the slowdown from `before` to `after`.

    Context is the model's step time at the two contexts. Kernel is what the measured steps changed beyond that;
    it needs a measured step on both sides, otherwise it is 1 and whatever it was sits in the residual.
    """
    total = before.tok_s / after.tok_s
    acceptance = before.commit_length / after.commit_length
    context = after.model_step_ms / before.model_step_ms
    measured = before.measured_step_ms is not None and after.measured_step_ms is not None
    kernel = 1.0
    if before.measured_step_ms is not None and after.measured_step_ms is not None:
        kernel = (after.measured_step_ms / before.measured_step_ms) / context
    return Factors(total, acceptance, context, kernel, total / (acceptance * context * kernel), measured)


def milliseconds_per_token(before: Side, after: Side) -> dict[str, float]:
    """The same change, additive: ms a token due to context and to acceptance (two-factor Shapley values)."""
    s0, s1, c0, c1 = before.model_step_ms, after.model_step_ms, before.commit_length, after.commit_length
    observed = 1000.0 / after.tok_s - 1000.0 / before.tok_s
    context = (s1 - s0) * (1.0 / c0 + 1.0 / c1) / 2.0
    acceptance = (1.0 / c1 - 1.0 / c0) * (s0 + s1) / 2.0
    return {
        "observed": observed,
        "context": context,
        "acceptance": acceptance,
        "residual": observed - context - acceptance,
    }
