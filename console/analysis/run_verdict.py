"""The verdict of one run: levels, fit, attribution from the lowest level to the highest, from its `sample` rows.

A `sample` row is the canonical request of the event protocol: `P` prompt tokens, `N` decode tokens (without the
token that prefill gave), `N_usage`, `steps`, `decode_s`, `ttft_s`, `ctx_mid`, `kind`, `cached`, `finish`, and what
the playbook adds: `level` (the planned value of the swept quantity), `distinct2` (distinct-bigram ratio of the
output), `excluded` (why the playbook itself left the request out).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from console.analysis.attribution import Factors, Side, factors
from console.analysis.identities import RequestLine, two_request_line
from console.analysis.levels import Level, levels_of, step_point
from console.analysis.screening import screen, void_reason, void_words
from console.analysis.steadiness import steadiness
from console.analysis.step_fit import StepFit, fit_steps
from console.analysis.verdicts import Caution, Evidence, classify
from console.errors import ExitCode

SLOPE_GAP = 0.1
"""The fit and the median slope may differ by this share of the longest step, over all contexts."""
WINDOW_LOSS = 1.5
"""A commit length that is so many times smaller at the longest context than at the shortest is worth a window."""
COLLAPSED_COMMIT = 1.05
"""A commit length below this means that the drafter's tokens are hardly ever kept."""

EXIT_OF_CLASS = {
    "explained": ExitCode.DONE,
    "healthy": ExitCode.DONE,
    "equivalent": ExitCode.DONE,
    "faster": ExitCode.DONE,
    "small": ExitCode.DONE,
    "lossless": ExitCode.DONE,
    "near_tie": ExitCode.DONE,
    "slower": ExitCode.CHECK_SAYS_NO,
    "broken": ExitCode.CHECK_SAYS_NO,
    "engine_stalled": ExitCode.CHECK_SAYS_NO,
    "contention": ExitCode.CHECK_SAYS_NO,
    "throttled": ExitCode.CHECK_SAYS_NO,
    "network": ExitCode.CHECK_SAYS_NO,
    "step_regression": ExitCode.CHECK_SAYS_NO,
    "acceptance_regression": ExitCode.CHECK_SAYS_NO,
    "commit_collapsed": ExitCode.CHECK_SAYS_NO,
    "acceptance_drift": ExitCode.DONE,
}


def exit_code_of(klass: str) -> ExitCode:
    """The exit status of a run whose verdict has that class."""
    return ExitCode.VOID if klass.startswith("void") else EXIT_OF_CLASS.get(klass, ExitCode.INCONCLUSIVE)


def verdict_of_run(playbook_id: str, rows: Sequence[Mapping[str, Any]], env: Mapping[str, Any]) -> dict[str, Any]:
    """Judge one run: `{"class", "headline", "factors", "fit", "levels", "warnings", "next"}`.

    `rows` are the run's `sample` requests, `env` its environment (used: `block_size`, the largest commit length).
    """
    kept, cautions = screen(rows)
    void = void_reason(rows, kept)
    if void is not None:
        return report(
            f"void:{void}", void_words(void, rows, kept), None, None, [], cautions, "mend the cause and run again"
        )
    if any(not row.get("steps") or not row.get("decode_s") for row in kept):
        return report(
            "inconclusive",
            "the engine gave no exact step count, so commit length and step time cannot be told apart",
            None,
            None,
            [],
            cautions,
            "run it on an engine that counts steps, or read its log lines",
        )
    levels = levels_of(kept)
    impossible = impossible_level(levels, env)
    if impossible is not None:
        return report(
            "inconsistent_data", impossible, None, None, levels, cautions, "check how the engine counts tokens"
        )
    if len(levels) < 2:
        return _health(levels[0], cautions)
    fit = fit_steps([step_point(row) for row in kept], hinge=True)
    assert fit is not None, "there are rows with steps"
    if fit.levels >= 2 and not fit.verified and playbook_id == "context_curve":
        cautions = [*cautions, Caution("few_levels", f"{fit.levels} context levels cannot show curvature")]
    cautions = [
        *cautions,
        *steadiness(kept, fit),
        *_graph_fallback(kept),
        *_beyond_drafter(levels, env.get("drafter_window")),
        *(_slope_check(levels, fit) if playbook_id == "context_curve" else ()),
        *(_window_advice(levels, env) if playbook_id == "context_curve" else ()),
    ]
    return _sweep(playbook_id, kept, levels, fit, cautions)


def impossible_level(levels: Sequence[Level], env: Mapping[str, Any]) -> str | None:
    """Why a level's commit length cannot be what was counted; None where all can."""
    return impossible_commit([level.commit_length for level in levels], env)


def impossible_commit(commits: Sequence[float], env: Mapping[str, Any]) -> str | None:
    """Why a commit length cannot be what was counted: below 1, or above the drafter's block."""
    largest = env.get("block_size")
    for commit in commits:
        if commit < 1.0 - 1e-6 or (largest and commit > float(largest) + 1e-6):
            limit = "" if not largest else f" and at most {largest:g}"
            return f"a commit length of {commit:.2f} was counted: it must be at least 1{limit}"
    return None


def _graph_fallback(rows: Sequence[Mapping[str, Any]]) -> list[Caution]:
    """Contexts above which steps run without captured graphs, where those below run with them."""
    with_graph = [row["level"] for row in rows if row.get("graph") in (1, True) and row.get("level") is not None]
    without = [row["level"] for row in rows if row.get("graph") in (0, False) and row.get("level") is not None]
    if not with_graph or not without or min(without) <= max(with_graph):
        return []
    words = (
        f"steps run without captured graphs from {min(without):g} tokens on, and with them up to {max(with_graph):g}"
    )
    return [Caution("graph_fallback", f"{words}: capture shapes for longer contexts")]


def _beyond_drafter(levels: Sequence[Level], window: Any) -> list[Caution]:
    """Levels beyond the positions that the drafter was made for."""
    beyond = [level for level in levels if isinstance(window, int) and level.value > window]
    if not beyond:
        return []
    words = f"contexts above {window:,} tokens are beyond the drafter's own positions"
    return [
        Caution(
            "drafter_window", f"{words}: commit length {levels[0].commit_length:.2f} -> {beyond[-1].commit_length:.2f}"
        )
    ]


def _slope_check(levels: Sequence[Level], fit: StepFit) -> list[Caution]:
    """Whether a few wild step times made the slope: the median of all slopes then says otherwise."""
    first, last = levels[0], levels[-1]
    span = last.context - first.context
    if fit.median_slope is None or span <= 0:
        return []
    slope = (fit.at(last.context) - fit.at(first.context)) / span
    if abs(fit.median_slope - slope) * span <= SLOPE_GAP * fit.at(last.context):
        return []
    return [
        Caution(
            "slope",
            f"the fit has {1000 * slope:.1f} us a token, and the median of the slopes between any two requests is "
            f"{1000 * fit.median_slope:.1f}: look at the levels one by one",
        )
    ]


def _window_advice(levels: Sequence[Level], env: Mapping[str, Any]) -> list[Caution]:
    """A drafter that loses its way in long contexts may do better with a window, where the engine has one."""
    first, last = levels[0], levels[-1]
    settings = env.get("settings") or {}
    drafts = settings.get("mode") in ("dflash", "ddtree") and env.get("engine") in ("bundled", "sglang")
    if not drafts or first.commit_length < WINDOW_LOSS * last.commit_length:
        return []
    now = settings.get("draft_window")
    words = f"commit length falls from {first.commit_length:.2f} to {last.commit_length:.2f} with the context"
    mend = "try a smaller one" if now else "try one"
    return [Caution("draft_window", f"{words}: draft_window is {now or 'not set'}, {mend}")]


# --- verdicts ----------------------------------------------------------------------------------------------------


def _health(level: Level, cautions: Sequence[Caution]) -> dict[str, Any]:
    """One level only: is it healthy? tok/s = commit length / step time, with the interval of the rate."""
    words = f"{level.tok_s:.1f} tok/s = commit length {level.commit_length:.2f} / step {level.step_ms:.1f} ms at context {level.context:.0f}"
    if level.tok_s_ci is not None:
        words += f" (tok/s 95 % {level.tok_s_ci[0]:.1f} to {level.tok_s_ci[1]:.1f})"
    if level.commit_length < COLLAPSED_COMMIT:
        return report(
            "commit_collapsed",
            f"{words}: the drafter's tokens are hardly ever kept",
            None,
            None,
            [level],
            cautions,
            "check that the drafter belongs to this model, then run context_curve",
        )
    return report("healthy", words, None, None, [level], cautions, "nothing to mend")


def _sweep(
    playbook_id: str,
    rows: Sequence[Mapping[str, Any]],
    levels: list[Level],
    fit: StepFit,
    cautions: Sequence[Caution],
) -> dict[str, Any]:
    first, last = levels[0], levels[-1]
    split = factors(
        Side(first.tok_s, first.commit_length, fit.at(first.context)),
        Side(last.tok_s, last.commit_length, fit.at(last.context)),
    )
    split = replace(split, residual_ci=_residual_interval(split.residual, first, last, fit))
    klass = classify(Evidence(residual=split.residual, residual_ci=split.residual_ci))
    swept = "context" if playbook_id != "output_sweep" else "output length"
    word, total = ("slowdown", split.total) if split.total >= 1.0 else ("speed-up", 1.0 / split.total)
    interval = "" if split.residual_ci is None else f" [{split.residual_ci[0]:.2f}, {split.residual_ci[1]:.2f}]"
    headline = (
        f"{first.tok_s:.1f} -> {last.tok_s:.1f} tok/s over {swept} {first.value:.0f} -> {last.value:.0f}: "
        f"{word} {total:.2f}x; slowdown factors: context {split.context:.2f}x (step {fit.at(first.context):.1f} -> "
        f"{fit.at(last.context):.1f} ms, {_slope_words(fit)}), acceptance {split.acceptance:.2f}x "
        f"({first.commit_length:.2f} -> {last.commit_length:.2f}), residual {split.residual:.2f}x{interval}"
    )
    line = _line(levels) if playbook_id == "output_sweep" else None
    extra = list(cautions)
    if line is not None and line.intercept_s < 0 and _surely_slower(first, last):
        extra.append(
            Caution(
                "falling_rate",
                f"time against tokens has intercept {line.intercept_s:.3f} s: the rate falls along the run",
            )
        )
    nexts = {
        "explained": "nothing to mend: the change is context and acceptance",
        "unexplained": "look for other load on the box, then run it again",
        "inconclusive": "run it again with more repeats",
    }
    return report(klass, headline, split, fit, levels, extra, nexts.get(klass, "run it again"))


def _surely_slower(first: Level, last: Level) -> bool:
    """Whether the intervals of the two rates lie apart: a negative intercept alone may be noise."""
    return first.tok_s_ci is not None and last.tok_s_ci is not None and last.tok_s_ci[1] < first.tok_s_ci[0]


def _slope_words(fit: StepFit) -> str:
    if fit.model == "convex":
        return "convex"
    if fit.knot is not None:
        slopes = fit.b_ms_per_token * 1000.0, (fit.b2_ms_per_token or 0.0) * 1000.0
        return f"{slopes[0]:.1f} us a token up to {fit.knot:,.0f} and {slopes[1]:.1f} above"
    return f"{fit.model}, {fit.b_ms_per_token * 1000.0:.1f} us a token"


def _line(levels: Sequence[Level]) -> RequestLine | None:
    """Tokens against wall time between the shortest and the longest output, decode only."""
    first, last = levels[0], levels[-1]
    tokens = (first.tokens / first.requests, last.tokens / last.requests)
    if tokens[0] == tokens[1]:
        return None
    return two_request_line(tokens[0], first.tok_s, tokens[1], last.tok_s)


def _residual_interval(residual: float, first: Level, last: Level, fit: StepFit) -> tuple[float, float] | None:
    """95 % interval of the residual factor: spread of both measured steps and the covariance of the curve."""
    if first.step_ms_ci is None or last.step_ms_ci is None:
        return None
    variance = 0.0
    for level in (first, last):
        low, high = level.step_ms_ci or (level.step_ms, level.step_ms)
        variance += (math.log(high / max(low, 1e-9)) / 2.0 / 1.96) ** 2
    if fit.covariance is not None:
        rows = [fit.columns_at(level.context) for level in (first, last)]
        gradient = [b / fit.at(last.context) - a / fit.at(first.context) for a, b in zip(rows[0], rows[1], strict=True)]
        variance += sum(
            gradient[i] * gradient[j] * fit.covariance[i][j] for i in range(len(gradient)) for j in range(len(gradient))
        )
    reach = math.exp(1.96 * math.sqrt(max(variance, 0.0)))
    return residual / reach, residual * reach


def report(
    klass: str,
    headline: str,
    split: Factors | None,
    fit: StepFit | None,
    levels: Sequence[Level],
    cautions: Sequence[Caution],
    following: str,
) -> dict[str, Any]:
    """A verdict in the shape that every run ends with."""
    return {
        "class": klass,
        "headline": headline,
        "factors": None if split is None else split.to_json(),
        "fit": None if fit is None else fit.to_json(),
        "levels": [level.to_json() for level in levels],
        "warnings": [c.to_json() for c in cautions],
        "next": following,
    }
