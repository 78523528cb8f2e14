"""Captured rounds: one CUDA graph a plan, replayed over the same tensors; the host reads one row of pinned memory a round.

What a graph fixes: the tree's size, the splits of attention, every address. What varies is read on the device: the seed,
the length, the page table, the sampling, the costs of an adaptive budget. Contexts are served in buckets of doubling length,
so a graph's splits suit its bucket. Without CUDA graphs the same round runs eagerly; both give the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.device.answer import Answer, packed, size, unpacked
from engine.device.model import DeviceModel, DeviceState
from engine.device.round import Plan, device_round
from engine.device.stages import EventStages, HostStages

SHORTEST_BUCKET = 1024
"""Contexts up to so many tokens share a graph."""

WARM_UPS = 2
"""Eager runs before a capture: kernels compile, libraries choose, in none of which a capture may be caught."""

MOST_GRAPHS = 128
"""Plans beyond so many run eagerly: requests may ask for budgets of their own, and each graph takes memory."""


def bucket(length: int, capacity: int) -> int:
    """The context a graph is captured for to serve `length` tokens: doubling from the shortest, at most the capacity."""
    longest = SHORTEST_BUCKET
    while longest < length:
        longest *= 2
    return min(longest, capacity)


def buckets(capacity: int) -> list[int]:
    """All buckets, the longest first: a shared pool then holds the largest buffers from the start."""
    found = [bucket(1, capacity)]
    while found[-1] < capacity:
        found.append(bucket(found[-1] + 1, capacity))
    return found[::-1]


@dataclass(frozen=True)
class Captured:
    """A graph, the pinned row it leaves its answer in, and events: of its stages, and of its end."""

    graph: torch.cuda.CUDAGraph
    row: Tensor
    stages: EventStages
    done: torch.cuda.Event


class RoundGraphs:
    """The captured rounds of one request state. Graphs share a memory pool: only one runs at a time."""

    def __init__(self, model: DeviceModel, state: DeviceState) -> None:
        self._model, self._state = model, state
        self._captured: dict[tuple[int, int, int, bool, bool], Captured] = {}
        self._costs: dict[int, Tensor] = {}
        self._pool: Any = None  # of the first graph

    def prepare(self, plans: Iterable[Plan]) -> None:
        """Capture plans ahead of their first use, as many as there may be.

        The state's pages must be real: a capture runs rounds on them. Its tokens and length are as before afterwards.
        """
        for plan in plans:
            if self._may_have(plan):
                self._capture(plan)

    def run(self, plan: Plan) -> Answer:
        """One round of a plan, captured at its first use. Waits for the device once, by an event."""
        if not self._may_have(plan):
            return run_eagerly(self._model, self._state, plan)
        captured = self.enqueue(plan)
        captured.done.synchronize()
        return unpacked(captured.row, self._model.most_accepted, captured.stages.milliseconds(), captured=True)

    def enqueue(self, plan: Plan) -> Captured:
        """Start a round and do not wait: its answer is there once `done` has happened."""
        captured = self._capture(plan)
        if plan.costs is not None:
            self._costs[plan.budget].copy_(plan.costs)
        captured.graph.replay()
        captured.done.record()
        return captured

    def _may_have(self, plan: Plan) -> bool:
        return _key(plan) in self._captured or len(self._captured) < MOST_GRAPHS

    def _capture(self, plan: Plan) -> Captured:
        key = _key(plan)
        if key not in self._captured:
            if plan.costs is not None:  # graphs read the costs of a budget from one place
                kept = self._costs.setdefault(plan.budget, plan.costs.clone())
                plan = replace(plan, costs=kept)
            self._captured[key] = self._captured_now(plan)
        return self._captured[key]

    def _captured_now(self, plan: Plan) -> Captured:
        """Warm up on a side stream, capture, and put the request back to where it was: warm-ups move it on."""
        state = self._state
        moved = (state.seed, state.length, state.features, state.waiting)
        kept = [tensor.clone() for tensor in moved]
        row = _pinned(size(self._model.most_accepted, plan.nodes))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                try:
                    packed(state.accepted, device_round(self._model, state, plan))
                finally:  # where it fails, the request goes on without a graph
                    for tensor, value in zip(moved, kept, strict=True):
                        tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(side)
        graph, stages = torch.cuda.CUDAGraph(), EventStages()

        def work() -> None:
            outcome = device_round(self._model, state, plan, stages.mark)
            row.copy_(packed(state.accepted, outcome), non_blocking=True)

        _record(graph, self._pool, work)
        self._pool = self._pool or graph.pool()
        return Captured(graph, row, stages, torch.cuda.Event())


def _record(graph: torch.cuda.CUDAGraph, pool: Any, work: Callable[[], None]) -> None:
    """Capture `work` without running it.

    Other threads may use the GPU's driver meanwhile: only what this thread does is held to a capture's rules.
    """
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()


def _pinned(numbers: int) -> Tensor:
    """A row in host memory that the device writes to by itself."""
    return torch.empty(numbers, dtype=torch.int64, pin_memory=True)


def _key(plan: Plan) -> tuple[int, int, int, bool, bool]:
    return (plan.budget, plan.ranks, plan.longest, plan.keeps_up, plan.costs is not None)


def run_eagerly(model: DeviceModel, state: DeviceState, plan: Plan) -> Answer:
    """The same round without a graph; it reads back once as well."""
    stages = EventStages() if model.device.type == "cuda" else HostStages()
    row = packed(state.accepted, device_round(model, state, plan, stages.mark)).cpu()
    return unpacked(row, model.most_accepted, stages.milliseconds(), captured=False)
