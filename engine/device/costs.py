"""What captured rounds cost on this GPU, measured once at the start: nodes by context, for the adaptive budget."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from engine.budget import RoundCost, convex
from engine.device.graphs import RoundGraphs, bucket
from engine.device.model import DeviceModel, DeviceState
from engine.device.round import plan_of

REPEATS = 7
"""The median of so many replays counts."""


def measure_round_cost(
    model: DeviceModel, state: DeviceState, graphs: RoundGraphs, budgets: Sequence[int], contexts: Sequence[int]
) -> RoundCost:
    """Milliseconds of whole rounds, by nodes and context. The state's pages must reach past the longest context.

    The state's length is nought afterwards; what its pages held is overwritten.
    """
    capacity = len(state.page_table) * model.page_size
    verify = tuple(
        (
            context,
            convex(
                tuple(
                    (float(budget + 1), _round_ms(model, state, graphs, budget, context, capacity))
                    for budget in budgets
                )
            ),
        )
        for context in contexts
    )
    state.length.zero_()
    state.waiting.zero_()
    return RoundCost(0.0, verify)


def costs_of(cost: RoundCost, context: int, budget: int, device: torch.device) -> Tensor:
    """The `costs` of a plan, float32 [budget + 1]: milliseconds of a round with n drafted nodes at this context."""
    return torch.tensor([cost.draft_ms + cost.verify_ms(1 + n, context) for n in range(budget + 1)], device=device)


def _round_ms(
    model: DeviceModel, state: DeviceState, graphs: RoundGraphs, budget: int, context: int, capacity: int
) -> float:
    plan = plan_of("ddtree" if budget else "off", budget, model, bucket(context + budget + model.block_size, capacity))
    times = []
    for _ in range(REPEATS + 1):
        state.length.fill_(context)
        state.waiting.zero_()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graphs.run(plan)
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return median(times[1:])
