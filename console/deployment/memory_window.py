"""Whether a memory fraction can still be found: what earlier tries of it ended with, in the engine's own words.

An engine that counts neither the drafter nor its captured graphs into its share of memory fails at both ends: a little less
and the pool does not fit, a little more and the rest runs out. Then no fraction is right, and something has to get smaller.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TOO_MUCH = re.compile(r"out of memory|\boom\b", re.IGNORECASE)
_TOO_LITTLE = re.compile(
    r"(increase|raise)\W+\W*(--)?(mem[-_]fraction|gpu[-_]memory[-_]utilization|memory[-_]fraction)"
    r"|no available memory for the cache blocks",
    re.IGNORECASE,
)
NARROW = 0.02
"""Between a fraction that is too little and one that is too much there is nothing to try when they lie so close."""


@dataclass(frozen=True)
class Tried:
    """One change that was taken back: the memory fraction it asked for, and why it failed."""

    fraction: float
    reason: str


def memory_window(tried: Sequence[Tried], asked: float) -> str | None:
    """A warning about asking for `asked`; None where the earlier tries say nothing against it."""
    little = max((one.fraction for one in tried if _TOO_LITTLE.search(one.reason)), default=None)
    much = min((one.fraction for one in tried if _is_too_much(one.reason)), default=None)
    if little is not None and much is not None and much - little <= NARROW:
        return (
            f"memory_fraction {little:g} was too little and {much:g} ran out of memory: no value serves these settings; "
            "make tree_budget, max_running_requests or context_length smaller, or leave out captured graphs"
        )
    if much is not None and asked >= much:
        return f"memory_fraction {much:g} ran out of memory before, and {asked:g} is no less"
    if little is not None and asked <= little:
        return f"memory_fraction {little:g} was too little before, and {asked:g} is no more"
    return None


def _is_too_much(reason: str) -> bool:
    return bool(_TOO_MUCH.search(reason)) and not _TOO_LITTLE.search(reason)
