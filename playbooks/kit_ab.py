"""Two arms that need a restart each: blocks of two starts in drawn order, the same questions first, then the figures."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any, Dict, List, Mapping

from kit_end import Stop
from kit_restart import Service
from kit_rounds import WARM_TOKENS, room_for
from kit_run import Run

PROBES = (("prose", 48), ("code", 48), ("copy", 96))
PROBE_TOKENS = 48
T_975 = {4: 3.182, 6: 2.571, 8: 2.365, 12: 2.201, 16: 2.131}
"""Looks, in blocks, at which a run may end before its planned number, with Student's t of that many less one."""
DELTA = 0.02  # smallest effect of interest; an interval of half that on either side is precise enough


def blocks(service: Service, arms: Mapping[str, Mapping[str, Any]], *, chat: bool = False) -> Dict[str, Any]:
    """Measure arm B against arm A, each with its changes of settings; what a summary tells of it. The playbook's
    parameters: blocks, requests, tokens, prompt, kind.

    `chat`: by the chat endpoint, whose parsers see the answers. Every start is a replicate of its own, so even two blocks
    that meet in one arm restart between them. Where the first questions are answered otherwise under B, no speed is
    measured any more.
    """
    run = service.run
    params, (a, b) = run.params, arms
    room_for(run, params["tokens"] + params["prompt"])
    order, probed, done = random.Random(run.seed), set(), 0
    total = params["blocks"] * 2
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
    rates: Dict[str, List[List[float]]] = {a: [], b: []}
    looks: List[int] = []
    for block in range(params["blocks"]):
        for arm in order.sample([a, b], 2):
            service.start_with(arms[arm])
            if arm not in probed:
                answers[arm] = probe(run, arm)
                probed.add(arm)
            if len(probed) == 2 and answers[a] != answers[b]:
                run.warn("wrong_tokens", f"{b} answers otherwise than {a}: its speed is not measured", arm=b)
                return {"arms": [a, b], "blocks": block, "changes": dict(arms[b])}
            rates[arm].append(measured(run, block, arm, chat))
            done += 1
            run.progress(done, total, f"block {block + 1}, {arm}")
        if block + 1 in T_975 and block + 1 < params["blocks"]:
            looks.append(block + 1)
            if half_width(rates[a], rates[b]) <= math.log1p(DELTA) / 2:
                run.log(f"precise enough after {block + 1} of {params['blocks']} blocks")
                break
    told = {"planned": params["blocks"], "looks": looks, "stopping": "by the width of the interval, not by its verdict"}
    return {"arms": [a, b], "blocks": len(rates[b]), "changes": dict(arms[b]), **told}


def half_width(a: List[List[float]], b: List[List[float]]) -> float:
    """Half of the 95 % interval of the mean log-ratio over blocks; infinite where a start gave no rate."""
    if not all(a) or not all(b):
        return math.inf
    contrasts = [mean_log(after) - mean_log(before) for before, after in zip(a, b)]
    return T_975[len(contrasts)] * statistics.stdev(contrasts) / math.sqrt(len(contrasts))


def mean_log(values: List[float]) -> float:
    """The mean of the logarithms."""
    return sum(math.log(value) for value in values) / len(values)


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


def measured(run: Run, block: int, arm: str, chat: bool) -> List[float]:
    """One start's requests, after one that pays for warming up; their rates."""
    params, rates = run.params, []
    run.request(params["kind"], params["prompt"], WARM_TOKENS)
    for number in range(params["requests"]):
        figures, _ = run.ask(params["kind"], params["prompt"], params["tokens"], chat=chat)
        stream: Dict[str, Any] = {"chat": chat}
        if chat and figures["steps"] is None:
            # SGLang counts the steps of an answer on its own endpoint alone, where no parser stands.
            stream.update(chunks=figures["chunks"], chunks_of=figures["N"], fields=figures["fields"])
            figures, _ = run.ask(params["kind"], params["prompt"], params["tokens"])
        run.sample({**figures, **stream}, level=params["prompt"], arm=arm, block=block, rep=number)
        shown = {name: figures[name] for name in ("tok_s", "commit", "step_ms")}
        run.row("starts", block=block, arm=arm, **shown)
        if figures["tok_s"]:
            rates.append(figures["tok_s"])
    return rates
