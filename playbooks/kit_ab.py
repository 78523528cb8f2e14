"""Two arms that need a restart each: blocks of two starts in drawn order, the same questions first, then the figures."""

from __future__ import annotations

import random
from typing import Any, Dict, List, Mapping

from kit_end import Stop
from kit_restart import Service
from kit_rounds import WARM_TOKENS, room_for
from kit_run import Run

PROBES = (("prose", 48), ("code", 48), ("copy", 96))
PROBE_TOKENS = 48


def blocks(run: Run, arms: Mapping[str, Mapping[str, Any]], *, chat: bool = False) -> Dict[str, Any]:
    """Measure arm B against arm A; what a summary tells of it. The playbook's parameters: blocks, requests, tokens, prompt, kind.

    `chat`: by the chat endpoint, whose parsers see the answers. Every start is a replicate of its own, so even two blocks that meet in one arm restart between them. Where the first
    questions are answered otherwise under B, no speed is measured any more.
    """
    params, (a, b) = run.params, arms
    room_for(run, params["tokens"] + params["prompt"])
    order, probed, done = random.Random(run.seed), set(), 0
    total = params["blocks"] * 2
    with Service(run) as service:
        for changes in arms.values():
            service.check(changes)
        run.table(
            "starts",
            ("block", "", "pair of starts"),
            ("arm", "", "settings"),
            ("tok_s", "tok/s", "decode rate"),
            ("commit", "tok/step", "commit length"),
            ("step_ms", "ms", "step time"),
        )
        answers: Dict[str, List[str]] = {}
        for block in range(params["blocks"]):
            for arm in order.sample([a, b], 2):
                service.start_with(arms[arm])
                if arm not in probed:
                    answers[arm] = probe(run, arm)
                    probed.add(arm)
                if len(probed) == 2 and answers[a] != answers[b]:
                    run.warn("wrong_tokens", f"{b} answers otherwise than {a}: its speed is not measured", arm=b)
                    return {"arms": [a, b], "blocks": block, "changes": dict(arms[b])}
                measured(run, block, arm, chat)
                done += 1
                run.progress(done, total, f"block {block + 1}, {arm}")
    return {"arms": [a, b], "blocks": params["blocks"], "changes": dict(arms[b])}


def probe(run: Run, arm: str) -> List[str]:
    """Hashes of the answers to the fixed questions."""
    hashes = []
    for number, (kind, tokens) in enumerate(PROBES):
        if tokens + PROBE_TOKENS > run.max_context:
            raise Stop("missing", f"the engine's context of {run.max_context} tokens is too short to probe it")
        prompt = run.prompts.fixed(kind, tokens, number)
        figures, _ = run.ask(kind, tokens, PROBE_TOKENS, prompt=prompt)
        run.sample(figures, level=tokens, arm=arm, pair=number, probe=True)
        hashes.append(str(figures["out_sha"]))
    return hashes


def measured(run: Run, block: int, arm: str, chat: bool) -> None:
    """One start's requests, after one that pays for warming up."""
    params = run.params
    run.request(params["kind"], params["prompt"], WARM_TOKENS)
    for number in range(params["requests"]):
        figures, _ = run.ask(params["kind"], params["prompt"], params["tokens"], chat=chat)
        run.sample(figures, level=params["prompt"], arm=arm, block=block, rep=number)
        shown = {name: figures[name] for name in ("tok_s", "commit", "step_ms")}
        run.row("starts", block=block, arm=arm, **shown)
