# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "accept_drift"
# title = "Acceptance along an answer"
# key = "a"
# summary = "Does the commit length hold along one long answer, and where does it fall"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["acceptance_drift", "explained", "inconclusive", "void"]
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 1200
# min = 100
# max = "engine.max_context-prompt-8"
# help = "output tokens of each answer; fewer where the budget does not carry them"
# [tool.ddtree.playbook.params.prompt]
# type = "int"
# default = 64
# min = 8
# max = "engine.max_context-128"
# help = "prompt tokens"
# [tool.ddtree.playbook.params.window]
# type = "int"
# default = 100
# min = 10
# max = 1000
# help = "tokens of a window"
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 3
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
"""How commit length and step time change with the position in one long answer, window by window.

A step is a chunk of the stream, so each window's steps and time are counted exactly. Text that goes on past its end
drifts into repetition, which looks like better acceptance: the share of distinct pairs of tokens is told with each answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

WARM_TOKENS = 24
MARGIN = 0.8  # of the budget is planned for
LEAST_WINDOWS = 4


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "steps": params["reps"] + 1,
        "est_s": params["budget_seconds"],
        "budget": f"answers are shortened to end within about {params['budget_seconds']} s, "
        f"{LEAST_WINDOWS} windows at least",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Warm up, choose the length by the rate seen, then measure the answers."""
    params = run.params
    warm = run.request(params["kind"], params["prompt"], WARM_TOKENS)
    carried = int(params["budget_seconds"] * MARGIN * (warm["tok_s"] or 30.0) / params["reps"])
    tokens = min(params["tokens"], kit.room_for(run, 0) - params["prompt"], carried)
    tokens = max(tokens, LEAST_WINDOWS * params["window"] + 1)
    if tokens > kit.room_for(run, 0) - params["prompt"]:
        raise kit.Stop("missing", f"the engine's context of {run.max_context} tokens is too short for {tokens}")
    run.log(f"{params['reps']} answers of {tokens} tokens, windows of {params['window']}")
    run.table(
        "windows",
        ("position", "tok", "tokens of the answer at the window's end"),
        ("commit", "tok/step", "commit length"),
        ("step_ms", "ms", "step time"),
    )
    measured: List[Mapping[str, Any]] = []
    for rep in range(params["reps"]):
        figures, answer = run.ask(params["kind"], params["prompt"], tokens)
        if figures["steps"] is None or len(answer.chunk_tokens) != figures["steps"] + 1:
            raise kit.Stop("missing", "the engine does not stream one chunk a step", "capability_missing")
        windows = windows_of(answer, params["window"])
        measured.append(figures)
        run.sample(figures, level=params["prompt"], rep=rep, block=rep, windows=windows)
        for window in windows:
            commit, step_ms = window["tokens"] / window["steps"], 1000 * window["wall_s"] / window["steps"]
            run.row("windows", position=window["end"], commit=commit, step_ms=step_ms)
        run.series(
            f"answer {rep + 1}",
            [window["end"] for window in windows],
            [window["tokens"] / window["steps"] for window in windows],
            "output tokens",
            "tok/step",
        )
        run.progress(rep + 1, params["reps"], f"answer {rep + 1}")
    return {"tokens": tokens, **kit.ratios(measured)}


def windows_of(answer: kit.Completion, size: int) -> List[Dict[str, float]]:
    """Consecutive steps in windows of at least `size` tokens; what is left at the end joins the last one."""
    windows: List[Dict[str, float]] = []
    tokens, steps, began, position = 0, 0, answer.stamps_s[0], 0
    for count, stamp in zip(answer.chunk_tokens[1:], answer.stamps_s[1:]):
        tokens, steps, position = tokens + count, steps + 1, position + count
        if tokens >= size:
            windows.append({"end": position, "tokens": tokens, "steps": steps, "wall_s": stamp - began})
            tokens, steps, began = 0, 0, stamp
    if steps and windows:
        last = windows[-1]
        last.update(
            end=position,
            tokens=last["tokens"] + tokens,
            steps=last["steps"] + steps,
            wall_s=last["wall_s"] + answer.stamps_s[-1] - began,
        )
    return windows


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
