"""What rounds cost on this machine, measured once at the start: the figures behind the adaptive budget."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from engine.budget import RoundCost, convex
from engine.cache import PageTable
from engine.draft import Drafting, DraftRequest, DraftState, draft_candidates
from engine.errors import EngineError
from engine.round import Generation, Rows, run_target
from engine.runtime import Runtime, Sampling, Speculation

REPEATS = 3
"""The least of so many runs counts: whatever else the machine does only adds."""


@torch.inference_mode()
def measure_cost(runtime: Runtime) -> RoundCost:
    """Times of a draft and of verify passes of growing size, with an empty cache and a full one.

    Raises EngineError where no drafter is loaded: there is no tree to size.
    """
    drafting = runtime.drafting
    if drafting is None:
        raise EngineError("adaptive_budget needs a drafter", where="[speculation]", mend="set drafter in [model]")
    most = min(runtime.config.speculation.tree_budget, runtime.capacity_tokens - 2) + 1
    sizes = sorted({1, *(size for size in (2, 4, 8, 16, 32, 64, 128, 256, 512) if size < most), most})
    contexts = sorted({0, max(0, min(runtime.max_context, runtime.capacity_tokens) - most)})
    table = PageTable(runtime.pool)
    table.grow(runtime.capacity_tokens)
    try:
        for store in (runtime.target_kv, drafting.kv):
            store.zero()
        verify = tuple(
            (context, convex(tuple((float(size), _verify_ms(runtime, table, context, size)) for size in sizes)))
            for context in contexts
        )
        return RoundCost(_draft_ms(runtime, drafting, table), verify)
    finally:
        table.release()


def _verify_ms(runtime: Runtime, table: PageTable, context: int, rows: int) -> float:
    generation = Generation([], Sampling(), Speculation("off"), table, None, position=context)
    part = Rows(generation, [0] * rows, range(context, context + rows), torch.eye(rows, dtype=torch.bool))
    return _least_ms(lambda: runtime.target.logits(run_target(runtime, [part])[0]))


def _draft_ms(runtime: Runtime, drafting: Drafting, table: PageTable) -> float:
    width = len(drafting.taps) * runtime.target.config.hidden_size
    ranks = min(runtime.config.speculation.tree_budget, runtime.target.config.vocab_size)

    def draft() -> object:
        state = DraftState(torch.zeros(1, width, dtype=runtime.target.dtype))
        return draft_candidates(drafting, runtime.target, [DraftRequest(table, state, 0, ranks)])

    return _least_ms(draft)


def _least_ms(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        began = perf_counter()
        work()
        times.append((perf_counter() - began) * 1e3)
    return min(times)
