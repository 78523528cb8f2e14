"""What device rounds cost here, measured once at the start: nodes by context, for the adaptive budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from engine.budget import RoundCost, convex
from engine.device.answer import Answer
from engine.device.graphs import bucket
from engine.device.model import DeviceModel, DeviceState
from engine.device.round import Plan, plan_of

REPEATS = 7
"""The median of so many rounds counts."""


def measure_round_cost(
    model: DeviceModel,
    state: DeviceState,
    run: Callable[[Plan], Answer],
    budgets: Sequence[int],
    contexts: Sequence[int],
) -> RoundCost:
    """Milliseconds of whole rounds, reading back included, by nodes and context. The state's pages reach past every context.

    `run` runs a round of a plan. The state's length is nought afterwards; what its pages held is overwritten.
    """
    capacity = len(state.page_table) * model.page_size

    def round_ms(budget: int, context: int) -> float:
        longest = bucket(context + max(budget + 1, model.block_size), capacity)
        plan = plan_of("ddtree" if budget else "off", budget, model, longest)
        times = []
        for _ in range(REPEATS + 1):
            state.length.fill_(context)
            state.waiting.zero_()
            began = perf_counter()
            run(plan)
            times.append((perf_counter() - began) * 1e3)
        return median(times[1:])

    verify = tuple(
        (context, convex(tuple((float(budget + 1), round_ms(budget, context)) for budget in budgets)))
        for context in contexts
    )
    state.length.zero_()
    state.waiting.zero_()
    return RoundCost(0.0, verify)


def costs_of(cost: RoundCost, context: int, budget: int, device: torch.device) -> Tensor:
    """The `costs` of a plan, float32 [budget + 1]: milliseconds of a round with n drafted nodes at this context."""
    return torch.tensor([cost.draft_ms + cost.verify_ms(1 + n, context) for n in range(budget + 1)], device=device)
