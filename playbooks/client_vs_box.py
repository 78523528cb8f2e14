# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "client_vs_box"
# title = "Client against box"
# key = "w"
# summary = "What the way to the client costs: the same streams stamped on the box and at the console"
# version = "1.0.0"
# kind = "check"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 1800
# verdicts = ["explained", "network", "inconclusive", "void"]
# [tool.ddtree.playbook.params.streams]
# type = "int"
# default = 4
# min = 2
# max = 50
# help = "streams to read"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 160
# min = 16
# max = 2000
# help = "output tokens of each; fewer where the budget does not carry them"
# [tool.ddtree.playbook.params.prompt]
# type = "int"
# default = 64
# min = 8
# max = "engine.max_context-tokens-8"
# help = "prompt tokens"
# [tool.ddtree.playbook.params.wait]
# type = "int"
# default = 30
# min = 1
# max = 600
# help = "seconds to wait for a console that follows"
# [tool.ddtree.playbook.params.kind]
# type = "choice"
# choices = ["prose", "code", "math", "copy", "json", "chat"]
# default = "prose"
# help = "kind of text"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 90
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""The same stream stamped twice: on the box as it leaves the engine, and at the console as it arrives.

A tunnel delays the first chunk and the last alike, so it must not change the rate. What does: a busy client, a proxy that
gathers chunks, delayed acknowledgements (gaps of 40 ms). The console that follows the run is the client."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

WARM_TOKENS = 16
MARGIN = 0.7  # of the budget is planned for
FEWEST_TOKENS = 32


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "steps": params["streams"] + 1,
        "est_s": params["budget_seconds"],
        "client": "the console that follows the run; without one there is nothing to measure",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Offer the streams, and tell both sides' stamps of each."""
    params = run.params
    warm = run.request(params["kind"], params["prompt"], WARM_TOKENS)
    carried = int(params["budget_seconds"] * MARGIN * (warm["tok_s"] or 30.0) / params["streams"])
    tokens = max(min(params["tokens"], carried), FEWEST_TOKENS)
    prompts = [run.prompts.make(params["kind"], params["prompt"]) for _ in range(params["streams"])]
    with kit.Relay(run, prompts, tokens) as relay:
        relay.ask_for_a_client()
        if not relay.wait_for_client(params["wait"]):
            raise kit.Stop(
                "missing", f"no console followed within {params['wait']} s to read the streams", "client_missing"
            )
        for number, stream in enumerate(kit.streams(relay)):
            run.sample({"level": params["prompt"], "kind": params["kind"], **stream}, rep=number, block=number)
            run.progress(number + 1, params["streams"], f"stream {number + 1}")
    return {"streams": params["streams"], "tokens": tokens}


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
