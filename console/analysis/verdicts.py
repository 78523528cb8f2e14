"""Verdict classes and the order in which they are tried: the first that matches wins (measurement, section 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CLASSES = (
    "void",  # contaminated: `void:<why>`
    "not_comparable",
    "inconsistent_data",
    "step_regression",
    "acceptance_regression",
    "contention",
    "throttled",
    "network",
    "explained",
    "unexplained",
    "inconclusive",
)
REGRESSION = 0.05
"""Smallest change of step time or commit length called a regression."""
RESIDUAL_BAND = 0.10
"""A residual within this band needs no further explanation."""
WIDE_INTERVAL = 0.15
"""An interval wider than this on either side explains anything, hence nothing."""
IMPLIED_GAP = 0.25
"""Implied and stated commit lengths further apart than this cannot both be right."""


@dataclass(frozen=True)
class Caution:
    """A warning of a verdict: a code from a fixed list and one sentence."""

    code: str
    msg: str

    def to_json(self) -> dict[str, str]:
        """`{"code", "msg"}`."""
        return {"code": self.code, "msg": self.msg}


@dataclass(frozen=True)
class Verdict:
    """What a comparison says: class, one sentence, warnings, and the next thing to do."""

    klass: str
    headline: str
    warnings: tuple[Caution, ...]
    next: str

    def to_json(self) -> dict[str, Any]:
        """The contract's `verdict` object."""
        return {
            "class": self.klass,
            "headline": self.headline,
            "warnings": [w.to_json() for w in self.warnings],
            "next": self.next,
        }


@dataclass(frozen=True)
class Evidence:
    """What the rules look at. Factors are slowdown factors with 95 % intervals; None where not known."""

    void: str | None = None
    methods_differ: bool = False
    implied_gaps: Sequence[float] = ()  # implied / stated commit length of each side
    impossible_commit: bool = False
    kernel: float | None = None
    kernel_ci: tuple[float, float] | None = None
    acceptance: float | None = None
    acceptance_ci: tuple[float, float] | None = None
    same_work: bool = False  # same text kind and same context on both sides
    covariate: str | None = None  # contention, throttled or network, when one was measured beside the residual
    residual: float | None = None
    residual_ci: tuple[float, float] | None = None


def classify(evidence: Evidence) -> str:
    """The verdict class of the evidence."""
    if evidence.void is not None:
        return f"void:{evidence.void}"
    if evidence.methods_differ:
        return "not_comparable"
    if evidence.impossible_commit or any(abs(gap - 1.0) > IMPLIED_GAP for gap in evidence.implied_gaps):
        return "inconsistent_data"
    if _is_regression(evidence.kernel, evidence.kernel_ci):
        return "step_regression"
    if evidence.same_work and _is_regression(evidence.acceptance, evidence.acceptance_ci):
        return "acceptance_regression"
    residual, interval = evidence.residual, evidence.residual_ci
    if residual is None:
        return "inconclusive"
    outside = abs(residual - 1.0) >= RESIDUAL_BAND
    if evidence.covariate is not None and outside:
        return evidence.covariate
    if interval is None:
        return "inconclusive"
    contains_one = interval[0] <= 1.0 <= interval[1]
    if (contains_one or not outside) and (interval[1] - interval[0]) / 2.0 <= WIDE_INTERVAL:
        return "explained"
    return "unexplained" if outside and not contains_one else "inconclusive"


def _is_regression(factor: float | None, interval: tuple[float, float] | None) -> bool:
    return factor is not None and interval is not None and factor > 1.0 + REGRESSION and interval[0] > 1.0
