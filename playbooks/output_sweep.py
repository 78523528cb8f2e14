# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "output_sweep"
# title = "Output length sweep"
# key = "o"
# summary = "Rate against output length, past the natural end of the text and up to it"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["explained", "unexplained", "inconsistent_data", "inconclusive", "void"]
# [tool.ddtree.playbook.params.outputs]
# type = "int_list"
# default = []
# min = 8
# max = "engine.max_context-prompt-8"
# help = "output tokens of each level; empty: five levels from 100 to 1600, as far as the budget carries"
# [tool.ddtree.playbook.params.prompt]
# type = "int"
# default = 64
# min = 8
# max = "engine.max_context-64"
# help = "prompt tokens of every request"
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 2
# min = 1
# max = 50
# help = "requests of each level and arm"
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
# help = "time to aim at: it scales the longest output"
# ///
"""Does the rate hold along an answer? Two arms: past the end of the text (ignore_eos), and up to its natural end.

Text that goes on past its end drifts towards repetition, which raises acceptance and hides the cost of context: the
ratio of distinct pairs of tokens of each output says so. Only the first arm has outputs of the planned length and
counts for the verdict; the second is there to be compared with it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
LONGEST = 1600
SHORTEST_TOP = 64
WARM_TOKENS = 16
SPARE = 8
MARGIN = 0.8  # of the budget is planned for
ARMS = ("ignore_eos", "natural")


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    count = len(params["outputs"]) or len(SHARES)
    return {
        "outputs": params["outputs"] or f"{len(SHARES)} levels up to {LONGEST} tokens",
        "arms": list(ARMS),
        "steps": count * params["reps"] * len(ARMS) + 1,
        "est_s": params["budget_seconds"],
        "budget": f"the longest output is scaled to end within about {params['budget_seconds']} s",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Warm up, choose the levels by the rate seen, then measure both arms in shuffled order."""
    params = run.params
    room = run.max_context - params["prompt"] - SPARE
    if room < SHORTEST_TOP and not params["outputs"]:
        raise kit.Stop("missing", f"the engine's context of {run.max_context} tokens is too short for a sweep")
    warm = run.request(params["kind"], params["prompt"], WARM_TOKENS)
    levels = params["outputs"] or choose_levels(params, room, warm)
    for level in levels:
        if level > room:
            message = f"{level} tokens behind a prompt of {params['prompt']} pass the context of {run.max_context}"
            raise kit.Stop("bad_params", message)
    run.log(f"outputs {list(levels)}, {params['reps']} repeats, arms {', '.join(ARMS)}")
    run.table(
        "outputs",
        ("outputs", "tok", "planned output tokens"),
        ("arm", "", "past the end of the text, or up to it"),
        ("tokens", "tok", "decode tokens that came"),
        ("tok_s", "tok/s", "decode rate"),
        ("commit", "tok/step", "commit length"),
        ("step_ms", "ms", "step time"),
        ("distinct2", "", "distinct pairs of tokens over all pairs"),
    )
    return sweep(run, levels)


def choose_levels(params: Mapping[str, Any], room: int, warm: Mapping[str, Any]) -> List[int]:
    """Five levels, each twice the one before; the longest by what the budget carries at the rate of the warm-up."""
    rate = warm["tok_s"] or 30.0
    tokens = params["budget_seconds"] * MARGIN * rate / (params["reps"] * len(ARMS))
    top = max(min(LONGEST, room, int(tokens / sum(SHARES))), SHORTEST_TOP)
    return [max(round(top * share), 4 + place) for place, share in enumerate(SHARES)]


def sweep(run: kit.Run, levels: Sequence[int]) -> Mapping[str, Any]:
    """Every level and arm once a round, in an order drawn from the seed."""
    params = run.params
    order = random.Random(run.seed)
    cells = [(level, arm) for level in levels for arm in ARMS]
    total = len(cells) * params["reps"]
    measured: List[Mapping[str, Any]] = []
    for rep in range(params["reps"]):
        for level, arm in order.sample(cells, len(cells)):
            figures = run.request(params["kind"], params["prompt"], level, ignore_eos=arm == "ignore_eos")
            measured.append({**figures, "level": level, "arm": arm})
            run.sample(figures, counts=arm == "ignore_eos", level=level, arm=arm, rep=rep, block=rep)
            show(run, level, arm, figures)
            run.progress(len(measured), total, f"{level} tokens, {arm}, repeat {rep + 1}")
    return {"levels": [level_stats(level, arm, measured) for level, arm in cells]}


def show(run: kit.Run, level: int, arm: str, figures: Mapping[str, Any]) -> None:
    """A row of the live table and a point of the live chart."""
    names = ("tok_s", "commit", "step_ms", "distinct2")
    run.row("outputs", outputs=level, arm=arm, tokens=figures["N"], **{name: figures[name] for name in names})
    if figures["tok_s"] is not None:
        run.series(arm, [level], [figures["tok_s"]], "output tokens", "tok/s")


def level_stats(level: int, arm: str, measured: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One cell as ratios of sums, with the lowest ratio of distinct pairs seen in it."""
    rows = [row for row in measured if row["level"] == level and row["arm"] == arm]
    distinct = [row["distinct2"] for row in rows if row["distinct2"] is not None]
    return {"level": level, "arm": arm, **kit.ratios(rows), "distinct2": min(distinct) if distinct else None}


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
