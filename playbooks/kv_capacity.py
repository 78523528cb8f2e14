# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "kv_capacity"
# title = "KV capacity"
# key = "k"
# summary = "What context the engine really holds: the pool, bytes a token, and a request near the limit"
# version = "1.0.0"
# kind = "check"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["healthy", "inconsistent_data", "inconclusive", "void"]
# [tool.ddtree.playbook.params.probe]
# type = "int"
# default = 0
# min = 0
# max = "engine.max_context-16"
# help = "prompt tokens of the probe; 0: as near to the limit as the budget carries"
# [tool.ddtree.playbook.params.gpus]
# type = "int"
# default = 1
# min = 1
# max = 64
# help = "GPUs the cache may be split over, for the second reading of bytes a token"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 120
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""Which context is safe: four numbers side by side (the model's, the one asked for, the one served, the pool), and a probe.

Bytes a token are told in both readings: a latent cache is held whole on every GPU under plain tensor parallelism, a
cache by heads is split. A request near the limit proves what the numbers promise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

OUT_TOKENS = 8
FIRST = 512
GROWTH = 1.5  # a token of a long prompt costs more than one of the prompt before
MARGIN = 0.8


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "steps": 2,
        "est_s": params["budget_seconds"],
        "probe": params["probe"] or "prompts that double until the limit or the budget is reached",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Read the pool, then reach for the limit in growing prompts."""
    figures = pool(run)
    run.table(
        "context",
        ("what", "", "which number"),
        ("tokens", "tok", "tokens of one request"),
    )
    for name in ("model_tokens", "asked_tokens", "served_tokens", "pool_tokens"):
        if figures[name] is not None:
            run.row("context", what=name.replace("_tokens", ""), tokens=figures[name])
    limit = run.max_context - OUT_TOKENS
    wanted = run.params["probe"] or limit
    if wanted > limit:
        raise kit.Stop("bad_params", f"a probe of {wanted} tokens passes the {run.max_context} that the engine holds")
    length = min(FIRST, wanted)
    reached: Optional[int] = None
    while True:
        found = run.request("prose", length, OUT_TOKENS)
        run.sample(found, level=length)
        reached = length
        run.progress(length, wanted, f"{length} tokens held")
        following = wanted if length * 2 >= wanted else length * 2
        cost_s = (found["ttft_s"] or 0.0) * GROWTH * following / length
        if length == wanted or run.elapsed_s + cost_s > run.params["budget_seconds"] * MARGIN:
            break
        length = following
    run.row("context", what="probed", tokens=reached)
    return {**figures, "probed_tokens": reached, "limit_tokens": limit}


def pool(run: kit.Run) -> Dict[str, Any]:
    """The four numbers and both readings of bytes a token; None for what the engine does not say."""
    model, settings, kv = (run.info.get(name) or {} for name in ("model", "settings", "kv"))
    a_token = kv.get("bytes_per_token")
    return {
        "model_tokens": model.get("max_position_embeddings"),
        "asked_tokens": settings.get("context_length") or None,
        "served_tokens": run.max_context,
        "pool_tokens": kv.get("capacity_tokens"),
        "page_size": kv.get("page_size"),
        "bytes_per_token": a_token,
        "bytes_per_token_if_split": a_token / run.params["gpus"] if a_token else None,
        "pool_bytes": a_token * kv["capacity_tokens"] if a_token and kv.get("capacity_tokens") else None,
    }


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
