# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "concurrency_sweep"
# title = "Concurrency sweep"
# key = "n"
# summary = "Total and per-user rate at 1, 2, 4, 8 requests at a time, with speculation and without"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = ["load"]
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["explained", "inconclusive", "void"]
# [tool.ddtree.playbook.params.levels]
# type = "int_list"
# default = [1, 2, 4, 8]
# min = 1
# max = 256
# help = "requests at a time"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 64
# min = 16
# max = 4096
# help = "output tokens of every request"
# [tool.ddtree.playbook.params.prompt]
# type = "int"
# default = 64
# min = 8
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of every request"
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 2
# min = 2
# max = 50
# help = "bursts of each level and arm"
# [tool.ddtree.playbook.params.kind]
# type = "choice"
# choices = ["prose", "code", "math", "copy", "json", "chat"]
# default = "prose"
# help = "kind of text"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 240
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""How the engine shares itself: bursts of requests that start together, with speculation and without.

Speculation spends arithmetic that a lone request leaves idle; with enough requests nothing is idle, and somewhere it
stops to pay. What the engine cannot run at a time waits in its queue, and the wait is told."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

ARMS: Mapping[str, Any] = {"now": None, "off": {"mode": "off"}}
MARGIN = 0.8  # of the budget is planned for


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "levels": params["levels"],
        "arms": list(ARMS),
        "steps": len(params["levels"]) * len(ARMS) * params["reps"],
        "est_s": params["budget_seconds"],
        "budget": "levels whose bursts the budget does not carry are left out, the highest first",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Bursts of every level and arm, in rounds of shuffled order."""
    params = run.params
    kit.room_for(run, params["tokens"] + params["prompt"] - kit.WARM_TOKENS)
    arms = ARMS if run.info.get("drafter") and run.chooses_speculation else {"now": None}
    began = time.monotonic()
    for choice in arms.values():
        run.request(params["kind"], params["prompt"], params["tokens"], speculation=choice)
    one_s = (time.monotonic() - began) / len(arms)
    levels = carried(
        sorted(set(params["levels"])), one_s * len(arms) * params["reps"], params["budget_seconds"] * MARGIN
    )
    if levels != sorted(set(params["levels"])):
        run.warn("budget", f"the budget carries {levels} of {params['levels']} requests at a time", levels=levels)
    run.table(
        "bursts",
        ("requests", "", "requests at a time"),
        ("arm", "", "speculation"),
        ("total_tok_s", "tok/s", "all tokens over the burst's wall time"),
        ("user_tok_s", "tok/s", "decode rate of one request"),
        ("queue_s", "s", "longest wait in the queue"),
    )
    cells = [{"level": level, "arm": arm} for level in levels for arm in arms]
    order = kit.shuffled(run, cells, params["reps"])
    for number, (rep, cell) in enumerate(order):
        began = time.monotonic()
        answers = run.together(params["kind"], params["prompt"], params["tokens"], cell["level"], arms[cell["arm"]])
        wall_s = time.monotonic() - began
        for figures in answers:
            run.sample(figures, **cell, rep=rep, block=rep, burst=number, burst_wall_s=wall_s)
        show(run, cell, answers, wall_s)
        run.progress(number + 1, len(order), f"{cell['level']} at a time, {cell['arm']}, repeat {rep + 1}")
    return {"levels": levels}


def carried(levels: List[int], a_request_s: float, budget_s: float) -> List[int]:
    """The lowest levels that fit if the engine runs one at a time; the two lowest always."""
    kept = list(levels)
    while len(kept) > 2 and sum(kept) * a_request_s > budget_s:
        kept.pop()
    return kept


def show(run: kit.Run, cell: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], wall_s: float) -> None:
    """A row of the live table and a point of the live chart."""
    total = sum(one["N_usage"] or 0 for one in answers) / wall_s
    queue_s = max(one["queue_s"] or 0.0 for one in answers)
    user = kit.ratios(answers)["tok_s"]
    run.row("bursts", requests=cell["level"], arm=cell["arm"], total_tok_s=total, user_tok_s=user, queue_s=queue_s)
    run.series(f"total, {cell['arm']}", [cell["level"]], [total], "requests at a time", "tok/s")


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
