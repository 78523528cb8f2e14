# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "context_curve"
# title = "Context curve"
# key = "c"
# summary = "Step time and commit length against context length"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream"]
# wants = ["steps.exact", "accept.length", "tokens.count", "ignore_eos"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["explained", "unexplained", "inconsistent_data", "inconclusive", "void"]
# [tool.ddtree.playbook.params.levels]
# type = "int_list"
# default = []
# min = 8
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of each level; empty: five levels up to half of the engine's context, as far as the budget carries"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 64
# min = 16
# max = 4096
# help = "output tokens of every request"
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 3
# min = 2
# max = 50
# help = "measured requests a level, interleaved across the levels"
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
# help = "time to aim at: it scales the highest level, then the repeats"
# ///
"""How step time and commit length depend on the context: the same output length at five or more context levels."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, List, Mapping, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

SHARES = (0.0, 1 / 12, 1 / 4, 1 / 2, 1.0)  # of the highest level; the lowest one is a short prompt
LOWEST = 64
LEAST_SPAN = 16  # the highest level is never lowered below so many times the lowest: closer levels show no slope
WARM_TOKENS = 8
SPARE = 8  # tokens of context left free behind the longest request
MARGIN = 0.8  # of the budget is planned for; engines slow down under other load

Cost = Tuple[float, float, float]  # seconds of prefill a token, a token squared, and of decoding a token


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    count = len(params["levels"]) or len(SHARES)
    automatic = f"{len(SHARES)} levels from {LOWEST} tokens up to half of the engine's context, {kit.LADDER[0]} at most"
    return {
        "levels": params["levels"] or automatic,
        "steps": count * (params["reps"] + 1) + 2,
        "est_s": params["budget_seconds"],
        "budget": f"the highest level, then the repeats, are scaled to end within about {params['budget_seconds']} s; "
        "two repeats a level are always measured",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Calibrate, choose the levels, warm each one up, then measure them in rounds of shuffled order."""
    params = run.params
    limit = run.max_context - params["tokens"] - SPARE
    if limit < 2 * LOWEST:
        raise kit.Stop("missing", f"the engine's context of {run.max_context} tokens is too short for a curve")
    cost = calibrate(run, limit)
    levels = params["levels"] or choose_levels(params, min(limit, run.max_context // 2), cost)
    for level in levels:
        if level > limit:
            message = (
                f"a level of {level} with {params['tokens']} tokens passes the engine's context of {run.max_context}"
            )
            raise kit.Stop("bad_params", message)
    run.log(f"levels {list(levels)}, {params['tokens']} tokens each, {params['reps']} repeats")
    run.table(
        "levels",
        ("level", "tok", "prompt tokens"),
        ("tok_s", "tok/s", "decode rate"),
        ("commit", "tok/step", "commit length"),
        ("step_ms", "ms", "step time"),
        ("ttft_s", "s", "time to the first token"),
    )
    for place, level in enumerate(levels):  # the first request in a range of context pays for compilation
        run.request(params["kind"], level, WARM_TOKENS)
        run.progress(place + 1, len(levels) * (params["reps"] + 1), f"warm-up at {level} tokens")
    return rounds(run, levels)


def calibrate(run: kit.Run, limit: int) -> Cost:
    """What prefill and decoding cost here, from two short requests that count for nothing."""
    short, long = LOWEST, min(max(limit // 4, LOWEST * 2), 1024, limit)
    seconds = {}
    decode = 0.0
    for tokens in (short, long):
        figures = run.request(run.params["kind"], tokens, WARM_TOKENS)
        seconds[tokens] = figures["prefill_s"] or figures["ttft_s"] or 0.0
        decode = (figures["decode_s"] or 0.0) / max(figures["N"] or 1, 1)
    square = max((seconds[long] / long - seconds[short] / short) / (long - short), 0.0)
    return max(seconds[long] / long - square * long, 0.0), square, decode


def choose_levels(params: Mapping[str, Any], highest: int, cost: Cost) -> List[int]:
    """Five levels; the highest is the highest rung that lets warm-up and all repeats fit into the budget, or the floor."""
    floor = min(LOWEST * LEAST_SPAN, highest)
    for top in [rung for rung in kit.LADDER if floor < rung <= highest] + [floor]:
        lowest = min(LOWEST, top // 8)
        levels = [lowest + round((top - lowest) * share) for share in SHARES]
        measured = sum(seconds_of(level, params["tokens"], cost) for level in levels)
        warming = sum(seconds_of(level, WARM_TOKENS, cost) for level in levels)
        if run_s(params, measured, warming) <= params["budget_seconds"] * MARGIN:
            break
    return levels


def run_s(params: Mapping[str, Any], measured: float, warming: float) -> float:
    """Seconds of a run from those of one round of each sort."""
    return float(measured * params["reps"] + warming)


def seconds_of(level: int, tokens: int, cost: Cost) -> float:
    """What one request should take."""
    linear, square, decode = cost
    return level * linear + level * level * square + tokens * decode


def rounds(run: kit.Run, levels: Sequence[int]) -> Mapping[str, Any]:
    """Every level once a round, in an order drawn from the seed: drift of the machine spreads over all levels."""
    params = run.params
    order = random.Random(run.seed)
    total = len(levels) * (params["reps"] + 1)
    measured: List[Mapping[str, Any]] = []
    began = run.elapsed_s
    for rep in range(params["reps"]):
        round_s = (run.elapsed_s - began) / max(rep, 1)
        if rep >= 2 and run.elapsed_s + round_s > params["budget_seconds"]:
            message = f"{rep} of {params['reps']} repeats measured, then the time budget was used up"
            run.warn("budget", message, budget_s=params["budget_seconds"])
            break
        for level in order.sample(list(levels), len(levels)):
            figures = run.request(params["kind"], level, params["tokens"])
            measured.append({**figures, "level": level})
            run.sample(figures, level=level, rep=rep, block=rep)
            show(run, level, figures)
            done = len(levels) + len(measured)
            eta_s = (run.elapsed_s - began) / len(measured) * (total - done)
            run.progress(done, total, f"{level} tokens, repeat {rep + 1}", eta_s)
    return {"levels": [level_stats(level, measured) for level in levels]}


def show(run: kit.Run, level: int, figures: Mapping[str, Any]) -> None:
    """A row of the live table and a point of the live chart."""
    names = ("tok_s", "commit", "step_ms", "ttft_s")
    run.row("levels", level=level, **{name: figures[name] for name in names})
    if figures["step_ms"] is not None:
        run.series("step time", [figures["ctx_mid"]], [figures["step_ms"]], "context tokens", "ms")


def level_stats(level: int, measured: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One level as ratios of sums; the console works out the intervals."""
    return {"level": level, **kit.ratios([row for row in measured if row["level"] == level])}


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
