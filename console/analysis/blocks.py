"""ABBA blocks: in which order two arms are measured, the contrast of each block, and when there are enough of them.

All of one arm and then all of the other lets slow drift of the machine pass for an effect (28 to 53 % false positives at
a nominal 5 %); a block A B B A cancels any linear drift exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.analysis.effects import AB_DELTA, Effect, effect_of_blocks

METRICS = ("tok_s", "commit", "step_ms")
LOOKS = (4, 6, 8, 12, 16)
"""Numbers of blocks at which a run may stop."""
ALPHA_PER_LOOK = 0.0158
"""Significance each of five looks may use up, so that all together stay at 5 %."""


@dataclass(frozen=True)
class BlockEffects:
    """Effects of arm B over arm A on rate, commit length and step time, from the same blocks; they add on logarithms."""

    blocks: int
    tok_s: Effect
    commit: Effect
    step_ms: Effect

    def to_json(self) -> dict[str, Any]:
        """`{"blocks", "tok_s", "commit", "step_ms"}`."""
        return {"blocks": self.blocks, **{name: getattr(self, name).to_json() for name in METRICS}}


def block_contrasts(rows: Sequence[Mapping[str, Any]], a: str, b: str) -> dict[str, list[float]]:
    """Per metric one `mean ln y_B - mean ln y_A` a block, blocks in order; a block without both arms is left out."""
    blocks: dict[int, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        blocks.setdefault(int(row["block"]), {}).setdefault(str(row["arm"]), []).append(row)
    whole = [arms for _, arms in sorted(blocks.items()) if arms.get(a) and arms.get(b)]
    return {name: [_mean_log(arms[b], name) - _mean_log(arms[a], name) for arms in whole] for name in METRICS}


def block_effects(rows: Sequence[Mapping[str, Any]], a: str, b: str) -> BlockEffects | None:
    """Effects of `b` over `a`; None without a single whole block."""
    contrasts = block_contrasts(rows, a, b)
    count = len(contrasts["tok_s"])
    if count == 0:
        return None
    return BlockEffects(count, **{name: effect_of_blocks(contrasts[name]) for name in METRICS})


def precise_enough(rate: Effect, delta: float = AB_DELTA) -> bool:
    """Precision-first stopping: the half-width of the 95 % interval is at most half the effect of interest."""
    if rate.ci is None:
        return False
    return math.log(rate.ci[1] / rate.ci[0]) / 2 <= math.log1p(delta) / 2


def _mean_log(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return math.fsum(math.log(row[name]) for row in rows) / len(rows)
