"""Captured rounds: one CUDA graph a plan, replayed over the same tensors; the host reads tokens and their count, once a round.

What a graph fixes: the tree's size, the splits of attention, every address. What varies is read on the device: the seed,
the length, the page table, the sampling, the costs of an adaptive budget. Contexts are served in buckets of doubling length,
so a graph's splits suit its bucket. Without CUDA graphs the same round runs eagerly; both give the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.device.model import DeviceModel, DeviceState
from engine.device.round import Plan, device_round, plan_of, read_accepted

SHORTEST_BUCKET = 1024
"""Contexts up to so many tokens share a graph."""

WARM_UPS = 2
"""Eager runs before a capture: kernels compile, libraries choose, in none of which a capture may be caught."""


def bucket(length: int, capacity: int) -> int:
    """The context a graph is captured for to serve `length` tokens: doubling from the shortest, at most the capacity."""
    longest = SHORTEST_BUCKET
    while longest < length:
        longest *= 2
    return min(longest, capacity)


@dataclass(frozen=True)
class Captured:
    """A graph, and what it leaves in pinned memory: int64 [1 + most accepted], the count, then the tokens."""

    graph: torch.cuda.CUDAGraph
    answer: Tensor
    done: torch.cuda.Event


class RoundGraphs:
    """The captured rounds of one request state. Graphs share a memory pool: only one runs at a time."""

    def __init__(self, model: DeviceModel, state: DeviceState) -> None:
        self._model, self._state = model, state
        self._captured: dict[tuple[int, int, int, bool], Captured] = {}
        self._costs: dict[int, Tensor] = {}
        self._pool: Any = None  # of the first graph

    def prepare(self, capacity: int, tree_budget: int) -> None:
        """Capture what any request may fall back to, and the trees: off, chain and `tree_budget`, for every bucket.

        The state's pages must be real: a capture runs rounds on them. Its tokens and length are as before afterwards.
        """
        longest = bucket(1, capacity)
        while True:
            for mode in ("off", "dflash", "ddtree"):
                self._capture(plan_of(mode, tree_budget, self._model, longest))
            if longest >= capacity:
                return
            longest = bucket(longest + 1, capacity)

    def run(self, plan: Plan) -> list[int]:
        """One round of a plan, captured at its first use -> the tokens it adds. Waits for the device once, by an event."""
        captured = self.enqueue(plan)
        captured.done.synchronize()
        count, *tokens = captured.answer.tolist()
        return tokens[:count]

    def enqueue(self, plan: Plan) -> Captured:
        """Start a round and do not wait: its answer is there once `done` has happened."""
        captured = self._capture(plan)
        if plan.costs is not None:
            self._costs[plan.budget].copy_(plan.costs)
        captured.graph.replay()
        captured.done.record()
        return captured

    def _capture(self, plan: Plan) -> Captured:
        key = (plan.budget, plan.ranks, plan.longest, plan.costs is not None)
        if key not in self._captured:
            if plan.costs is not None:  # graphs read the costs of a budget from one place
                kept = self._costs.setdefault(plan.budget, plan.costs.clone())
                plan = replace(plan, costs=kept)
            self._captured[key] = self._captured_now(plan)
        return self._captured[key]

    def _captured_now(self, plan: Plan) -> Captured:
        """Warm up on a side stream, capture, and put the request back to where it was: rounds move it on."""
        state = self._state
        moved = (state.seed, state.length, state.features, state.waiting)
        kept = [tensor.clone() for tensor in moved]

        def put_back() -> None:
            for tensor, value in zip(moved, kept, strict=True):
                tensor.copy_(value)

        answer = torch.empty(1 + self._model.most_accepted, dtype=torch.int64, pin_memory=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                device_round(self._model, state, plan)
                put_back()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            device_round(self._model, state, plan)
            answer.copy_(torch.cat((state.accepted.count.long(), state.accepted.token_ids)), non_blocking=True)
        self._pool = self._pool or graph.pool()
        put_back()
        return Captured(graph, answer, torch.cuda.Event())


def run_eagerly(model: DeviceModel, state: DeviceState, plan: Plan) -> list[int]:
    """The same round without a graph -> the tokens it adds."""
    device_round(model, state, plan)
    return read_accepted(state)
