# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "budget_sweep"
# title = "Tree budget sweep"
# key = "t"
# summary = "Which tree budget pays at which context; autoregressive and chain decoding beside it"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos", "spec.on"]
# wants = ["steps.exact", "accept.length", "tokens.count", "unit.restart"]
# effects = []
# restarts_on = ["sglang", "vllm"]
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["faster", "equivalent", "small", "inconclusive", "void"]
# [tool.ddtree.playbook.params.budgets]
# type = "int_list"
# default = [4, 8, 16, 32, 64]
# min = 1
# max = 1024
# help = "tree budgets, in drafted nodes"
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
# help = "requests of each arm and context"
# [tool.ddtree.playbook.params.kind]
# type = "choice"
# choices = ["prose", "code", "math", "copy", "json", "chat"]
# default = "prose"
# help = "kind of text"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 240
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""Rate, commit length and step time of every tree budget, of the chain and of no speculation, at two contexts.

On the bundled engine a request chooses its own budget, so nothing is restarted; elsewhere every arm of every round is a
start of the service. All arms are in every round, in shuffled order. The commit length grows with the budget and so does
the step: only their quotient says what pays, and it depends on the context."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

CURRENT = "now"
AT_ONCE = 4  # requests beside each other, where the service allows as many: what holds one may not hold more


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    arms, contexts = len(params["budgets"]) + 3, 2 if params["long"] else 1
    return {
        "arms": [CURRENT, "off", "chain", *(f"tree {budget}" for budget in params["budgets"])],
        "steps": arms * contexts * params["reps"],
        "changes": [change for change in changes_of(params).values() if change],
        "est_s": params["budget_seconds"],
        "budget": f"the long context, then the repeats, are scaled to end within about {params['budget_seconds']} s",
    }


def arms_of(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Each arm's own choice of speculation; the one in force chooses nothing."""
    trees = {f"tree {budget}": {"mode": "ddtree", "tree_budget": budget} for budget in sorted(set(params["budgets"]))}
    return {CURRENT: None, "off": {"mode": "off"}, "chain": {"mode": "dflash"}, **trees}


def changes_of(params: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Each arm as changes of the service's settings, for engines that take no choice with a request."""
    return {arm: dict(choice or {}) for arm, choice in arms_of(params).items()}


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Every arm at every context, a few times over."""
    if run.chooses_speculation:
        return by_request(run)
    with kit.Service(run) as service:
        return by_restart(run, service)


def contexts_of(run: kit.Run, arms: int) -> List[int]:
    """The short context, and the long one as far as the budget carries it."""
    params = run.params
    if not params["long"]:
        return [params["short"]]
    long = kit.long_prompt(run, params["long"], arms * params["reps"], params["tokens"], params["kind"])
    return sorted({params["short"], long})


def declare_table(run: kit.Run) -> None:
    """The live table of either way."""
    run.table(
        "arms",
        ("arm", "", "speculation"),
        ("context", "tok", "prompt tokens"),
        ("tok_s", "tok/s", "decode rate"),
        ("commit", "tok/step", "commit length"),
        ("step_ms", "ms", "step time"),
    )


def measured(run: kit.Run, arm: str, level: int, speculation: Any = None) -> Dict[str, Any]:
    """One request of an arm, shown."""
    figures = run.request(run.params["kind"], level, run.params["tokens"], speculation=speculation)
    run.row("arms", arm=arm, context=level, **{name: figures[name] for name in ("tok_s", "commit", "step_ms")})
    return figures


def holds(run: kit.Run, arm: str, level: int, speculation: Any = None) -> bool:
    """Whether several requests of an arm beside each other come through at the longest context measured.

    Memory that sufficed for a start may not suffice for the traffic. Raises Stop where it is the arm in force that fails.
    """
    settings = run.info.get("settings") or {}
    count = min(AT_ONCE, int(settings.get("max_running_requests") or AT_ONCE))
    try:
        run.together(run.params["kind"], level, kit.WARM_TOKENS, count, speculation)
    except kit.Stop as stop:
        if stop.status != "engine" or arm == CURRENT:
            raise
        run.warn("fails_under_load", f"{arm}: {count} requests beside each other at {level} tokens: {stop}", arm=arm)
        return False
    return True


def by_request(run: kit.Run) -> Mapping[str, Any]:
    """Each request chooses its arm."""
    params, arms = run.params, arms_of(run.params)
    contexts = contexts_of(run, len(arms))
    for choice in arms.values():
        run.request(params["kind"], params["short"], kit.WARM_TOKENS, speculation=choice)
    if "speculation" in run.engine.refused:
        raise kit.Stop("missing", "the engine takes no budget with a request", "capability_missing")
    while not holds(run, list(arms)[-1], contexts[-1], list(arms.values())[-1]):  # the widest tree is the last one
        arms.popitem()
    declare_table(run)
    cells: List[Dict[str, Any]] = [{"arm": arm, "level": level} for arm in arms for level in contexts]
    rows = kit.rounds(
        run, cells, params["reps"], lambda cell: measured(run, cell["arm"], cell["level"], arms[cell["arm"]])
    )
    return {"arms": {arm: kit.ratios([row for row in rows if row["arm"] == arm]) for arm in arms}}


def by_restart(run: kit.Run, service: kit.Service) -> Mapping[str, Any]:
    """Each start of the service is an arm; one measured request a context and start, since the start is the replicate."""
    params = run.params
    arms = startable(run, service)
    contexts = contexts_of(run, len(arms))
    declare_table(run)
    rows: List[Dict[str, Any]] = []
    order = kit.shuffled(run, [{"arm": arm} for arm in arms], params["reps"])
    began = run.elapsed_s
    for number, (rep, cell) in enumerate(order):
        arm = cell["arm"]
        if arm not in arms:
            continue
        service.start_with(arms[arm])
        if rep == 0 and not holds(run, arm, contexts[-1]):
            del arms[arm]
            continue
        for level in contexts:
            run.request(params["kind"], level, kit.WARM_TOKENS)
            rows.append({**measured(run, arm, level), "arm": arm, "level": level, "rep": rep, "block": rep})
            run.sample(rows[-1])
        a_start_s = (run.elapsed_s - began) / (number + 1)
        left = len(order) - number - 1
        run.progress(number + 1, len(order), f"{arm}, round {rep + 1}", a_start_s * left)
        if number == 0 and a_start_s * left > run.left_s:
            message = (
                f"a start takes {a_start_s:.0f} s, and {left} more do not fit into the time left: ask for fewer budgets"
            )
            raise kit.Stop("missing", message, "too_slow")
    return {"arms": {arm: kit.ratios([row for row in rows if row["arm"] == arm]) for arm in arms}}


def startable(run: kit.Run, service: kit.Service) -> Dict[str, Dict[str, Any]]:
    """The arms that this engine can be started with. Raises Stop(missing) where only the one in force is left."""
    mode, left_out = service.values.get("mode"), {}
    arms: Dict[str, Dict[str, Any]] = {}
    for arm, changes in changes_of(run.params).items():
        needs_blocks = changes.get("mode") in ("dflash", "ddtree") and mode not in ("dflash", "ddtree")
        why = f"the drafter of {mode} drafts no blocks" if needs_blocks else service.refusal(changes)
        if why is None:
            arms[arm] = changes
        else:
            left_out[arm] = why
    for why in sorted(set(left_out.values())):
        names = ", ".join(arm for arm, reason in left_out.items() if reason == why)
        run.warn("arms_left_out", f"{names}: {why}", arms=[arm for arm, reason in left_out.items() if reason == why])
    if len(arms) < 2:
        raise kit.Stop("missing", next(iter(left_out.values())), "capability_missing")
    return arms


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
