# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "quick_probe"
# title = "Quick probe"
# key = "q"
# summary = "Is it healthy: rate, commit length, step time and time to the first token on two kinds of text"
# version = "1.0.0"
# kind = "probe"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream"]
# wants = ["steps.exact", "accept.length", "tokens.count", "ignore_eos"]
# effects = []
# exclusive = true
# est_seconds = "2*(reps+1)*tokens/30"
# max_seconds = 900
# verdicts = ["healthy", "commit_collapsed", "inconsistent_data", "inconclusive", "void"]
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 3
# min = 1
# max = 50
# help = "measured requests of each kind"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 96
# min = 16
# max = 4096
# help = "output tokens of every request"
# [tool.ddtree.playbook.params.prompt]
# type = "int"
# default = 128
# min = 8
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of every request"
# [tool.ddtree.playbook.params.first]
# type = "choice"
# choices = ["prose", "code", "math", "copy", "json", "chat"]
# default = "prose"
# help = "one kind of text"
# [tool.ddtree.playbook.params.second]
# type = "choice"
# choices = ["prose", "code", "math", "copy", "json", "chat"]
# default = "chat"
# help = "the other kind of text"
# ///
"""Is the engine healthy? A few requests of two kinds of text, in turn: rate = commit length / step time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

WARM_TOKENS = 16


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do."""
    return {
        "kinds": kinds_of(params),
        "steps": len(kinds_of(params)) * (params["reps"] + 1),
        "est_s": len(kinds_of(params)) * (params["reps"] + 1) * params["tokens"] / 30,
    }


def kinds_of(params: Mapping[str, Any]) -> List[str]:
    """Both kinds, or one where they are the same."""
    return sorted({params["first"], params["second"]}, key=[params["first"], params["second"]].index)


def measure(run: kit.Run) -> Mapping[str, Any]:
    """A discarded request of each kind, then the kinds in turn."""
    params, kinds = run.params, kinds_of(run.params)
    total = len(kinds) * (params["reps"] + 1)
    run.table(
        "requests",
        ("kind", "", "kind of text"),
        ("tok_s", "tok/s", "decode rate"),
        ("commit", "tok/step", "commit length"),
        ("step_ms", "ms", "step time"),
        ("ttft_s", "s", "time to the first token"),
    )
    for place, kind in enumerate(kinds):
        run.request(kind, params["prompt"], WARM_TOKENS)
        run.progress(place + 1, total, f"warm-up, {kind}")
    measured: List[Mapping[str, Any]] = []
    for rep in range(params["reps"]):
        for kind in kinds if rep % 2 == 0 else reversed(kinds):
            figures = run.request(kind, params["prompt"], params["tokens"])
            measured.append(figures)
            run.sample(figures, level=params["prompt"], rep=rep, block=rep)
            run.row("requests", kind=kind, **{name: figures[name] for name in ("tok_s", "commit", "step_ms", "ttft_s")})
            if figures["tok_s"] is not None:
                run.series(kind, [len(measured)], [figures["tok_s"]], "request", "tok/s")
            run.progress(len(kinds) + len(measured), total, f"{kind}, request {rep + 1}")
    by_kind = {kind: kit.ratios([row for row in measured if row["kind"] == kind]) for kind in kinds}
    return {**kit.ratios(measured), "kinds": by_kind}


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
