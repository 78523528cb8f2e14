# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "burst_vs_full"
# title = "Burst against full answer"
# key = "b"
# summary = "How much a short burst flatters the rate of a whole answer, measured on the same stream"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["explained", "unexplained", "inconclusive", "void"]
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 800
# min = 64
# max = "engine.max_context-prompt-8"
# help = "output tokens of each answer; fewer where the budget does not carry them"
# [tool.ddtree.playbook.params.prompt]
# type = "int"
# default = 1000
# min = 8
# max = "engine.max_context-128"
# help = "prompt tokens; fewer where the budget does not carry them"
# [tool.ddtree.playbook.params.first]
# type = "int"
# default = 8
# min = 1
# max = 1000
# help = "the burst begins after so many tokens"
# [tool.ddtree.playbook.params.last]
# type = "int"
# default = 200
# min = 16
# max = 4096
# help = "and ends after so many"
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 4
# min = 2
# max = 50
# help = "answers"
# [tool.ddtree.playbook.params.kind]
# type = "choice"
# choices = ["prose", "code", "math", "copy", "json", "chat"]
# default = "prose"
# help = "kind of text"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 150
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""The two-point reading of a rate beside the rate of the whole answer, from one and the same stream.

Between two points early in an answer the context is short and acceptance still high, so a burst reads high:
burst / full = (full step / burst step) x (burst commit / full commit). Both sides of that are measured here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

WARM_TOKENS = 24
MARGIN = 0.8  # of the budget is planned for


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "steps": params["reps"] + 2,
        "est_s": params["budget_seconds"],
        "burst": [params["first"], params["last"]],
        "budget": f"prompt and answers are shortened to end within about {params['budget_seconds']} s",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Choose the lengths, then read every answer both ways."""
    params = run.params
    if params["last"] < params["first"] + 8:
        raise kit.Stop("bad_params", f"a burst from {params['first']} to {params['last']} is too short to be read")
    prompt = kit.long_prompt(run, params["prompt"], params["reps"], params["last"] * 2, params["kind"])
    warm = run.request(params["kind"], prompt, WARM_TOKENS)
    carried = int(params["budget_seconds"] * MARGIN / 2 * (warm["tok_s"] or 30.0) / params["reps"])
    tokens = min(max(min(params["tokens"], carried), params["last"] * 2), kit.room_for(run, 0) - prompt)
    if tokens < params["last"] + 8:
        raise kit.Stop("missing", f"the engine's context of {run.max_context} tokens is too short for the burst")
    run.log(f"{params['reps']} answers of {tokens} tokens behind {prompt}, burst {params['first']} to {params['last']}")
    run.table(
        "readings",
        ("full", "tok/s", "rate of the whole answer"),
        ("burst", "tok/s", "rate between the two points"),
        ("bias", "", "burst over full"),
    )
    measured = []
    for rep in range(params["reps"]):
        figures, answer = run.ask(params["kind"], prompt, tokens)
        burst = burst_of(answer, params["first"], params["last"], prompt)
        if burst is None or figures["steps"] is None:
            raise kit.Stop(
                "missing", "the engine does not stream one chunk a step with its tokens", "capability_missing"
            )
        measured.append(figures)
        run.sample(figures, level=tokens, rep=rep, block=rep, burst=burst)
        rate = (figures["N"] or 0) / (figures["client_decode_s"] or 1.0)
        run.row("readings", full=rate, burst=burst["tok_s"], bias=burst["tok_s"] / rate)
        run.progress(rep + 1, params["reps"], f"answer {rep + 1}")
    return kit.ratios(measured)


def burst_of(answer: kit.Completion, first: int, last: int, prompt: int) -> Optional[Dict[str, float]]:
    """Tokens, steps and time between the chunk ends at or behind the two points; None where they cannot be told."""
    position, begin, end = 0, None, None
    for step, (count, stamp) in enumerate(zip(answer.chunk_tokens, answer.stamps_s)):
        position += count
        if begin is None and position >= first:
            begin = (position, step, stamp)
        if position >= last:
            end = (position, step, stamp)
            break
    if begin is None or end is None or end[1] <= begin[1]:
        return None
    tokens, steps, wall_s = end[0] - begin[0], end[1] - begin[1], end[2] - begin[2]
    return {
        "tokens": tokens,
        "steps": steps,
        "wall_s": wall_s,
        "tok_s": tokens / wall_s,
        "commit": tokens / steps,
        "step_ms": 1000 * wall_s / steps,
        "context": prompt + (begin[0] + end[0]) / 2,
    }


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
