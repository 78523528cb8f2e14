"""Warnings of an explanation: what in the numbers does not hold together, whatever the verdict."""

from __future__ import annotations

from console.analysis.explained_rows import attribute, model_step_ms, near, rate_of, row_report
from console.analysis.identities import tokens_per_second
from console.analysis.joint_fit import JointFit
from console.analysis.observations import Observation, Observations
from console.analysis.roofline import context_roofline
from console.analysis.step_fit import StepFit
from console.analysis.verdicts import Caution

MISFIT = 0.10
"""A rate further than this from its prediction is worth a warning."""
NEAR_CONTEXT = 0.25
"""Contexts within this share of each other share most of the context factor."""
LOW_ROOFLINE = 0.10
"""A context slope with less than this share of the memory roofline is a cost of the implementation."""


def cautions_of(
    given: Observations, fit: StepFit | None, joint: JointFit | None, compared: tuple[Observation, Observation] | None
) -> tuple[Caution, ...]:
    """Every warning that the rows give cause for, in a fixed order."""
    found: list[Caution | None] = [
        _misfit(given, fit, joint, compared),
        _not_comparable(given, fit),
        _double_count(given, fit, compared),
        _roofline(given, fit),
        _bonus_unknown(given, fit, compared),
    ]
    return tuple(c for c in found if c is not None)


def _misfit(
    given: Observations, fit: StepFit | None, joint: JointFit | None, compared: tuple[Observation, Observation] | None
) -> Caution | None:
    if fit is None:
        return None
    off: list[tuple[Observation, float, float]] = []
    for row in given.rows:
        report = row_report(row, fit)
        ratio = report["observed_over_predicted"]
        if row.method in ("full", "client") and ratio is not None and abs(ratio - 1.0) > MISFIT:
            off.append((row, float(report["predicted_tok_s"]), float(ratio)))
    if not off:
        return None
    shown = next((o for o in off if compared is not None and o[0].label == compared[1].label), off[0])
    row, predicted, ratio = shown
    parts = [f"{row.label}: predicted {predicted:.1f}, observed {rate_of(row):.1f} tok/s ({100 * (ratio - 1):+.0f} %)"]
    if not fit.verified:
        parts.append(f"the line through {fit.levels} context levels is unverified")
    if joint is not None and joint.q > 0:
        parts.append(f"curvature suspected (a convex curve fits all rows to {100 * joint.rms:.1f} % rms)")
    return Caution("misfit", "; ".join(parts) + " -> run context_curve with 5 levels")


def _not_comparable(given: Observations, fit: StepFit | None) -> Caution | None:
    stated = [r.commit_length for r in given.rows if r.method == "full" and r.commit_length]
    words: list[str] = []
    for row in given.rows:
        implied = row_report(row, fit)["implied_commit_length"]
        reference = row.commit_length or (max(stated) if stated else None)
        if row.method not in ("burst", "client") or implied is None or reference is None:
            continue
        if abs(implied / reference - 1.0) > 0.25:
            words.append(f"{row.label} implies commit {implied:.1f} (stated {reference:g})")
    if not words:
        return None
    return Caution("not_comparable", "; ".join(words) + ": other text or another way of counting; do not chain them")


def _double_count(
    given: Observations, fit: StepFit | None, compared: tuple[Observation, Observation] | None
) -> Caution | None:
    if fit is None or compared is None:
        return None
    before, after = compared
    for row in given.rows:
        if row.method != "burst" or row.label == after.label or not row.tok_s or not row.commit_length:
            continue
        # A burst at the later side's context, while the earlier side stood elsewhere.
        if not near(row.context, after.context, NEAR_CONTEXT) or near(row.context, before.context, NEAR_CONTEXT):
            continue
        split = attribute(row, after, fit)
        if split is None:
            continue
        return Caution(
            "double_count",
            f"{row.label} ({row.tok_s:g} tok/s) already contains the context factor; between it and {after.label} "
            f"context explains {split.context:.2f}x and {split.residual:.2f}x is unexplained "
            f"at commit {row.commit_length:g}",
        )
    return None


def _roofline(given: Observations, fit: StepFit | None) -> Caution | None:
    if fit is None or fit.b_ms_per_token <= 0:
        return None
    line = context_roofline(fit.b_ms_per_token, given.model_config, given.hardware)
    if line is None or line.share >= LOW_ROOFLINE:
        return None
    return Caution(
        "roofline",
        f"the context slope of {line.slope_us_per_token:.1f} us a token is {100 * line.share:.1f} % of the memory "
        f"roofline ({line.floor_us_per_token:.3f} us for {line.bytes_per_token:,} B): bound by the implementation",
    )


def _bonus_unknown(
    given: Observations, fit: StepFit | None, compared: tuple[Observation, Observation] | None
) -> Caution | None:
    rows = compared if compared is not None else given.rows
    unknown = [r for r in rows if r.commit_length is not None and not r.bonus_known]
    if not unknown:
        return None
    row = unknown[-1]
    words = f"whether the commit length {row.commit_length:g} of {row.label} counts the bonus token is unknown"
    step = model_step_ms(row, fit)
    if step and row.commit_length:
        low, high = tokens_per_second(row.commit_length, step), tokens_per_second(row.commit_length + 1.0, step)
        words += f": the prediction lies between {low:.1f} and {high:.1f} tok/s"
    return Caution("bonus_unknown", words)
