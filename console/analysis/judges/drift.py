"""accept_drift: does the commit length hold along an answer? Ramp, harmonic mean, step growth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from console.analysis.identities import harmonic_commit
from console.analysis.judges.facts import RunFacts, commit_of, inconclusive, screened, verdict
from console.analysis.verdicts import Caution

DRIFT = 0.05
"""A change of commit length along an answer below this is none."""
RAMP_ENDS = tuple(i / 10 for i in range(2, 11))
LATE_LOOP = 0.4
"""Distinct pairs below this in an answer: it repeats itself in part, which raises the commit length."""


def judge_drift(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `windows`, `ramp` and `harmonic`: the commit length against the position in the answer."""
    rows = screened(facts)
    if rows.ended:
        return rows.ended
    windows = [window for row in rows.rows for window in row.get("windows") or () if window["steps"]]
    if len({window["end"] for window in windows}) < 4:
        return inconclusive("fewer than four windows were measured", rows.cautions, "run it with longer answers")
    middle = np.array([window["end"] - window["tokens"] / 2 for window in windows])
    commit = np.array([window["tokens"] / window["steps"] for window in windows])
    length = float(max(window["end"] for window in windows))
    line = stats.linregress(middle / length, np.log(commit))
    reach = float(stats.t.ppf(0.975, len(windows) - 2)) * line.stderr
    change, ci = math.exp(line.slope), (math.exp(line.slope - reach), math.exp(line.slope + reach))
    ramp = _ramp(middle / length, commit)
    cautions = [*rows.cautions, *_repetition(rows.rows, change)]
    measured = commit_of(rows.rows)
    drifts = (ci[0] > 1 or ci[1] < 1) and abs(change - 1) > DRIFT
    steps = [[window["wall_s"] / window["steps"] * 1000 for window in part] for part in _ends(windows)]
    growth = float(np.mean(steps[1]) / np.mean(steps[0]))
    words = (
        f"commit length {measured:.2f} over {length:.0f} tokens, from start to end x {change:.2f} [{ci[0]:.2f}, {ci[1]:.2f}]"
        f", step time x {growth:.2f}"
    )
    if drifts:
        words += f": {'falls' if change < 1 else 'rises'} from {ramp['first']:.2f} to {ramp['last']:.2f}"
        words += f" over the first {100 * ramp['share']:.0f} % of the answer"
        following = "compare rates of answers of one length only"
    else:
        words += ": it holds" if ci[1] / ci[0] < 1.35 else ": no drift was seen, within a wide interval"
        following = "nothing to mend"
    return verdict(
        "acceptance_drift" if drifts else "explained",
        words,
        cautions,
        following,
        change={"ratio": change, "ci": list(ci)},
        ramp=ramp,
        harmonic=harmonic_commit(ramp["first"], ramp["last"]) if ramp["share"] == 1.0 else None,
        windows=[{**window, "commit": window["tokens"] / window["steps"]} for window in windows],
    )


def _ends(windows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The windows of the first and of the last quarter of the answers."""
    length = max(window["end"] for window in windows)
    first = [window for window in windows if window["end"] <= length / 4] or [min(windows, key=lambda one: one["end"])]
    return first, [window for window in windows if window["end"] > length * 3 / 4]


def _ramp(share: np.ndarray[Any, Any], commit: np.ndarray[Any, Any]) -> dict[str, float]:
    """Linear from `first` to `last` over the first `share` of the answer, then flat: the best of ten such."""
    best: tuple[float, dict[str, float]] | None = None
    for end in RAMP_ENDS:
        design = np.stack([np.ones_like(share), np.minimum(share / end, 1.0)], axis=1)
        found, *_ = np.linalg.lstsq(design, commit, rcond=None)
        error = float(((design @ found - commit) ** 2).sum())
        if best is None or error < best[0] * 0.999:
            best = error, {"first": max(float(found[0]), 1.0), "last": max(float(found.sum()), 1.0), "share": end}
    assert best is not None
    return best[1]


def _repetition(rows: Sequence[Mapping[str, Any]], change: float) -> list[Caution]:
    low = [row["distinct2"] for row in rows if row.get("distinct2") is not None and row["distinct2"] < LATE_LOOP]
    if not low or change < 1 + DRIFT:
        return []
    return [Caution("repetition", f"{len(low)} answers repeat themselves in part: a rise there is no better drafter")]
