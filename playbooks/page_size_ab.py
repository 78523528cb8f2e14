# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "page_size_ab"
# title = "Page size A/B"
# key = "p"
# summary = "Another page size against the one in force: the same tokens first, then the speed"
# version = "1.0.0"
# kind = "ab"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos", "unit.restart"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = ["restarts_service"]
# exclusive = true
# est_seconds = "blocks*2*(20+requests*tokens/30)"
# max_seconds = 7200
# verdicts = ["faster", "slower", "equivalent", "small", "inconclusive", "broken", "void"]
# [tool.ddtree.playbook.params.page_size]
# type = "int"
# default = 64
# min = 1
# max = 256
# help = "tokens a page of the other arm"
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
"""Does another page size change the speed, and are its tokens still right?

Every block is two starts of the service, one an arm, in an order drawn from the seed. The questions asked first must be
answered alike under both: the speed of an arm with wrong tokens is void. At the end the old settings serve again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "arms": ["the page size in force", f"page {params['page_size']}"],
        "changes": [{"page_size": params["page_size"]}],
        "starts": params["blocks"] * 2,
        "steps": params["blocks"] * 2 * (params["requests"] + 1),
        "est_s": params["blocks"] * 2 * (20 + params["requests"] * params["tokens"] / 30),
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Blocks of both page sizes."""
    other = run.params["page_size"]
    with kit.Service(run) as service:
        # An engine may choose its own; then it is the engine that knows, if it tells.
        now = (run.info.get("settings") or {}).get("page_size") or service.values.get("page_size")
        if other == now:
            raise kit.Stop("bad_params", f"page_size {other} is in force already: name another")
        return kit.blocks(service, {f"page {now or 'by its own choice'}": {}, f"page {other}": {"page_size": other}})


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
