# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "parser_ab"
# title = "Parser A/B"
# key = "y"
# summary = "A reasoning or tool parser on against off: it must not touch step or commit length"
# version = "1.0.0"
# kind = "ab"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "openai.chat", "stream", "usage.stream", "ignore_eos", "unit.restart"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = ["restarts_service"]
# exclusive = true
# est_seconds = "blocks*2*(20+requests*tokens/30)"
# max_seconds = 7200
# verdicts = ["faster", "slower", "equivalent", "small", "inconclusive", "broken", "void"]
# [tool.ddtree.playbook.params.setting]
# type = "choice"
# choices = ["reasoning_parser", "tool_parser"]
# default = "reasoning_parser"
# help = "which parser"
# [tool.ddtree.playbook.params.value]
# type = "str"
# default = ""
# help = "the parser's name for the other arm; empty: off against the one in force"
# [tool.ddtree.playbook.params.blocks]
# type = "int"
# default = 6
# min = 1
# max = 50
# help = "pairs of service starts at most: it ends at 4, 6, 8 or 12 where the interval is narrow enough; fewer than four explore"
# [tool.ddtree.playbook.params.requests]
# type = "int"
# default = 3
# min = 1
# max = 50
# help = "measured requests of each start"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 96
# min = 16
# max = 4096
# help = "output tokens of every request"
# [tool.ddtree.playbook.params.prompt]
# type = "int"
# default = 256
# min = 8
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of every request"
# [tool.ddtree.playbook.params.kind]
# type = "choice"
# choices = ["prose", "code", "math", "copy", "json", "chat"]
# default = "prose"
# help = "kind of text"
# ///
"""Can a parser slow decoding down? It sees text only after the step, so step and commit length must be equivalent.

What it can change is the stream: chunks a step, and which field the text arrives in. Every block is two starts of the
service, one an arm, in an order drawn from the seed; at the end the old settings serve again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "arms": [f"the {params['setting']} in force", params["value"] or "off"],
        "changes": [{params["setting"]: params["value"]}],
        "starts": params["blocks"] * 2,
        "steps": params["blocks"] * 2 * (params["requests"] + 1),
        "est_s": params["blocks"] * 2 * (20 + params["requests"] * params["tokens"] / 30),
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Blocks with the parser and without."""
    name, other = run.params["setting"], run.params["value"]
    with kit.Service(run) as service:
        now = service.values.get(name)
        if other == now:
            raise kit.Stop("bad_params", f"{name} is {now or 'off'} already: give the other arm's as value")
        arms = {f"{name} {now or 'off'}": {}, f"{name} {other or 'off'}": {name: other}}
        return kit.blocks(service, arms, chat=True)


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
