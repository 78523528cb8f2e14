"""How sweeps are put together: cells measured in rounds of shuffled order, and how long a prompt the budget carries."""

from __future__ import annotations

import random
from typing import Any, Callable, List, Mapping, Sequence, Tuple

from kit_end import Stop
from kit_run import Run

LADDER = (12000, 8000, 6000, 4000, 3000, 2000, 1500, 1024, 512, 256, 128)
"""Lengths that levels are chosen from: the same machine chooses the same ones again, and its runs can be compared."""
PROBE_TOKENS = 256
WARM_TOKENS = 8
SPARE = 8  # tokens of context left free behind the longest request
LEAST_ROUNDS = 2
PREFILL_SHARE = 0.5  # of the budget may go into reading prompts
GROWTH = 1.3  # a long prompt costs more a token than the one that was timed

Cell = Mapping[str, Any]


def rounds(
    run: Run, cells: Sequence[Cell], reps: int, take: Callable[[Cell], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Every cell once a round, in an order drawn from the seed, so that drift of the machine spreads over all of them.

    A cell's fields go into its samples. After two rounds the budget, if the playbook has one, may end it.
    """
    order, measured, began = random.Random(run.seed), [], run.elapsed_s
    budget_s, total = run.params.get("budget_seconds"), len(cells) * reps
    for rep in range(reps):
        round_s = (run.elapsed_s - began) / max(rep, 1)
        if budget_s and rep >= LEAST_ROUNDS and run.elapsed_s + round_s > budget_s:
            run.warn("budget", f"{rep} of {reps} repeats measured, then the time budget was used up", budget_s=budget_s)
            break
        for cell in order.sample(list(cells), len(cells)):
            found = {**take(cell), **cell, "rep": rep, "block": rep}
            measured.append(found)
            run.sample(found)
            eta_s = (run.elapsed_s - began) / len(measured) * (total - len(measured))
            label = ", ".join(str(value) for value in cell.values())
            run.progress(len(measured), total, f"{label}, repeat {rep + 1}", eta_s)
    return measured


def shuffled(run: Run, cells: Sequence[Cell], reps: int) -> List[Tuple[int, Cell]]:
    """Every cell once a round as (round, cell), each round in an order drawn from the seed."""
    order = random.Random(run.seed)
    return [(rep, cell) for rep in range(reps) for cell in order.sample(list(cells), len(cells))]


def room_for(run: Run, output_tokens: int) -> int:
    """The longest prompt that leaves room for so long an answer. Raises Stop(missing) where there is none."""
    room = run.max_context - output_tokens - SPARE
    if room < 2 * WARM_TOKENS:
        message = f"the engine's context of {run.max_context} tokens is too short for {output_tokens} tokens of output"
        raise Stop("missing", message)
    return room


def long_prompt(run: Run, wanted: int, requests: int, output_tokens: int, kind: str = "prose") -> int:
    """The longest prompt of the ladder up to `wanted` whose `requests` readings take half of the budget at most.

    One request is made to find out, and counts for nothing.
    """
    room = room_for(run, output_tokens)
    probe = min(PROBE_TOKENS, room)
    found = run.request(kind, probe, WARM_TOKENS)
    a_token_s = (found["prefill_s"] or found["ttft_s"] or 0.0) / probe
    budget_s = run.params.get("budget_seconds") or 150
    for level in LADDER:
        fits = level * a_token_s * GROWTH * requests <= budget_s * PREFILL_SHARE
        if level <= min(wanted, room) and (fits or level <= 2 * PROBE_TOKENS):
            return level
    return min(wanted, room)  # shorter than any rung
