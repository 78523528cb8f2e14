"""budget_sweep: which arm pays at which context, and the settings that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from console.analysis.effects import AB_DELTA, Cell, Effect, decide, effect_of_cells
from console.analysis.judges.facts import (
    Row,
    RunFacts,
    commit_of,
    inconclusive,
    rate_of,
    rates,
    screened,
    step_ms_of,
    verdict,
)

NOW = "now"


def judge_budgets(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `arms` (one entry an arm and context), `recommended` a context, and `changes` where one arm wins all.

    One contrast a context is judged: the best arm against the settings in force.
    """
    rows = screened(facts)
    if rows.ended:
        return rows.ended
    levels = sorted({float(row["level"]) for row in rows.rows})
    names = list(dict.fromkeys(str(row["arm"]) for row in rows.rows))
    cells = {
        (level, arm): [row for row in rows.rows if row["level"] == level and row["arm"] == arm]
        for level in levels
        for arm in names
    }
    if any(not cells[level, arm] for level in levels for arm in names) or NOW not in names:
        return inconclusive("not every arm was measured at every context", rows.cautions)
    arms = [_entry(level, arm, of_cell, cells[level, NOW]) for (level, arm), of_cell in cells.items()]
    same = _same_as_now(facts.env.get("settings") or {})
    recommended = {level: _best(level, names, cells, same) for level in levels}
    klass = _class([effect for _, effect in recommended.values()])
    words = "; ".join(_words(level, arm, effect, cells) for level, (arm, effect) in recommended.items())
    winner = _winner(names, levels, cells, same) if klass == "faster" else None
    changes = None if winner is None else _changes(winner)
    following = "nothing to change" if klass in ("equivalent", "small") else "run it again with more repeats"
    if klass == "faster":
        following = "apply it" if changes else "the contexts disagree: choose for the one that is served most"
    found = verdict(
        klass, words, rows.cautions, following, arms=arms,
        recommended=[{"level": level, "arm": arm, "effect": effect.to_json()} for level, (arm, effect) in recommended.items()],
    )  # fmt: skip
    even = break_even(cells, levels) if "off" in names else None
    if even is not None:
        found = {
            **found,
            "break_even": even,
            "next": f"{following}; above about {even:,.0f} tokens plain decoding is faster",
        }
    return {**found, "changes": changes} if changes else found


def break_even(cells: Mapping[tuple[float, str], Sequence[Row]], levels: Sequence[float]) -> float | None:
    """The context at which what is in force is as fast as plain decoding, between two levels that lie on either side of
    it: straight between the logarithms of both rates' quotient; None where there is no such pair."""
    gains = [math.log(rate_of(cells[level, NOW]) / rate_of(cells[level, "off"])) for level in levels]
    for (low, gain), (high, later) in pairwise(zip(levels, gains, strict=True)):
        if gain > 0 > later:
            return low + (high - low) * gain / (gain - later)
    return None


def _entry(level: float, arm: str, rows: Sequence[Row], now: Sequence[Row]) -> dict[str, Any]:
    effect = effect_of_cells([Cell(rates(now), rates(rows))])
    return {
        "level": level,
        "arm": arm,
        "requests": len(rows),
        "tok_s": rate_of(rows),
        "commit_length": commit_of(rows),
        "step_ms": step_ms_of(rows),
        "over_now": None if effect is None else effect.to_json(),
    }


def _same_as_now(settings: Mapping[str, Any]) -> str | None:
    """The arm that is what is in force anyway: it is no change."""
    mode = settings.get("mode")
    return {"off": "off", "dflash": "chain", "ddtree": f"tree {settings.get('tree_budget')}"}.get(str(mode))


def _best(
    level: float, names: Sequence[str], cells: Mapping[tuple[float, str], Sequence[Row]], same: str | None
) -> tuple[str, Effect]:
    """The fastest arm and its effect over what is in force; that itself where no other is faster."""
    now = rates(cells[level, NOW])
    effects = {arm: effect_of_cells([Cell(now, rates(cells[level, arm]))]) for arm in names if arm not in (NOW, same)}
    known = {arm: effect for arm, effect in effects.items() if effect is not None}
    arm = max(known, key=lambda one: known[one].ratio)
    return arm, known[arm]


def _winner(
    names: Sequence[str], levels: Sequence[float], cells: Mapping[tuple[float, str], Sequence[Row]], same: str | None
) -> str | None:
    """The best of the arms that are faster somewhere and nowhere slower than what is in force; None where none is."""
    scores: dict[str, float] = {}
    for arm in names:
        if arm in (NOW, same):
            continue
        found = [effect_of_cells([Cell(rates(cells[level, NOW]), rates(cells[level, arm]))]) for level in levels]
        effects = [effect for effect in found if effect is not None]
        if any(_decision(one) == "faster" for one in effects) and all(
            one.ratio > 1 / (1 + AB_DELTA) for one in effects
        ):
            scores[arm] = math.fsum(math.log(effect.ratio) for effect in effects)
    return max(scores, key=lambda arm: scores[arm]) if scores else None


def _class(effects: Sequence[Effect]) -> str:
    """The settings in force may be beaten at any context; they are fine only where no arm may be faster at all."""
    decisions = [_decision(effect) for effect in effects]
    for klass in ("faster", "inconclusive", "small"):
        if klass in decisions:
            return klass
    return "equivalent"


def _decision(effect: Effect) -> str:
    decision = decide(effect)
    return "equivalent" if decision == "slower" or (effect.ci and effect.ci[1] < 1 + AB_DELTA) else decision


def _words(level: float, arm: str, effect: Effect, cells: Mapping[tuple[float, str], Sequence[Row]]) -> str:
    interval = "" if effect.ci is None else f" [{effect.ci[0]:.2f}, {effect.ci[1]:.2f}]"
    best, now = cells[level, arm], cells[level, NOW]
    words = (
        f"at {level:g} tokens {arm} gives {rate_of(best):.1f} tok/s, {effect.ratio:.2f}x{interval} of what is in force "
        f"(commit {commit_of(now):.2f} -> {commit_of(best):.2f}, step {step_ms_of(now):.1f} -> {step_ms_of(best):.1f} ms)"
    )
    return (
        f"{words}: the tree does not pay here" if arm in ("off", "chain") and _decision(effect) == "faster" else words
    )


def _changes(arm: str) -> dict[str, Any]:
    """The settings of an arm, as `--set` names them."""
    if arm in ("off", "chain"):
        return {"mode": "off" if arm == "off" else "dflash"}
    return {"mode": "ddtree", "tree_budget": int(arm.removeprefix("tree "))}
