"""What a curve makes of single observations: modelled step, prediction, implied commit length, and the split of two."""

from __future__ import annotations

from typing import Any

from console.analysis.attribution import Factors, Side, factors
from console.analysis.identities import implied_commit_length, implied_step_ms, tokens_per_second
from console.analysis.observations import Observation
from console.analysis.step_fit import StepFit

STEP_ERROR = 0.02
"""Relative error (one sigma) granted to a step time that came without an interval."""
RATE_ERROR = 0.02
"""Relative error (one sigma) granted to a rate that came without an interval."""


def model_step_ms(row: Observation, fit: StepFit | None) -> float | None:
    """The curve's step time at the row's context in ms; None without a curve or a context."""
    return None if fit is None or row.context is None else fit.at(row.context)


def rate_of(row: Observation) -> float | None:
    """The row's rate, measured or C / S of the same row."""
    if row.tok_s is not None:
        return row.tok_s
    return tokens_per_second(row.commit_length, row.step_ms) if row.commit_length and row.step_ms else None


def row_report(row: Observation, fit: StepFit | None) -> dict[str, Any]:
    """One entry of the report's `rows`: what was observed, and what the curve makes of it."""
    step, rate = model_step_ms(row, fit), rate_of(row)
    predicted = tokens_per_second(row.commit_length, step) if row.commit_length and step else None
    best_step = row.step_ms if row.step_ms is not None else step
    return {
        "label": row.label,
        "method": row.method,
        "context": row.context,
        "commit_length": row.commit_length,
        "step_ms": row.step_ms,
        "model_step_ms": step,
        "observed_tok_s": rate,
        "predicted_tok_s": predicted,
        "observed_over_predicted": rate / predicted if rate and predicted else None,
        "implied_commit_length": implied_commit_length(rate, best_step) if rate and best_step else None,
        "implied_step_ms": implied_step_ms(rate, row.commit_length) if rate and row.commit_length else None,
    }


def side_of(row: Observation, fit: StepFit | None) -> Side | None:
    """A row as one side of a split; None where rate, commit length or step are missing."""
    step, rate = model_step_ms(row, fit), rate_of(row)
    if not step or not rate or not row.commit_length:
        return None
    return Side(rate, row.commit_length, step, row.step_ms)


def known_side(row: Observation, fit: StepFit | None) -> Side:
    """`side_of` for a row that has been split already."""
    side = side_of(row, fit)
    assert side is not None, "only called after the split succeeded"
    return side


def attribute(before: Observation, after: Observation, fit: StepFit | None) -> Factors | None:
    """The slowdown between two rows as factors; None where one of them misses something."""
    first, second = side_of(before, fit), side_of(after, fit)
    return None if first is None or second is None else factors(first, second)


def implied_gap(row: Observation, fit: StepFit | None) -> float | None:
    """Implied over stated commit length, or None where one is unknown."""
    report = row_report(row, fit)
    implied = report["implied_commit_length"]
    return None if implied is None or not row.commit_length else float(implied) / row.commit_length


def impossible(row: Observation, fit: StepFit | None) -> bool:
    """Whether rate and step imply a commit length that no step can have."""
    implied = row_report(row, fit)["implied_commit_length"]
    if implied is None:
        return False
    # A step keeps at least the bonus token; the slack is the error granted to rate and step.
    slack = 1.0 + 2.0 * (RATE_ERROR + STEP_ERROR)
    return bool(implied * slack < 1.0 or (row.max_commit is not None and implied > row.max_commit * slack))


def near(a: float | None, b: float | None, share: float) -> bool:
    """Whether two figures lie within that share of the larger; never where one is unknown."""
    return a is not None and b is not None and abs(a - b) <= share * max(a, b, 1.0)
