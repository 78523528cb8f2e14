"""concurrency_sweep: total and per-user rate against requests at a time, the knee, and where speculation stops to pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from console.analysis.judges.facts import Row, RunFacts, commit_of, inconclusive, rate_of, screened, step_ms_of, verdict
from console.analysis.verdicts import Caution

GAIN = 1.05
"""One more level must add this much to the total rate, or the knee was before it."""


def judge_concurrency(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `levels_of_arms`, `knee` and `break_even` (requests at a time above which plain decoding is faster)."""
    rows = screened(facts)
    if rows.ended:
        return rows.ended
    entries = [_entry(arm, level, of_cell) for (arm, level), of_cell in sorted(_cells(rows.rows).items())]
    by_arm = {arm: [entry for entry in entries if entry["arm"] == arm] for arm in ("now", "off")}
    if len(by_arm["now"]) < 2:
        return inconclusive("fewer than two levels were measured", rows.cautions)
    knee = _knee(by_arm["now"])
    even = _break_even(by_arm["now"], by_arm["off"])
    first, top = by_arm["now"][0], max(by_arm["now"], key=lambda entry: entry["total_tok_s"])
    words = (
        f"total {first['total_tok_s']:.1f} tok/s alone, {top['total_tok_s']:.1f} at {top['level']} at a time; "
        f"knee at {knee}, {by_arm['now'][-1]['user_tok_s']:.1f} tok/s a user at {by_arm['now'][-1]['level']}"
    )
    if by_arm["off"]:
        words += "; speculation pays at every level" if even is None else f"; speculation stops to pay at {even}"
    cautions = list(rows.cautions)
    allowed = (facts.env.get("settings") or {}).get("max_running_requests")
    if allowed is not None and allowed < max(entry["level"] for entry in entries):
        cautions.append(
            Caution("queued", f"the engine runs {allowed} at a time (max_running_requests); the rest waits")
        )
    following = "nothing to mend" if even is None else f"switch speculation off where more than {even} requests run"
    return verdict("explained", words, cautions, following, levels_of_arms=entries, knee=knee, break_even=even)


def _cells(rows: Sequence[Row]) -> Mapping[tuple[str, int], list[Row]]:
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((str(row["arm"]), int(row["level"])), []).append(row)
    return cells


def _entry(arm: str, level: int, rows: Sequence[Row]) -> dict[str, Any]:
    walls = {row["burst"]: row["burst_wall_s"] for row in rows}
    return {
        "arm": arm,
        "level": level,
        "bursts": len(walls),
        "total_tok_s": sum(row["N_usage"] for row in rows) / sum(walls.values()),
        "user_tok_s": rate_of(rows),
        "commit_length": commit_of(rows),
        "step_ms": step_ms_of(rows),
        "queue_s": max(row.get("queue_s") or 0.0 for row in rows),
    }


def _knee(entries: Sequence[Mapping[str, Any]]) -> int:
    """The last level that still added to the total."""
    knee = entries[0]
    for entry in entries[1:]:
        if entry["total_tok_s"] < knee["total_tok_s"] * GAIN:
            break
        knee = entry
    return int(knee["level"])


def _break_even(now: Sequence[Mapping[str, Any]], off: Sequence[Mapping[str, Any]]) -> int | None:
    """The first level at which plain decoding gives more in total."""
    plain = {entry["level"]: entry["total_tok_s"] for entry in off}
    return next((int(e["level"]) for e in now if plain.get(e["level"], 0.0) > e["total_tok_s"]), None)
