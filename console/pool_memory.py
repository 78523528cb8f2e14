"""What a plan's capacity arithmetic takes from the running engine: the memory it has its share of, and its own pool."""

from __future__ import annotations

from dataclasses import replace

from console.deployment.change import ChangePlan
from console.snapshot import Snapshot


def memory_for_pool(snapshot: Snapshot) -> int | None:
    """Bytes that the engine takes its share of: the smallest GPU's, or the machine's where there is none.

    Memory that the engine itself holds now is free again when it restarts.
    """
    if snapshot.gpus:
        totals = [gpu.memory_total_bytes for gpu in snapshot.gpus if gpu.memory_total_bytes]
        return min(totals, default=None)
    machine, process = snapshot.machine, snapshot.process
    if machine is None or machine.memory_total_bytes is None or machine.memory_used_bytes is None:
        return None
    own = process.rss_bytes or 0 if process else 0
    return machine.memory_total_bytes - machine.memory_used_bytes + own


def beside_own_pool(plan: ChangePlan, snapshot: Snapshot) -> ChangePlan:
    """The plan's arithmetic, and next to it what the running engine says of its pool."""
    kv = snapshot.kv
    if kv is None:
        return plan
    own = f"the engine's own pool now: {kv.pages_total:,} pages of {kv.page_size} tokens = {kv.pages_total * kv.page_size:,} tokens"
    return replace(plan, capacity=(*plan.capacity, own))
