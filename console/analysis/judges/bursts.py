"""burst_vs_full: how far a short burst flatters the rate of the whole answer, and whether that is what it must be."""

from __future__ import annotations

import math
from typing import Any

from console.analysis.effects import effect_of_blocks
from console.analysis.identities import burst_bias
from console.analysis.judges.facts import RunFacts, inconclusive, screened, verdict
from console.analysis.verdicts import Caution

MISFIT = 0.05
"""Measured and predicted bias may differ by this much."""
BIASED = 0.05
"""A burst further from the whole answer than this must not stand for it."""


def judge_bursts(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `bias`: burst over full as measured, and as step and commit of both windows predict it."""
    rows = screened(facts)
    if rows.ended:
        return rows.ended
    with_burst = [row for row in rows.rows if row.get("burst") and row.get("client_decode_s")]
    if len(with_burst) < 2:
        return inconclusive("fewer than two answers were read both ways", rows.cautions)
    measured = [math.log(row["burst"]["tok_s"] * row["client_decode_s"] / row["N"]) for row in with_burst]
    predicted = [
        math.log(
            burst_bias(
                1000 * row["decode_s"] / row["steps"],
                row["burst"]["step_ms"],
                row["burst"]["commit"],
                row["N"] / row["steps"],
            )
        )
        for row in with_burst
    ]
    bias = effect_of_blocks(measured)
    gap = effect_of_blocks([one - other for one, other in zip(measured, predicted, strict=True)])
    step = math.exp(
        sum(math.log(1000 * row["decode_s"] / row["steps"] / row["burst"]["step_ms"]) for row in with_burst)
        / len(with_burst)
    )
    commit = math.exp(
        sum(math.log(row["burst"]["commit"] * row["steps"] / row["N"]) for row in with_burst) / len(with_burst)
    )
    interval = "" if bias.ci is None else f" [{bias.ci[0]:.2f}, {bias.ci[1]:.2f}]"
    words = f"a burst reads {bias.ratio:.2f}x{interval} of the whole answer's rate = step {step:.2f}x x acceptance {commit:.2f}x"
    fits = abs(gap.ratio - 1) < MISFIT
    cautions = list(rows.cautions)
    if abs(bias.ratio - 1) > BIASED:
        cautions.append(Caution("method", "never hold a burst's rate against that of a whole answer"))
    return verdict(
        "explained" if fits else "unexplained",
        words if fits else f"{words}, which leaves {gap.ratio:.2f}x outside the steps",
        cautions,
        "quote rates with their method" if fits else "look for pauses in the stream: run client_vs_box",
        bias={"measured": bias.to_json(), "step": step, "acceptance": commit, "outside": gap.to_json()},
    )
