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

from engine.device.answer import Answer, packed, packed_tree, size, unpacked, unpacked_tree, write_tree
from engine.device.model import DeviceModel, DeviceState
from engine.device.round import Plan, device_round, drafted, verified
from engine.device.stages import EventStages, HostStages
from engine.tree import DraftTree
from kernels.tree_build import TreeTensors

Graft = Callable[[DraftTree], DraftTree]
"""What the host makes of a drafted tree before it is verified: of the same budget at most."""

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


@dataclass(frozen=True)
class Halves:
    """A round in two graphs, between which the host grafts: the first leaves its tree in a pinned row, the second takes `room`."""

    draft: torch.cuda.CUDAGraph
    tree_row: Tensor
    built: torch.cuda.Event
    room: TreeTensors
    rest: Captured


class RoundGraphs:
    """The captured rounds of one request state. Graphs share a memory pool: only one runs at a time."""

    def __init__(self, model: DeviceModel, state: DeviceState) -> None:
        self._model, self._state = model, state
        self._captured: dict[tuple[int, int, int, bool, bool], Captured] = {}
        self._halves: dict[tuple[int, int, int, bool, bool], Halves] = {}
        self._costs: dict[int, Tensor] = {}
        self._pool: Any = None  # of the first graph

    def prepare(self, plans: Iterable[Plan], *, grafted: bool = False) -> None:
        """Capture plans ahead of their first use, as many as there may be; `grafted`: in halves, where they draft.

        The state's pages must be real: a capture runs rounds on them. Its tokens and length are as before afterwards.
        """
        for plan in plans:
            if grafted and self._may_have_halves(plan):
                self._halves[_key(plan)] = self._halves.get(_key(plan)) or self._halves_now(plan)
            elif not grafted and self._may_have(plan):
                self._capture(plan)

    def run(self, plan: Plan, graft: Graft | None = None) -> Answer:
        """One round of a plan, captured at its first use. Waits for the device once, by an event, and once more for a `graft`."""
        if graft is not None:
            return self._run_grafted(plan, graft)
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

    def _run_grafted(self, plan: Plan, graft: Graft) -> Answer:
        self.prepare([plan], grafted=True)
        halves = self._halves.get(_key(plan))
        if halves is None:
            return run_eagerly(self._model, self._state, plan, graft)
        halves.draft.replay()
        halves.built.record()
        halves.built.synchronize()
        tree = graft(unpacked_tree(halves.tree_row))
        write_tree(tree, halves.room)
        rest = halves.rest
        rest.graph.replay()
        rest.done.record()
        rest.done.synchronize()
        answer = unpacked(rest.row, self._model.most_accepted, rest.stages.milliseconds(), captured=True)
        return replace(answer, tree=tree)

    def _may_have(self, plan: Plan) -> bool:
        return _key(plan) in self._captured or len(self._captured) + 2 * len(self._halves) < MOST_GRAPHS

    def _may_have_halves(self, plan: Plan) -> bool:
        return _key(plan) in self._halves or len(self._captured) + 2 * len(self._halves) < MOST_GRAPHS

    def _capture(self, plan: Plan) -> Captured:
        key = _key(plan)
        if key not in self._captured:
            if plan.costs is not None:  # graphs read the costs of a budget from one place
                kept = self._costs.setdefault(plan.budget, plan.costs.clone())
                plan = replace(plan, costs=kept)
            self._captured[key] = self._captured_now(plan)
        return self._captured[key]

    def _captured_now(self, plan: Plan) -> Captured:
        state, row, stages = self._state, _pinned(size(self._model.most_accepted, plan.nodes)), EventStages()
        self._warm_up(lambda: packed(state.accepted, device_round(self._model, state, plan)))

        def work() -> None:
            outcome = device_round(self._model, state, plan, stages.mark)
            row.copy_(packed(state.accepted, outcome), non_blocking=True)

        return Captured(self._recorded(work), row, stages, torch.cuda.Event())

    def _halves_now(self, plan: Plan) -> Halves:
        model, state, stages = self._model, self._state, EventStages()
        room = TreeTensors.empty(plan.nodes, model.device)
        tree_row, row = _pinned(1 + 4 * plan.nodes), _pinned(size(model.most_accepted, plan.nodes))

        def warm_up() -> None:
            tree = drafted(model, state, plan)
            packed_tree(tree)
            for ours, theirs in zip(room.tensors(), tree.tensors(), strict=True):
                ours.copy_(theirs)
            packed(state.accepted, verified(model, state, plan, room))

        def draft() -> None:
            tree_row.copy_(packed_tree(drafted(model, state, plan, stages.mark)), non_blocking=True)

        def rest() -> None:
            outcome = verified(model, state, plan, room, stages.mark)
            row.copy_(packed(state.accepted, outcome), non_blocking=True)

        self._warm_up(warm_up)
        graph = self._recorded(draft)
        done = Captured(self._recorded(rest), row, stages, torch.cuda.Event())
        return Halves(graph, tree_row, torch.cuda.Event(), room, done)

    def _warm_up(self, work: Callable[[], object]) -> None:
        """Run `work` on a side stream, then put the request back to where it was: rounds move it on."""
        state = self._state
        moved = (state.seed, state.length, state.features, state.waiting)
        kept = [tensor.clone() for tensor in moved]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                try:
                    work()
                finally:  # where it fails, the request goes on without a graph
                    for tensor, value in zip(moved, kept, strict=True):
                        tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(side)

    def _recorded(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        _record(graph, self._pool, work)
        self._pool = self._pool or graph.pool()
        return graph


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


def run_eagerly(model: DeviceModel, state: DeviceState, plan: Plan, graft: Graft | None = None) -> Answer:
    """The same round without a graph; it reads back as often."""
    stages = EventStages() if model.device.type == "cuda" else HostStages()
    tensors = drafted(model, state, plan, stages.mark)
    tree = None
    if graft is not None:
        tree = graft(unpacked_tree(packed_tree(tensors).cpu()))
        tensors = TreeTensors.empty(plan.nodes, model.device)
        write_tree(tree, tensors)
    row = packed(state.accepted, verified(model, state, plan, tensors, stages.mark)).cpu()
    answer = unpacked(row, model.most_accepted, stages.milliseconds(), captured=False)
    return answer if tree is None else replace(answer, tree=tree)
