# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "budget_sweep"
# title = "Tree budget sweep"
# key = "t"
# summary = "Which tree budget pays at which context; autoregressive and chain decoding beside it"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos", "spec.on"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["faster", "equivalent", "small", "inconclusive", "void"]
# [tool.ddtree.playbook.params.budgets]
# type = "int_list"
# default = [4, 8, 16, 32, 64]
# min = 1
# max = 1024
# help = "tree budgets, in drafted nodes"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 96
# min = 16
# max = 4096
# help = "output tokens of every request"
# [tool.ddtree.playbook.params.short]
# type = "int"
# default = 64
# min = 8
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of the short context"
# [tool.ddtree.playbook.params.long]
# type = "int"
# default = 3000
# min = 0
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of the long context, lowered where the budget does not carry it; 0 leaves it out"
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 3
# min = 2
# max = 50
# help = "requests of each arm and context"
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
"""Rate, commit length and step time of every tree budget, of the chain and of no speculation, at two contexts.

A request chooses its own budget, so nothing is restarted. All arms are in every round, in shuffled order. The commit
length grows with the budget and so does the step: only their quotient says what pays, and it depends on the context."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

CURRENT = "now"


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    arms, contexts = len(params["budgets"]) + 3, 2 if params["long"] else 1
    return {
        "arms": [CURRENT, "off", "chain", *(f"tree {budget}" for budget in params["budgets"])],
        "steps": arms * contexts * params["reps"],
        "est_s": params["budget_seconds"],
        "budget": f"the long context, then the repeats, are scaled to end within about {params['budget_seconds']} s",
    }


def arms_of(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Each arm's own choice of speculation; the one in force chooses nothing."""
    trees = {f"tree {budget}": {"mode": "ddtree", "tree_budget": budget} for budget in sorted(set(params["budgets"]))}
    return {CURRENT: None, "off": {"mode": "off"}, "chain": {"mode": "dflash"}, **trees}


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Every arm at every context, a few times over."""
    params, arms = run.params, arms_of(run.params)
    if not run.chooses_speculation:
        raise kit.Stop(
            "missing", f"{run.engine.kind} takes no choice of speculation with a request", "capability_missing"
        )
    contexts = [params["short"]]
    if params["long"]:
        contexts.append(
            kit.long_prompt(run, params["long"], len(arms) * params["reps"], params["tokens"], params["kind"])
        )
    for choice in arms.values():
        run.request(params["kind"], params["short"], kit.WARM_TOKENS, speculation=choice)
    if "speculation" in run.engine.refused:
        raise kit.Stop("missing", "the engine takes no budget with a request", "capability_missing")
    run.table(
        "arms",
        ("arm", "", "speculation"),
        ("context", "tok", "prompt tokens"),
        ("tok_s", "tok/s", "decode rate"),
        ("commit", "tok/step", "commit length"),
        ("step_ms", "ms", "step time"),
    )
    cells: List[Dict[str, Any]] = [{"arm": arm, "level": level} for arm in arms for level in sorted(set(contexts))]

    def take(cell: Mapping[str, Any]) -> Mapping[str, Any]:
        figures = run.request(params["kind"], cell["level"], params["tokens"], speculation=arms[cell["arm"]])
        run.row(
            "arms", arm=cell["arm"], context=cell["level"], **{n: figures[n] for n in ("tok_s", "commit", "step_ms")}
        )
        return figures

    measured = kit.rounds(run, cells, params["reps"], take)
    return {"arms": {arm: kit.ratios([row for row in measured if row["arm"] == arm]) for arm in arms}}


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
