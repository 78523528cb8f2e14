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
# wants = ["steps.exact", "accept.length", "tokens.count", "logprobs", "unit.restart"]
# effects = []
# restarts_on = ["sglang", "vllm"]
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 3600
# verdicts = ["lossless", "near_tie", "broken", "inconclusive", "void"]
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
log-probabilities leaves that open, and the verdict says so. On the bundled engine a request chooses; elsewhere the drafted
answers come first, and the plain ones from a start without speculation, after which the old settings serve again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

SHORT = 64
FEWEST = 4


OFF = {"mode": "off"}
Asked = Tuple[str, int, Any]  # kind of text, prompt tokens as planned, the prompt


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    return {
        "changes": [OFF],
        "steps": 2 * params["prompts"],
        "est_s": params["budget_seconds"],
        "budget": f"long prompts are shortened, and {FEWEST} prompts measured at least",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Both answers of every prompt, compared."""
    long = kit.long_prompt(run, run.params["long"], run.params["prompts"], run.params["tokens"])
    if run.chooses_speculation:
        declare_table(run)
        return {"compared": by_request(run, long), "long": long}
    with kit.Service(run) as service:
        service.check(OFF)
        declare_table(run)
        return {"compared": by_restart(run, service, long), "long": long}


def declare_table(run: kit.Run) -> None:
    """The live table."""
    run.table(
        "prompts",
        ("kind", "", "kind of text"),
        ("context", "tok", "prompt tokens"),
        ("equal", "tok", "tokens until they part; all of them where they do not"),
        ("gap_nat", "nat", "gap of the two most probable tokens there"),
    )


def by_request(run: kit.Run, long: int) -> int:
    """Each prompt is asked twice; how many were compared."""
    params = run.params
    for number in range(params["prompts"]):
        if used_up(run, number, 1.0):
            return number
        asked = prompt_of(run, number, long)
        plain = answer(run, asked, OFF)
        compare(run, number, asked, plain, answer(run, asked))
    return int(params["prompts"])


def by_restart(run: kit.Run, service: kit.Service, long: int) -> int:
    """All prompts under the settings in force, then the same ones without speculation; how many were compared."""
    drafted: List[Tuple[Asked, Tuple[Dict[str, Any], kit.Completion]]] = []
    while len(drafted) < run.params["prompts"] and not used_up(run, len(drafted), 0.5):
        asked = prompt_of(run, len(drafted), long)
        drafted.append((asked, answer(run, asked)))
        run.progress(len(drafted), 2 * run.params["prompts"], f"{asked[0]}, {asked[1]} tokens, drafted")
    service.start_with(OFF)
    for number, (asked, found) in enumerate(drafted):
        compare(run, number, asked, answer(run, asked), found)
    return len(drafted)


def used_up(run: kit.Run, done: int, share: float) -> bool:
    """Whether one more would pass that share of the time budget."""
    budget_s = run.params["budget_seconds"] * share
    if done < FEWEST or run.elapsed_s * (done + 1) / done <= budget_s:
        return False
    run.warn("budget", f"{done} of {run.params['prompts']} prompts compared, then the time budget was used up")
    return True


def prompt_of(run: kit.Run, number: int, long: int) -> Asked:
    """Kinds in turn, short and long ones in turn."""
    kind, level = kit.KINDS[number % len(kit.KINDS)], (SHORT, long)[number % 2]
    return kind, level, run.prompts.make(kind, level)


def answer(run: kit.Run, asked: Asked, speculation: Any = None) -> Tuple[Dict[str, Any], kit.Completion]:
    """One answer. Raises Stop(missing) for an engine that does not tell token ids."""
    kind, level, prompt = asked
    choice = speculation if run.chooses_speculation else None
    figures, found = run.ask(kind, level, run.params["tokens"], prompt=prompt, speculation=choice)
    if found.token_ids is None:
        raise kit.Stop("missing", "the engine does not tell token ids", "capability_missing")
    return figures, found


def compare(
    run: kit.Run, number: int, asked: Asked, plain: Tuple[Dict[str, Any], kit.Completion],
    drafted: Tuple[Dict[str, Any], kit.Completion],
) -> None:  # fmt: skip
    """Tell where two answers to one prompt part, and how near a tie it was there."""
    kind, level, prompt = asked
    truth, tokens = plain[1].token_ids or (), drafted[1].token_ids or ()
    parts = parting(truth, tokens)
    known = parts is not None and not isinstance(prompt, str)
    gap = run.gap_nat([*prompt, *truth[:parts]]) if known else None
    run.sample(plain[0], level=level, arm="off", pair=number, block=number)
    run.sample(drafted[0], level=level, arm="now", pair=number, block=number, parts_at=parts, gap_nat=gap)
    run.row("prompts", kind=kind, context=level, equal=len(truth) if parts is None else parts, gap_nat=gap)
    run.progress(number + 1, run.params["prompts"], f"{kind}, {level} tokens")


def parting(one: Sequence[int], other: Sequence[int]) -> Optional[int]:
    """The place of the first token that differs; None where there is none."""
    differing: List[int] = [place for place, (a, b) in enumerate(zip(one, other)) if a != b]
    if differing:
        return differing[0]
    return None if len(one) == len(other) else min(len(one), len(other))


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
