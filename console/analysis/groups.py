"""The arms or text kinds of a run, each with its levels: the table behind a verdict that holds them against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from console.analysis.levels import levels_of

GROUPED_BY = ("arm", "kind")
"""What requests are parted by, the first that takes more than one value."""
_NEEDED = ("steps", "N", "decode_s", "P")


def groups_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`[{"by": "arm", "group": "tree 8", "level", "requests", "context", "tok_s", "tok_s_ci", …}]`, in the order of their
    first requests; empty where there is one group, or none with exact steps.

    A level is what the run planned; figures are ratios of sums over the requests of a group at a level.
    """
    known = [row for row in rows if all(row.get(name) for name in _NEEDED)]
    if not all(row.get("arm") for row in known):  # an arm of some few is a question of its own, asked in passing
        known = [row for row in known if not row.get("arm")]
    by = next((name for name in GROUPED_BY if len({str(row.get(name)) for row in known if row.get(name)}) > 1), None)
    if by is None:
        return []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in known:
        if row.get(by):
            groups.setdefault(str(row[by]), []).append(row)
    every = tuple(groups.values())
    return [
        {"by": by, "group": name, **level.to_json()} for name, own in groups.items() for level in levels_of(own, every)
    ]
