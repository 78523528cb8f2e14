"""The verdict of one run: levels, fit, attribution from the lowest level to the highest, from its `sample` rows.

A `sample` row is the canonical request of the event protocol: `P` prompt tokens, `N` decode tokens (without the
token that prefill gave), `N_usage`, `steps`, `decode_s`, `ttft_s`, `ctx_mid`, `kind`, `cached`, `finish`, and what
the playbook adds: `level` (the planned value of the swept quantity), `distinct2` (distinct-bigram ratio of the
output), `excluded` (why the playbook itself left the request out).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats

from console.analysis.attribution import Factors, Side, factors
from console.analysis.identities import RequestLine, two_request_line
from console.analysis.statistics import BOOTSTRAP_MIN_REQUESTS, ratio_interval, ratio_of_sums
from console.analysis.step_fit import StepFit, StepPoint, fit_steps, mean_square_context
from console.analysis.verdicts import Caution, Evidence, classify
from console.errors import ExitCode

DEGENERATE_BIGRAMS = 0.25
"""Below this distinct-bigram ratio an output is a loop: the fastest arm of any speculative benchmark."""
WARM_SHARE = 0.02
"""A prompt with more of its tokens cached than this was not cold."""
COLLAPSED_COMMIT = 1.05
"""A commit length below this means that the drafter's tokens are hardly ever kept."""
COUNT_GAP = 0.01
"""Own token count and the engine's usage may differ by this share."""
MIN_POOLED_FREEDOM = 4
"""Degrees of freedom needed before the spread is pooled over levels."""

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


@dataclass(frozen=True)
class Level:
    """One level of a sweep: ratios of sums over its requests, with 95 % intervals (None where not measurable)."""

    value: float
    requests: int
    context: float
    tokens: float
    steps: float
    decode_s: float
    commit_length: float
    step_ms: float
    tok_s: float
    commit_length_ci: tuple[float, float] | None
    step_ms_ci: tuple[float, float] | None
    tok_s_ci: tuple[float, float] | None
    ttft_s: float | None

    def to_json(self) -> dict[str, Any]:
        """One entry of the result's `levels`."""
        return {
            "level": self.value,
            "requests": self.requests,
            "context": self.context,
            "tokens": self.tokens,
            "steps": self.steps,
            "commit_length": self.commit_length,
            "commit_length_ci": None if self.commit_length_ci is None else list(self.commit_length_ci),
            "step_ms": self.step_ms,
            "step_ms_ci": None if self.step_ms_ci is None else list(self.step_ms_ci),
            "tok_s": self.tok_s,
            "tok_s_ci": None if self.tok_s_ci is None else list(self.tok_s_ci),
            "ttft_s": self.ttft_s,
        }


def exit_code_of(klass: str) -> ExitCode:
    """The exit status of a run whose verdict has that class."""
    return ExitCode.VOID if klass.startswith("void") else EXIT_OF_CLASS.get(klass, ExitCode.INCONCLUSIVE)


def verdict_of_run(playbook_id: str, rows: Sequence[Mapping[str, Any]], env: Mapping[str, Any]) -> dict[str, Any]:
    """Judge one run: `{"class", "headline", "factors", "fit", "levels", "warnings", "next"}`.

    `rows` are the run's `sample` requests, `env` its environment (used: `block_size`, the largest commit length).
    """
    kept, cautions = _screen(rows)
    void = _void_reason(rows, kept)
    if void is not None:
        return _report(
            f"void:{void}", _void_words(void, rows, kept), None, None, [], cautions, "mend the cause and run again"
        )
    if any(not row.get("steps") or not row.get("decode_s") for row in kept):
        return _report(
            "inconclusive",
            "the engine gave no exact step count, so commit length and step time cannot be told apart",
            None,
            None,
            [],
            cautions,
            "run it on an engine that counts steps, or read its log lines",
        )
    levels = _levels(kept)
    impossible = _impossible(levels, env)
    if impossible is not None:
        return _report(
            "inconsistent_data", impossible, None, None, levels, cautions, "check how the engine counts tokens"
        )
    if len(levels) < 2:
        return _health(levels[0], cautions)
    fit = fit_steps([_point(row) for row in kept])
    assert fit is not None, "there are rows with steps"
    if fit.levels >= 2 and not fit.verified and playbook_id == "context_curve":
        cautions = [*cautions, Caution("few_levels", f"{fit.levels} context levels cannot show curvature")]
    return _sweep(playbook_id, kept, levels, fit, cautions)


# --- which requests count ----------------------------------------------------------------------------------------


def _screen(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Caution]]:
    """Requests that count, and why the others do not. A request is left out only for a cause, never by its value."""
    kept: list[Mapping[str, Any]] = []
    causes: dict[str, int] = {}
    for row in rows:
        cause = _exclusion(row)
        if cause is None:
            kept.append(row)
        else:
            causes[cause] = causes.get(cause, 0) + 1
    return kept, [Caution("excluded", f"{n} of {len(rows)} requests left out: {cause}") for cause, n in causes.items()]


def _exclusion(row: Mapping[str, Any]) -> str | None:
    if row.get("excluded"):
        return str(row["excluded"])
    distinct = row.get("distinct2")
    if distinct is not None and distinct < DEGENERATE_BIGRAMS:
        return "degenerate output (a repetition loop)"
    cached, prompt = row.get("cached"), row.get("P")
    if cached and prompt and cached / prompt > WARM_SHARE:
        return "warm prefix cache"
    return None


def _void_reason(rows: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> str | None:
    if not rows:
        return "no_requests"
    for row in rows:
        own, usage = row.get("N"), row.get("N_usage")
        # The engine's usage counts the token that prefill gave; our N does not.
        if own and usage and min(abs(usage - own), abs(usage - own - 1)) > max(COUNT_GAP * usage, 1e-9):
            return "token_count"
    if len(kept) * 2 < len(rows) or not kept:
        return "degenerate_output" if any("degenerate" in (_exclusion(r) or "") for r in rows) else "contaminated"
    return None


def _void_words(void: str, rows: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> str:
    return {
        "no_requests": "the run made no measured request",
        "token_count": "tokens counted by the playbook and by the engine differ by more than 1 %",
        "degenerate_output": f"{len(rows) - len(kept)} of {len(rows)} outputs are repetition loops: their speed says nothing",
    }.get(void, f"only {len(kept)} of {len(rows)} requests are free of other influences")


# --- levels ------------------------------------------------------------------------------------------------------


def _levels(rows: Sequence[Mapping[str, Any]]) -> list[Level]:
    groups: dict[float, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(float(row["level"] if row.get("level") is not None else row["P"]), []).append(row)
    ordered = sorted(groups.items())
    spread = {
        "commit": _pooled_spread([[r["N"] / r["steps"] for r in group] for _, group in ordered]),
        "step": _pooled_spread([[r["decode_s"] / r["steps"] for r in group] for _, group in ordered]),
        "rate": _pooled_spread([[r["N"] / r["decode_s"] for r in group] for _, group in ordered]),
    }
    return [_level(value, group, spread) for value, group in ordered]


def _pooled_spread(groups: Sequence[Sequence[float]]) -> tuple[float, int] | None:
    """(standard deviation of the logarithm, degrees of freedom) pooled over levels; None if too few repeats.

    A handful of repeats a level says little about its spread; the relative spread of the machine is one figure.
    """
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < MIN_POOLED_FREEDOM:
        return None
    squares = 0.0
    for group in groups:
        logs = [math.log(v) for v in group]
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((v - mean) ** 2 for v in logs)
    return math.sqrt(squares / freedom), freedom


def _interval(
    above: Sequence[float], below: Sequence[float], spread: tuple[float, int] | None
) -> tuple[float, float] | None:
    ratio = ratio_of_sums(above, below)
    if ratio is None:
        return None
    if spread is None or len(above) >= BOOTSTRAP_MIN_REQUESTS:
        return ratio_interval(above, below)
    sigma, freedom = spread
    reach = math.exp(float(stats.t.ppf(0.975, freedom)) * sigma / math.sqrt(len(above)))
    return ratio / reach, ratio * reach


def _level(value: float, rows: Sequence[Mapping[str, Any]], spread: Mapping[str, tuple[float, int] | None]) -> Level:
    tokens, steps = [float(r["N"]) for r in rows], [float(r["steps"]) for r in rows]
    seconds = [float(r["decode_s"]) for r in rows]
    milliseconds = [s * 1000.0 for s in seconds]
    waits = [float(r["ttft_s"]) for r in rows if r.get("ttft_s") is not None]
    all_steps = math.fsum(steps)
    return Level(
        value=value,
        requests=len(rows),
        context=math.fsum(_context(r) * s for r, s in zip(rows, steps, strict=True)) / all_steps,
        tokens=math.fsum(tokens),
        steps=all_steps,
        decode_s=math.fsum(seconds),
        commit_length=math.fsum(tokens) / all_steps,
        step_ms=math.fsum(milliseconds) / all_steps,
        tok_s=math.fsum(tokens) / math.fsum(seconds),
        commit_length_ci=_interval(tokens, steps, spread["commit"]),
        step_ms_ci=_interval(milliseconds, steps, spread["step"]),
        tok_s_ci=_interval(tokens, seconds, spread["rate"]),
        ttft_s=math.fsum(waits) / len(waits) if waits else None,
    )


def _context(row: Mapping[str, Any]) -> float:
    return float(row["ctx_mid"]) if row.get("ctx_mid") is not None else row["P"] + row["N"] / 2.0


def _point(row: Mapping[str, Any]) -> StepPoint:
    square = mean_square_context(row["P"], row["N"]) if row.get("P") is not None else None
    return StepPoint(_context(row), row["decode_s"] / row["steps"] * 1000.0, float(row["steps"]), square)


def _impossible(levels: Sequence[Level], env: Mapping[str, Any]) -> str | None:
    largest = env.get("block_size")
    for level in levels:
        if level.commit_length < 1.0 - 1e-6 or (largest and level.commit_length > float(largest) + 1e-6):
            limit = "" if not largest else f" and at most {largest:g}"
            return f"commit length {level.commit_length:.2f} at level {level.value:g}: it must be at least 1{limit}"
    return None


# --- verdicts ----------------------------------------------------------------------------------------------------


def _health(level: Level, cautions: Sequence[Caution]) -> dict[str, Any]:
    """One level only: is it healthy? tok/s = commit length / step time, with the interval of the rate."""
    words = f"{level.tok_s:.1f} tok/s = commit length {level.commit_length:.2f} / step {level.step_ms:.1f} ms at context {level.context:.0f}"
    if level.tok_s_ci is not None:
        words += f" (tok/s 95 % {level.tok_s_ci[0]:.1f} to {level.tok_s_ci[1]:.1f})"
    if level.commit_length < COLLAPSED_COMMIT:
        return _report(
            "commit_collapsed",
            f"{words}: the drafter's tokens are hardly ever kept",
            None,
            None,
            [level],
            cautions,
            "check that the drafter belongs to this model, then run context_curve",
        )
    return _report("healthy", words, None, None, [level], cautions, "nothing to mend")


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
    return _report(klass, headline, split, fit, levels, extra, nexts.get(klass, "run it again"))


def _surely_slower(first: Level, last: Level) -> bool:
    """Whether the intervals of the two rates lie apart: a negative intercept alone may be noise."""
    return first.tok_s_ci is not None and last.tok_s_ci is not None and last.tok_s_ci[1] < first.tok_s_ci[0]


def _slope_words(fit: StepFit) -> str:
    if fit.model == "convex":
        return "convex"
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
        rows = [[1.0, level.context, level.context**2][: len(fit.covariance)] for level in (first, last)]
        gradient = [b / fit.at(last.context) - a / fit.at(first.context) for a, b in zip(rows[0], rows[1], strict=True)]
        variance += sum(
            gradient[i] * gradient[j] * fit.covariance[i][j] for i in range(len(gradient)) for j in range(len(gradient))
        )
    reach = math.exp(1.96 * math.sqrt(max(variance, 0.0)))
    return residual / reach, residual * reach


def _report(
    klass: str,
    headline: str,
    split: Factors | None,
    fit: StepFit | None,
    levels: Sequence[Level],
    cautions: Sequence[Caution],
    following: str,
) -> dict[str, Any]:
    return {
        "class": klass,
        "headline": headline,
        "factors": None if split is None else split.to_json(),
        "fit": None if fit is None else fit.to_json(),
        "levels": [level.to_json() for level in levels],
        "warnings": [c.to_json() for c in cautions],
        "next": following,
    }
