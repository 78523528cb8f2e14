# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "drafter_kinds"
# title = "Drafter by kind of text"
# key = "d"
# summary = "Commit length on six kinds of text, at a short and a long context"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["healthy", "commit_collapsed", "inconsistent_data", "inconclusive", "void"]
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
# help = "requests of each kind and context"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 150
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""On which kinds of text does the drafter earn its keep? Every kind at two contexts, in rounds of shuffled order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    contexts = 2 if params["long"] else 1
    return {
        "kinds": list(kit.KINDS),
        "contexts": [params["short"], params["long"]][:contexts],
        "steps": len(kit.KINDS) * contexts * params["reps"],
        "est_s": params["budget_seconds"],
        "budget": f"the long context, then the repeats, are scaled to end within about {params['budget_seconds']} s",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Every kind at every context, a few times over."""
    params = run.params
    contexts = [params["short"]]
    if params["long"]:
        requests = len(kit.KINDS) * params["reps"]
        contexts.append(kit.long_prompt(run, params["long"], requests, params["tokens"]))
    else:
        run.request("prose", params["short"], kit.WARM_TOKENS)
    cells = [{"kind": kind, "level": level} for kind in kit.KINDS for level in sorted(set(contexts))]
    run.table(
        "kinds",
        ("kind", "", "kind of text"),
        ("context", "tok", "prompt tokens"),
        ("commit", "tok/step", "commit length"),
        ("tok_s", "tok/s", "decode rate"),
        ("step_ms", "ms", "step time"),
    )

    def take(cell: Mapping[str, Any]) -> Mapping[str, Any]:
        figures = run.request(cell["kind"], cell["level"], params["tokens"])
        shown = {name: figures[name] for name in ("commit", "tok_s", "step_ms")}
        run.row("kinds", kind=cell["kind"], context=cell["level"], **shown)
        return figures

    measured = kit.rounds(run, cells, params["reps"], take)
    of_kind = {kind: kit.ratios([row for row in measured if row["kind"] == kind]) for kind in kit.KINDS}
    return {**kit.ratios(measured), "kinds": of_kind}


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
