"""`ddtree explain`: numbers from anywhere -> fit, prediction row by row, attribution, verdict (contracts.md section 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from console.analysis.attribution import Factors, Side, factors, milliseconds_per_token
from console.analysis.explain_cautions import cautions_of
from console.analysis.explained_rows import (
    RATE_ERROR,
    STEP_ERROR,
    attribute,
    implied_gap,
    impossible,
    known_side,
    model_step_ms,
    near,
    rate_of,
    row_report,
)
from console.analysis.identities import implied_step_ms, two_request_line
from console.analysis.joint_fit import fit_jointly
from console.analysis.observations import Observation, read_observations
from console.analysis.step_fit import LEVEL_WIDTH, StepFit, StepPoint, fit_steps, mean_square_context
from console.analysis.verdicts import Caution, Evidence, Verdict, classify

DRAWS = 10_000
CONTEXT_ERROR_TOKENS = 50.0
"""How far a stated context may be off, in tokens (uniform)."""


def explain(data: Any) -> dict[str, Any]:
    """Explain the parsed JSON of an observations file. Raises UsageError for bad input."""
    given = read_observations(data)
    compared = None if given.compare is None else (given.row(given.compare[0]), given.row(given.compare[1]))
    fit, source = _fit(given.rows, compared)
    joint = fit_jointly(given.rows) if fit is not None else None
    report: dict[str, Any] = {
        "fit": None if fit is None else {**fit.to_json(), "source": source},
        "alternatives": [] if joint is None else [joint.to_json()],
        "rows": [row_report(row, fit) for row in given.rows],
        "checks": _checks(given.rows),
        "attribution": None,
    }
    if compared is None:
        verdict = Verdict(
            "inconclusive",
            "no two rows were named to compare",
            cautions_of(given, fit, joint, None),
            'name two rows under "compare"',
        )
        return {**report, "verdict": verdict.to_json()}

    before, after = compared
    split = attribute(before, after, fit)
    cautions = cautions_of(given, fit, joint, compared)
    if split is None:
        missing = _missing(before, after, fit)
        verdict = Verdict("inconclusive", f"the slowdown cannot be split: {missing}", cautions, f"measure {missing}")
        return {**report, "verdict": verdict.to_json()}

    ranges = _intervals(given.rows, before, after, split)
    split = replace(split, residual_ci=ranges["residual"])
    report["attribution"] = {
        **split.to_json(),
        "acceptance_ci": list(ranges["acceptance"]),
        "context_ci": list(ranges["context"]),
        "kernel_ci": list(ranges["kernel"]) if split.kernel_measured else None,
        "ms_per_token": milliseconds_per_token(known_side(before, fit), known_side(after, fit)),
    }
    klass = classify(
        Evidence(
            methods_differ=before.method != after.method,
            implied_gaps=[gap for gap in (implied_gap(before, fit), implied_gap(after, fit)) if gap is not None],
            impossible_commit=any(impossible(row, fit) for row in compared),
            kernel=split.kernel if split.kernel_measured else None,
            kernel_ci=ranges["kernel"] if split.kernel_measured else None,
            acceptance=split.acceptance,
            acceptance_ci=ranges["acceptance"],
            same_work=before.text_kind == after.text_kind and near(before.context, after.context, 0.10),
            residual=split.residual,
            residual_ci=split.residual_ci,
        )
    )
    verdict = Verdict(klass, _headline(klass, before, after, split, fit), cautions, _next(klass, cautions))
    return {**report, "verdict": verdict.to_json()}


# --- the curve ---------------------------------------------------------------------------------------------------


def _fit(
    rows: Sequence[Observation], compared: tuple[Observation, Observation] | None
) -> tuple[StepFit | None, str | None]:
    """The step-time curve and where its points come from: measured steps, or C / rate where there are none."""
    measured = [r for r in rows if r.context is not None and r.step_ms is not None]
    if measured:
        # A measured step on the later side is what is being judged: keep it out of the curve it is judged by,
        # as long as the curve still spans the contexts without it.
        if compared is not None:
            without = [r for r in measured if r.label != compared[1].label]
            enough = len({round(r.context or 0.0) for r in without}) >= 2 or (
                bool(without) and near(compared[0].context, compared[1].context, LEVEL_WIDTH)
            )
            measured = without if enough else measured
        return fit_steps([_point(r, r.step_ms or 0.0) for r in measured]), "measured"
    implied = [
        _point(r, implied_step_ms(r.tok_s, r.commit_length))
        for r in rows
        if r.context is not None and r.tok_s and r.commit_length and r.commit_counted
    ]
    return fit_steps(implied), "implied by rate and commit length" if implied else None


def _point(row: Observation, step_ms: float) -> StepPoint:
    square = None
    if row.method == "full" and row.prompt_tokens is not None and row.output_tokens:
        square = mean_square_context(row.prompt_tokens, row.output_tokens)
    return StepPoint(row.context or 0.0, step_ms, row.steps or 1.0, square)


def _checks(rows: Sequence[Observation]) -> list[dict[str, Any]]:
    """Checks that need no commit length: the line through two whole runs of the same prompt."""
    whole = [r for r in rows if r.method == "full" and r.tok_s and r.output_tokens and r.prompt_tokens is not None]
    out: list[dict[str, Any]] = []
    for i, first in enumerate(whole):
        for second in whole[i + 1 :]:
            if first.prompt_tokens != second.prompt_tokens or first.output_tokens == second.output_tokens:
                continue
            line = two_request_line(
                first.output_tokens or 0.0, first.tok_s or 1.0, second.output_tokens or 0.0, second.tok_s or 1.0
            )
            reading = "the rate falls along the run" if line.intercept_s < 0 else "a plausible time to first token"
            out.append(
                {
                    "check": "two_request_line",
                    "rows": [first.label, second.label],
                    "slope_tok_s": line.tok_s,
                    "intercept_s": line.intercept_s,
                    "reading": reading,
                }
            )
    return out


# --- the split ---------------------------------------------------------------------------------------------------


def _missing(before: Observation, after: Observation, fit: StepFit | None) -> str:
    for row in (before, after):
        if rate_of(row) is None:
            return f"the rate of {row.label!r}"
        if not row.commit_length:
            return f"the commit length of {row.label!r}"
        if row.context is None:
            return f"the context of {row.label!r}"
    return "step times at two or more contexts" if fit is None else "the step time at both contexts"


def _intervals(
    rows: Sequence[Observation], before: Observation, after: Observation, split: Factors
) -> dict[str, tuple[float, float]]:
    """95 % intervals of the factors: draw every input within its error, refit, split again.

    The curve is drawn once per draw and used on both sides, so its error cancels where it should.
    """
    random = np.random.default_rng(20260414)
    draws: dict[str, list[float]] = {"acceptance": [], "context": [], "kernel": [], "residual": []}
    points = [r for r in rows if r.context is not None and r.step_ms is not None]
    drawn_fits = _draw_curves(rows, (before, after), random) if points else None
    contexts = {r.label: r.context or 0.0 for r in (before, after)}
    shared = before.context == after.context
    for i in range(DRAWS):
        shift = random.uniform(-CONTEXT_ERROR_TOKENS, CONTEXT_ERROR_TOKENS, 2)
        if shared:
            shift[1] = shift[0]
        sides = []
        for row, move in zip((before, after), shift, strict=True):
            x = max(contexts[row.label] + move, 1.0) if row.prompt_tokens is not None or row.context else 0.0
            step = (
                float(drawn_fits(i, x))
                if drawn_fits is not None
                else implied_step_ms(rate_of(row) or 1.0, row.commit_length or 1.0)
            )
            commit = max((row.commit_length or 1.0) + random.uniform(-1, 1) * row.commit_half_width, 1.0)
            rate = (rate_of(row) or 1.0) * (1.0 + RATE_ERROR * random.standard_normal())
            measured = None if row.step_ms is None else row.step_ms * (1.0 + STEP_ERROR * random.standard_normal())
            sides.append(Side(max(rate, 1e-9), commit, max(step, 1e-9), measured))
        drawn = factors(sides[0], sides[1])
        for name in draws:
            draws[name].append(getattr(drawn, name))
    out: dict[str, tuple[float, float]] = {}
    for name, values in draws.items():
        low, high = np.quantile(values, [0.025, 0.975])
        out[name] = (float(low), float(high))
    return out


def _draw_curves(
    rows: Sequence[Observation], compared: tuple[Observation, Observation], random: np.random.Generator
) -> Callable[[int, float], float] | None:
    """Curves refitted to step times drawn within their error; `at(i, context)` gives the i-th curve's step (ms)."""
    fit, source = _fit(rows, compared)
    if fit is None or source != "measured":
        return None
    base = [r for r in rows if r.context is not None and r.step_ms is not None]
    # A weighted linear solve is enough here: the columns that the full fit kept, without its bounds.
    used = [i for i, value in enumerate((fit.a_ms, fit.b_ms_per_token, fit.q)) if value > 0]
    x = np.array([r.context for r in base], dtype=float)
    design = np.stack([x**i for i in used], axis=1)
    observed = np.array([r.step_ms for r in base], dtype=float)
    pseudo = np.linalg.pinv(design / observed[:, None])  # [used, points]
    noisy = 1.0 + STEP_ERROR * random.standard_normal((DRAWS, len(base)))
    coefficients: NDArray[np.float64] = noisy @ pseudo.T  # [draws, used]

    def at(index: int, context: float) -> float:
        return float(sum(coefficients[index, j] * context**power for j, power in enumerate(used)))

    return at


# --- words -------------------------------------------------------------------------------------------------------


def _headline(klass: str, before: Observation, after: Observation, split: Factors, fit: StepFit | None) -> str:
    word = "slowdown" if split.total >= 1.0 else "speed-up"
    steps = f", step {model_step_ms(before, fit):.1f}->{model_step_ms(after, fit):.1f} ms" if fit else ""
    kernel = f" x kernel {split.kernel:.2f}x" if split.kernel_measured else ""
    interval = "" if split.residual_ci is None else f" [{split.residual_ci[0]:.2f},{split.residual_ci[1]:.2f}]"
    verdict = {
        "explained": "explained (no regression)",
        "step_regression": "step time has regressed at the same context",
        "acceptance_regression": "commit length has regressed on the same work",
        "not_comparable": f"not comparable ({before.method} against {after.method})",
        "inconsistent_data": "the numbers contradict each other",
    }.get(klass, klass)
    return (
        f"{word} {split.total:.2f}x = context {split.context:.2f}x (ctx {before.context:.0f}->{after.context:.0f}{steps})"
        f" x acceptance {split.acceptance:.2f}x ({before.commit_length:.3g}->{after.commit_length:.3g})"
        f"{kernel} x residual {split.residual:.2f}x{interval}: {verdict}"
    )


def _next(klass: str, cautions: Sequence[Caution]) -> str:
    by_class = {
        "not_comparable": "measure both sides the same way: run context_curve on both",
        "inconsistent_data": "run quick_probe: it counts tokens and steps itself",
        "step_regression": "compare engine version, settings and clocks of the two runs",
        "acceptance_regression": "compare drafter, engine version and prompt set of the two runs",
        "unexplained": "run context_curve with 5 levels on the same prompts, then look for other load",
        "inconclusive": "measure steps and commit length in the same window: run quick_probe",
    }
    if klass in by_class:
        return by_class[klass]
    return "run context_curve with 5 levels" if any(c.code == "misfit" for c in cautions) else "nothing to mend"
