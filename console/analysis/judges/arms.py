"""A/B playbooks that restart the service: correctness first, then effects over blocks, then what they allow to be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from console.analysis.blocks import BlockEffects, block_effects, precise_enough
from console.analysis.drift import throttled_arm, trend
from console.analysis.effects import AB_DELTA, blocks_needed, decide, minimum_detectable_effect
from console.analysis.judges.facts import Row, RunFacts, inconclusive, screened, verdict
from console.analysis.screening import is_degenerate
from console.analysis.verdicts import Caution

FEWEST_BLOCKS = 4
"""Fewer blocks than this explore; their verdict stays inconclusive whatever it looks like."""


def judge_ab(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `effects` of arm B over arm A. A wrong arm's speed is void, however good it is."""
    a, b = (str(arm) for arm in facts.summary.get("arms") or ("a", "b"))
    wrong = wrong_arm(facts.rows, b)
    if wrong is not None:
        return verdict("broken", wrong, (), f"keep {a}", speed="void")
    timed = [row for row in facts.rows if not row.get("probe")]
    rows = screened(replace(facts, rows=timed))
    if rows.ended:
        return rows.ended
    measured = [row for row in rows.rows if row.get("block") is not None and row.get("arm") in (a, b)]
    hot = throttled_arm({arm: [bool(row.get("throttle")) for row in measured if row["arm"] == arm] for arm in (a, b)})
    if hot is not None:
        return verdict(
            "void:throttled_arm", f"{hot} was throttled and the other arm was not", rows.cautions, "run it again"
        )
    effects = block_effects([row for row in measured if row.get("tok_s")], a, b)
    if effects is None:
        return inconclusive("no block has both arms", rows.cautions)
    klass = decide(effects.tok_s) if effects.blocks >= FEWEST_BLOCKS else "inconclusive"
    cautions = [*rows.cautions, *_cautions(effects, measured), *_stream(measured, a, b)]
    found: dict[str, Any] = {"effects": {name: one for name, one in effects.to_json().items() if name != "blocks"}}
    if klass == "faster" and facts.summary.get("changes"):
        found["changes"] = facts.summary["changes"]
    return verdict(klass, _headline(a, b, effects), cautions, _next(klass, effects, b), **found)


def wrong_arm(rows: Sequence[Row], arm: str) -> str | None:
    """Why an arm's output is wrong: the probe's tokens changed, or it loops where the other arm does not; None: it is not."""
    probes = [row for row in rows if row.get("probe")]
    by_prompt: dict[Any, dict[str, str]] = {}
    for row in probes:
        by_prompt.setdefault(row.get("pair"), {})[str(row["arm"])] = str(row["out_sha"])
    differing = [pair for pair, shas in by_prompt.items() if len(set(shas.values())) > 1]
    if differing:
        return f"{len(differing)} of {len(by_prompt)} greedy answers are other ones under {arm}"
    loops = {row["arm"]: 0 for row in rows if row.get("arm")}
    counts = dict(loops)
    for row in rows:
        if row.get("arm"):
            counts[row["arm"]] += 1
            loops[row["arm"]] += is_degenerate(row)
    ours = loops.get(arm, 0) / max(counts.get(arm, 0), 1)
    theirs = max((loops[one] / counts[one] for one in loops if one != arm), default=0.0)
    return (
        f"{100 * ours:.0f} % of the answers under {arm} are repetition loops" if ours > 0.5 and theirs < 0.2 else None
    )


def _headline(a: str, b: str, effects: BlockEffects) -> str:
    parts = []
    for name, effect in (("tok/s", effects.tok_s), ("commit", effects.commit), ("step", effects.step_ms)):
        interval = "" if effect.ci is None else f" [{effect.ci[0]:.3f}, {effect.ci[1]:.3f}]"
        parts.append(f"{name} {effect.ratio:.3f}x{interval}")
    return f"{b} over {a} in {effects.blocks} blocks: {', '.join(parts)}"


def _cautions(effects: BlockEffects, rows: Sequence[Row]) -> list[Caution]:
    found = []
    rate = effects.tok_s
    if effects.blocks < FEWEST_BLOCKS:
        found.append(
            Caution("exploratory", f"{effects.blocks} blocks only: no verdict is drawn from fewer than {FEWEST_BLOCKS}")
        )
    elif not precise_enough(rate) and rate.sd is not None:
        seen = minimum_detectable_effect(rate.sd, effects.blocks)
        words = f"so few blocks show effects from {100 * (seen or 0):.1f} % on"
        found.append(Caution("precision", f"{words}; {blocks_needed(rate.sd)} would show {100 * AB_DELTA:.0f} %"))
    if rate.non_normal:
        found.append(Caution("non_normal", "t and a permutation test disagree: look at the blocks one by one"))
    steps = [row["step_ms"] for row in rows if row.get("step_ms")]
    drift = trend(steps)
    if drift is not None and drift.drifts:
        found.append(
            Caution(
                "drift",
                f"step time drifts along the run (tau {drift.tau:+.2f}); the blocks cancel what is linear in it",
            )
        )
    return found


def _stream(rows: Sequence[Row], a: str, b: str) -> list[Caution]:
    """What B does to the stream a client sees: chunks a step, and the fields that the text comes in."""
    sides = [[row for row in rows if row["arm"] == arm and row.get("chunks")] for arm in (a, b)]
    if not all(sides):
        return []
    before, after = (_chunks_a_step(side) for side in sides)
    found = []
    if after < 0.5 * before:
        words = f"{b} gathers the stream: {after:.2f} chunks a step, {before:.2f} under {a}"
        found.append(Caution("buffered_stream", f"{words}; a client's gaps say nothing about steps under it"))
    names = [sorted({name for row in side for name in row.get("fields") or ()} - {"none"}) for side in sides]
    if names[0] != names[1]:
        found.append(
            Caution("fields", f"text comes in {', '.join(names[0])} under {a} and in {', '.join(names[1])} under {b}")
        )
    return found


def _chunks_a_step(rows: Sequence[Row]) -> float:
    """Chunks of the answers over their steps; where an answer's steps are not counted, those that its tokens stand for."""
    steps = sum(row["steps"] * row.get("chunks_of", row["N"]) / row["N"] for row in rows)
    return float(sum(row["chunks"] for row in rows) / steps)


def _next(klass: str, effects: BlockEffects, b: str) -> str:
    if klass == "faster":
        return "apply it"
    if klass in ("equivalent", "small"):
        return "leave it as it is"
    if klass == "slower":
        return f"leave {b} alone"
    needed = FEWEST_BLOCKS if effects.tok_s.sd is None else max(blocks_needed(effects.tok_s.sd), FEWEST_BLOCKS)
    return f"run it with {needed} blocks"
