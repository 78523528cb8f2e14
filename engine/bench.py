"""`python -m engine bench`: autoregressive, chain and tree decoding timed side by side.

Arms take turns (A B C, A B C, ...), so that what else the machine does falls on all of them alike. Every figure is a ratio of
sums over an arm's runs, and stands beside its floor: the bytes a step cannot help reading, over the memory bandwidth.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Literal, cast

import torch

from engine.bench_texts import FILLER, PROMPTS
from engine.errors import EngineError
from engine.generate import Generated, decode_by_device, generate
from engine.models.layers import Linear
from engine.options import config_from_options
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.tokenizer import Tokenizer, load_tokenizer

MAX_BUDGET = 1024
"""The largest tree budget, as in engine.toml."""
LOOKUP = "+lookup"
"""Behind a mode: with the text's own repetition competing for the budget."""
BANDWIDTH_BYTES = 256 * 2**20
"""Size of the array whose reading gives the memory bandwidth: larger than any cache."""


@dataclass
class Arm:
    """One way of decoding one prompt, and what its runs have summed up to."""

    speculation: Speculation
    kind: str
    prompt_ids: list[int]
    tokens: int = 0
    lookup_tokens: int = 0
    steps: int = 0
    decode_s: float = 0.0
    stages_ms: Counter[str] = field(default_factory=Counter)

    def add(self, run: Generated) -> None:
        """Take in one run."""
        self.tokens += sum(run.commit_lengths)
        self.lookup_tokens += run.lookup_tokens
        self.steps += run.steps
        self.decode_s += run.decode_s
        self.stages_ms.update(run.stages_ms)


def main(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One object an arm, when all rounds are done. Raises EngineError for arms that cannot be run."""
    runtime = load_runtime(config_from_options(options))
    tokenizer = load_tokenizer(Path(options.model))
    arms = make_arms(options, runtime, tokenizer)
    decode = decode_by_device(runtime)
    for arm in arms if decode is not None else arms[:1]:  # warm-up; each way captures its own rounds on a GPU
        generate(runtime, arm.prompt_ids, Sampling(), arm.speculation, max_tokens=4, ignore_eos=True, decode=decode)
    for _ in range(options.rounds):
        for arm in arms:
            arm.add(
                generate(
                    runtime,
                    arm.prompt_ids,
                    Sampling(),
                    arm.speculation,
                    max_tokens=options.max_tokens,
                    ignore_eos=True,
                    decode=decode,
                )
            )
    bandwidth = memory_bandwidth(runtime.target.device)
    for arm in arms:
        yield report(arm, runtime, options.max_tokens, bandwidth)


def make_arms(options: argparse.Namespace, runtime: Runtime, tokenizer: Tokenizer | None) -> list[Arm]:
    """Every mode and budget, for every context length and text kind; neighbours differ in the mode."""
    modes = options.modes.split(",")
    unknown = [mode for mode in modes if mode.removesuffix(LOOKUP) not in ("off", "dflash", "ddtree")]
    if unknown or f"off{LOOKUP}" in modes:
        mend = f"off, dflash and ddtree are known, and dflash{LOOKUP} and ddtree{LOOKUP}"
        raise EngineError(f"unknown mode {(unknown or [f'off{LOOKUP}'])[0]}", where="--modes", mend=mend)
    if runtime.drafter is None and set(modes) != {"off"}:
        raise EngineError("dflash and ddtree need a drafter", where="--modes", mend="add --drafter DIR, or --modes off")
    ways = [
        Speculation(
            cast(Literal["off", "dflash", "ddtree"], mode.removesuffix(LOOKUP)),
            budget,
            "auto" if mode.endswith(LOOKUP) else "off",
        )
        for mode in modes
        for budget in (_numbers(options.budgets, "--budgets", 1, MAX_BUDGET) if mode.startswith("ddtree") else [0])
    ]
    arms = []
    for context in _numbers(options.contexts, "--contexts", 0, runtime.max_context):
        for kind, prompt_ids in prompts(tokenizer, context, runtime.target.config.vocab_size).items():
            if len(prompt_ids) + options.max_tokens > runtime.max_context:
                raise EngineError(
                    f"{len(prompt_ids)} prompt tokens and {options.max_tokens} more exceed {runtime.max_context}",
                    where="--contexts",
                )
            arms += [Arm(way, kind, prompt_ids) for way in ways]
    return arms


def prompts(tokenizer: Tokenizer | None, context: int, vocab: int) -> dict[str, list[int]]:
    """Text kind -> prompt ids, padded in front with a passage to `context` tokens. Without a tokenizer: "ids"."""
    if tokenizer is None:
        return {"ids": [(7 * i + 1) % vocab for i in range(max(context, 8))]}
    asked = {}
    for kind, text in PROMPTS.items():
        own = (
            tokenizer.encode_chat([{"role": "user", "content": text}]) if tokenizer.template else tokenizer.encode(text)
        )
        passage = tokenizer.encode(FILLER, add_special_tokens=False)
        missing = max(0, context - len(own))
        asked[kind] = (passage * (missing // len(passage) + 1))[:missing] + own
    return asked


def report(arm: Arm, runtime: Runtime, max_tokens: int, bandwidth: float) -> dict[str, object]:
    """The contract's line. `context`: tokens cached half-way; `budget`: drafted nodes a round; per-step milliseconds."""
    step_ms = arm.decode_s * 1e3 / arm.steps
    context = len(arm.prompt_ids) + max_tokens // 2
    way = arm.speculation
    budgets = {"off": 0, "dflash": runtime.block_size - 1, "ddtree": way.tree_budget}
    floor_ms = floor_bytes(runtime, way, context) / bandwidth * 1e3
    return {
        "mode": way.mode + (LOOKUP if way.looks_up else ""),
        "kind": arm.kind,
        "context": context,
        "budget": budgets[way.mode],
        "tok_s": round(arm.tokens / arm.decode_s, 2),
        "commit_length": round(arm.tokens / arm.steps, 3),
        "step_ms": round(step_ms, 3),
        "stages_ms": {stage: round(total / arm.steps, 3) for stage, total in arm.stages_ms.items()},
        "floor_share": round(floor_ms / step_ms, 3),
        **({"lookup_share": round(arm.lookup_tokens / arm.tokens, 3)} if way.looks_up else {}),
    }


def floor_bytes(runtime: Runtime, way: Speculation, context: int) -> int:
    """Bytes one step reads at the least: every weight matrix once, the head once more for a draft, and the cache."""
    target, size = runtime.target, runtime.target.dtype.itemsize
    head = target.config.vocab_size * target.config.hidden_size * size
    matrices = sum(m.weight.numel() for layer in target.layers for m in layer.modules() if isinstance(m, Linear))
    total = matrices * size + head + context * target.config.kv_bytes_per_token(size)
    if way.mode != "off" and runtime.drafter is not None:
        drafts = runtime.kv_bytes_per_token - target.config.kv_bytes_per_token(size)
        total += head + sum(p.numel() for p in runtime.drafter.parameters()) * size + context * drafts
    return total


def memory_bandwidth(device: torch.device | None = None) -> float:
    """Bytes a second read from the device's memory, on a processor with torch's threads, the best of five."""
    array = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    best = float("inf")
    for _ in range(5):
        began = perf_counter()
        array.sum().item()  # waits for a GPU
        best = min(best, perf_counter() - began)
    return BANDWIDTH_BYTES / best


def _numbers(words: str, where: str, low: int, high: int) -> list[int]:
    try:
        numbers = [int(word) for word in words.split(",")]
    except ValueError as error:
        raise EngineError(f"not whole numbers: {words}", where=where, mend="write them as 16,32") from error
    outside = [number for number in numbers if not low <= number <= high]
    if outside:
        raise EngineError(f"{outside[0]} is outside {low}-{high}", where=where)
    return numbers
