"""drafter_kinds: on which text the drafter earns its keep, how deep its drafts are kept, and what that says of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from console.analysis.judges.facts import Row, RunFacts, commit_of, rate_of, screened, step_ms_of, verdict
from console.analysis.run_verdict import COLLAPSED_COMMIT, impossible_commit
from console.analysis.statistics import ratio_interval
from console.analysis.verdicts import Caution

RARE_DEPTH = 0.02
"""A depth that fewer than this share of steps reach pays for no nodes."""


def judge_kinds(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `kinds`: one entry a kind and context, worst kind first."""
    rows = screened(facts)
    if rows.ended:
        return rows.ended
    cells: dict[tuple[str, float], list[Row]] = {}
    for row in rows.rows:
        cells.setdefault((str(row["kind"]), float(row["level"])), []).append(row)
    kinds = sorted(
        (_entry(kind, level, of_cell) for (kind, level), of_cell in cells.items()), key=lambda e: e["commit_length"]
    )
    impossible = impossible_commit([entry["commit_length"] for entry in kinds], facts.env)
    if impossible is not None:
        return verdict(
            "inconsistent_data", impossible, rows.cautions, "check how the engine counts tokens", kinds=kinds
        )
    worst, best = kinds[0], kinds[-1]
    survival = survival_of(rows.rows)
    cautions = [*rows.cautions, *_depth(survival, facts.env.get("block_size"))]
    words = (
        f"commit length from {worst['commit_length']:.2f} ({_name(worst)}) to {best['commit_length']:.2f} ({_name(best)}), "
        f"{commit_of(rows.rows):.2f} over all"
    )
    klass, following = "healthy", "judge a change of drafter by kind, not by the mean"
    if worst["commit_length"] < COLLAPSED_COMMIT:
        klass = "commit_collapsed"
        words += f": on {worst['kind']} the drafter's tokens are hardly ever kept"
        following = f"train the drafter on {worst['kind']}, or switch speculation off for it"
    return verdict(klass, words, cautions, following, kinds=kinds, survival=survival)


def _name(entry: dict[str, Any]) -> str:
    return f"{entry['kind']} at {entry['level']:g}"


def _entry(kind: str, level: float, rows: Sequence[Row]) -> dict[str, Any]:
    interval = ratio_interval([row["N"] for row in rows], [row["steps"] for row in rows])
    return {
        "kind": kind,
        "level": level,
        "requests": len(rows),
        "commit_length": commit_of(rows),
        "commit_length_ci": None if interval is None else list(interval),
        "step_ms": step_ms_of(rows),
        "tok_s": rate_of(rows),
        "survival": survival_of(rows),
    }


def survival_of(rows: Sequence[Row]) -> list[float]:
    """Share of steps that kept a drafted token at depth 1, 2, …; their sum and 1 for the bonus is the commit length."""
    hists = [row["hist"] for row in rows if row.get("hist")]
    if not hists:
        return []
    counts = [sum(hist[i] for hist in hists if i < len(hist)) for i in range(max(map(len, hists)))]
    steps = sum(counts)
    return [sum(counts[depth:]) / steps for depth in range(1, len(counts)) if sum(counts[depth:])]


def _depth(survival: Sequence[float], block_size: Any) -> list[Caution]:
    """Advice where the drafter drafts deeper than anything is kept."""
    deep = next((depth for depth, share in enumerate(survival, start=1) if share < RARE_DEPTH), len(survival) + 1)
    if not survival or not isinstance(block_size, int) or block_size <= deep + 1:
        return []
    share = f"fewer than {100 * RARE_DEPTH:.0f} % of steps"
    return [
        Caution(
            "depth",
            f"{share} keep a token at depth {deep} or deeper: a block of {deep} would do for the drafter's {block_size}",
        )
    ]
