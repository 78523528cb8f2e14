# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "lossless"
# title = "Lossless check"
# key = "l"
# summary = "Does speculation give the very tokens of plain decoding, on long prompts and outputs too"
# version = "1.0.0"
# kind = "check"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos", "spec.on"]
# wants = ["steps.exact", "accept.length", "tokens.count", "logprobs"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["lossless", "near_tie", "broken", "inconclusive"]
# [tool.ddtree.playbook.params.prompts]
# type = "int"
# default = 20
# min = 2
# max = 200
# help = "prompts, short ones and long ones by turns"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 96
# min = 16
# max = 4096
# help = "output tokens of each answer"
# [tool.ddtree.playbook.params.long]
# type = "int"
# default = 3000
# min = 64
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of the long ones, lowered where the budget does not carry them"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 240
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""Greedy answers with speculation against plain greedy ones, token by token.

Where two answers part, the gap between the two most probable tokens at that place says why: a near tie may fall either
way in another order of additions, a wide gap means that verification is wrong. An engine that tells no
log-probabilities leaves that open, and the verdict says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

SHORT = 64
FEWEST = 4


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "steps": 2 * params["prompts"],
        "est_s": params["budget_seconds"],
        "budget": f"long prompts are shortened, and {FEWEST} prompts measured at least",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Both answers of every prompt, compared."""
    params = run.params
    if not run.chooses_speculation:
        raise kit.Stop(
            "missing", f"{run.engine.kind} takes no choice of speculation with a request", "capability_missing"
        )
    long = kit.long_prompt(run, params["long"], params["prompts"], params["tokens"])
    run.table(
        "prompts",
        ("kind", "", "kind of text"),
        ("context", "tok", "prompt tokens"),
        ("equal", "tok", "tokens until they part; all of them where they do not"),
        ("gap_nat", "nat", "gap of the two most probable tokens there"),
    )
    compared = 0
    for number in range(params["prompts"]):
        if compared >= FEWEST and run.elapsed_s * (compared + 1) / compared > params["budget_seconds"]:
            run.warn("budget", f"{compared} of {params['prompts']} prompts compared, then the time budget was used up")
            break
        kind, level = kit.KINDS[number % len(kit.KINDS)], (SHORT, long)[number % 2]
        prompt = run.prompts.make(kind, level)
        plain, truth = run.ask(kind, level, params["tokens"], prompt=prompt, speculation={"mode": "off"})
        drafted, answer = run.ask(kind, level, params["tokens"], prompt=prompt)
        if truth.token_ids is None or answer.token_ids is None:
            raise kit.Stop("missing", "the engine does not tell token ids", "capability_missing")
        parts = parting(truth.token_ids, answer.token_ids)
        gap = None if parts is None else run.gap_nat([*prompt, *truth.token_ids[:parts]])
        run.sample(plain, level=level, arm="off", pair=number, block=number)
        run.sample(drafted, level=level, arm="now", pair=number, block=number, parts_at=parts, gap_nat=gap)
        equal = len(truth.token_ids) if parts is None else parts
        run.row("prompts", kind=kind, context=level, equal=equal, gap_nat=gap)
        compared += 1
        run.progress(compared, params["prompts"], f"{kind}, {level} tokens")
    return {"compared": compared, "long": long}


def parting(one: Sequence[int], other: Sequence[int]) -> Optional[int]:
    """The place of the first token that differs; None where there is none."""
    differing: List[int] = [place for place, (a, b) in enumerate(zip(one, other)) if a != b]
    if differing:
        return differing[0]
    return None if len(one) == len(other) else min(len(one), len(other))


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
