"""lossless: are the drafted answers the plain ones, and where they part, was it a near tie or a wrong verification?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from console.analysis.judges.facts import Row, RunFacts, inconclusive, screened, verdict

TIE_NAT = 0.05
"""A gap of the two best tokens up to this falls either way with the order of additions."""
BROKEN_NAT = 0.5
"""A gap from this on is no rounding."""


def judge_lossless(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `partings`: each pair of answers that parts, with place and gap. Loops count here: nothing is timed."""
    rows = screened(facts, loops_count=True)
    if rows.ended:
        return rows.ended
    drafted = [row for row in rows.rows if row.get("arm") != "off" and row.get("pair") is not None]
    if not drafted:
        return inconclusive("no pair of answers was compared", rows.cautions)
    parted = [row for row in drafted if row.get("parts_at") is not None]
    partings = [{name: row.get(name) for name in ("kind", "level", "pair", "parts_at", "gap_nat")} for row in parted]
    klass = _class(parted)
    compared = f"{len(drafted) - len(parted)} of {len(drafted)} greedy answers are the plain ones, token for token"
    return verdict(klass, compared + _words(klass, parted), rows.cautions, _NEXT[klass], partings=partings)


def _class(parted: Sequence[Row]) -> str:
    gaps = [row.get("gap_nat") for row in parted]
    known = [gap for gap in gaps if gap is not None]
    if any(gap >= BROKEN_NAT for gap in known):
        return "broken"
    if not parted:
        return "lossless"
    return "near_tie" if len(known) == len(gaps) and all(gap <= TIE_NAT for gap in known) else "inconclusive"


def _words(klass: str, parted: Sequence[Row]) -> str:
    if not parted:
        return ""
    worst = max(parted, key=lambda row: (row.get("gap_nat") or 0.0, -row["parts_at"]))
    where = f"{worst['kind']} at {worst['level']:g} tokens parts after {worst['parts_at']}"
    gap = worst.get("gap_nat")
    if klass == "broken":
        return f"; {where}, where the best token leads by {gap:.2f} nat: verification is wrong"
    if klass == "near_tie":
        return f"; the others part at near ties ({gap:.3f} nat at most), as rounding lets them"
    if gap is None:
        return f"; {where}, and the engine tells no log-probabilities, so a near tie cannot be told from a fault"
    return f"; {where} at a gap of {gap:.2f} nat, neither a near tie nor surely a fault"


_NEXT = {
    "lossless": "nothing to mend",
    "near_tie": "nothing to mend: run it in float32 if it must be exact",
    "broken": "do not serve with speculation: compare page size, tree mask and positions with a release that passes",
    "inconclusive": "run it again in float32, where near ties do not fall",
}
