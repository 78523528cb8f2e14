"""The engine's speed as ratios, each pair measured in turn in one process: medians, with the least and the greatest.

Beside `transformers` (same weights, type and threads), against the floor of bytes a token must read, batch 8 against 1, page size 1
against 64 at a long context, the tree's build against a heap over the whole vocabulary, what a round spends outside its two
forwards, and what a server keeps in memory. Run it on a quiet machine: other work falls on both sides of a ratio, but not evenly.
"""

from __future__ import annotations

import argparse
import heapq
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import httpx
import torch
from transformers import AutoModelForCausalLM

import engine
from engine.bench import floor_bytes, memory_bandwidth
from engine.config import ContextTable, EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.fetch_model import ensure_model
from engine.prefill import prefill, release
from engine.round import decode_round
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.tree import build_tree, visibility
from kernels.draft_topk import draft_topk
from tests.bench.soak import info, wait_until_ready

DRAFTER = Path(engine.__file__).parent / "drafters" / "smollm2-135m-instruct"
PROMPT = [(37 * i + 11) % 49000 for i in range(48)]


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of every side, in turn (default: 5)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens a run (default: 48)")
    parser.add_argument("--threads", type=int, default=0, help="processor threads (default: all)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    model = ensure_model()
    runtime = load(model, options.dtype)
    parts: list[Callable[[], str]] = [
        lambda: tree_builds(options),
        lambda: outside_forwards(runtime, options),
        lambda: batches(runtime, options),
        lambda: beside_transformers(runtime, model, options),
        lambda: page_sizes(model, options),
        lambda: memory(model, options),
    ]
    for part in parts:
        sys.stdout.write(part())
        sys.stdout.flush()
    return 0


def load(model: Path, dtype: str, page_size: int = 16, pages: int = 160) -> Runtime:
    return load_runtime(
        EngineConfig(
            model=ModelTable(path=str(model), drafter=str(DRAFTER), dtype=dtype),
            context=ContextTable(context_length=min(8192, pages * page_size)),
            kv=KvTable(pages=pages, page_size=page_size, prefix_cache=False),
            speculation=SpeculationTable(mode="ddtree", tree_budget=256),
        )
    )


def beside_transformers(runtime: Runtime, model: Path, options: argparse.Namespace) -> str:
    """Autoregressive tokens a second on both sides; the first token's time is taken off on both."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, options.dtype)).eval()
    ids = torch.tensor([PROMPT])

    def theirs(tokens: int) -> float:
        with torch.inference_mode():
            return seconds(
                lambda: reference.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
            )

    rates: tuple[list[float], list[float]] = [], []
    for _ in range(options.rounds):
        rates[0].append(options.tokens / decode_s(runtime, 1, Speculation("off"), options.tokens))
        rates[1].append(options.tokens / (theirs(options.tokens + 1) - theirs(1)))
    floor_s = floor_bytes(runtime, Speculation("off"), len(PROMPT)) / memory_bandwidth()
    share = median(rates[0]) * floor_s
    return (
        f"autoregressive tok/s   {spread(rates[0])}   transformers {spread(rates[1])}   ratio {ratio(*rates)}\n"
        f"share of the bytes-a-token floor   {share:.2f}\n"
    )


def batches(runtime: Runtime, options: argparse.Namespace) -> str:
    """Total tokens a second of eight requests in one round, against one."""
    sides: tuple[list[float], list[float]] = [], []
    for _ in range(options.rounds):
        for size, side in ((8, sides[0]), (1, sides[1])):
            side.append(size * options.tokens / decode_s(runtime, size, Speculation("off"), options.tokens))
    return f"batch 8 tok/s   {spread(sides[0])}   batch 1 {spread(sides[1])}   ratio {ratio(*sides)}\n"


def page_sizes(model: Path, options: argparse.Namespace) -> str:
    """Step time at 4,096 cached tokens with pages of 1 and of 64."""
    sides = {size: (load(model, options.dtype, size, 4400 // size + 1), []) for size in (1, 64)}
    prompt = [(37 * i + 11) % 49000 for i in range(4096)]
    runs = {size: prefill(runtime, prompt, Sampling(), Speculation("off")) for size, (runtime, _) in sides.items()}
    for _ in range(options.rounds * 2):
        for size, (runtime, times) in sides.items():
            times.append(seconds(lambda r=runtime, g=runs[size]: decode_round(r, [g])) * 1e3)
    ones, many = sides[1][1], sides[64][1]
    return f"step ms at 4k: page 1   {spread(ones)}   page 64 {spread(many)}   ratio {ratio(ones, many)}\n"


def tree_builds(options: argparse.Namespace) -> str:
    """A tree of 64 nodes from 15 x 49,152 logits: as the engine builds it, and by a heap over sorted vocabularies."""
    logits = torch.randn(15, 49152, generator=torch.Generator().manual_seed(1)) * 3

    def ours() -> None:
        token_ids, log_probs = draft_topk(logits, 64)
        visibility(build_tree(0, token_ids.tolist(), log_probs.tolist(), 64))

    sides: tuple[list[float], list[float]] = [], []
    for _ in range(options.rounds):
        sides[0].append(seconds(lambda: heap_over_vocabulary(logits, 64)) * 1e3)
        sides[1].append(seconds(ours) * 1e3)
    return f"tree of 64 ms: heap over the vocabulary   {spread(sides[0])}   ours {spread(sides[1])}   ratio {ratio(*sides)}\n"


def heap_over_vocabulary(logits: torch.Tensor, budget: int) -> list[tuple[int, ...]]:
    """The paper's best-first search, word for word: sorted log-probabilities of every depth, prefixes from a heap."""
    ranked = torch.log_softmax(logits, dim=-1).sort(dim=-1, descending=True).values
    heap, chosen = [(-float(ranked[0, 0]), (0,))], []
    while heap and len(chosen) < budget:
        weight, ranks = heapq.heappop(heap)
        chosen.append(ranks)
        depth, rank = len(ranks) - 1, ranks[-1]
        if rank + 1 < ranked.shape[1]:
            step = float(ranked[depth, rank]) - float(ranked[depth, rank + 1])
            heapq.heappush(heap, (weight + step, (*ranks[:-1], rank + 1)))
        if depth + 1 < len(ranked):
            heapq.heappush(heap, (weight - float(ranked[depth + 1, 0]), (*ranks, 0)))
    return chosen


def outside_forwards(runtime: Runtime, options: argparse.Namespace) -> str:
    """Share of a round that is neither draft nor verify."""
    lines = ""
    for budget in (64, 256):
        generation = prefill(runtime, PROMPT, Sampling(), Speculation("ddtree", budget))
        shares = []
        for _ in range(options.rounds):
            began = time.perf_counter()
            (done,) = decode_round(runtime, [generation])
            whole = (time.perf_counter() - began) * 1e3
            shares.append(100 * (1 - (done.stages_ms["draft"] + done.stages_ms["verify"]) / whole))
        release(runtime, generation)
        lines += f"outside the forwards at budget {budget}, %   {spread(shares)}\n"
    return lines


def memory(model: Path, options: argparse.Namespace) -> str:
    """What a server of its own holds after 40 answers, beside its weights and the pool asked for."""
    with tempfile.TemporaryDirectory() as name:
        settings, log = Path(name) / "engine.toml", Path(name) / "log"
        settings.write_text(
            f'[model]\npath = "{model}"\ndrafter = "{DRAFTER}"\ndtype = "{options.dtype}"\n'
            "[context]\ncontext_length = 1024\n[kv]\npages = 160\n[server]\nport = 0\n"
        )
        # As on a machine without a GPU: there is no Triton there, though the tests bring it.
        start = (
            "import sys; sys.modules['triton'] = None; from engine.__main__ import main; sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", start, "serve", "--config", str(settings)]
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
            port = wait_until_ready(process, log)
            for number in range(40):
                body = {"prompt": f"{number} " * (8 * number + 1), "max_tokens": 16}
                answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, trust_env=False, timeout=120)
                answer.raise_for_status()
            time.sleep(2.5)  # it comes to rest after a second
            told = info(port)
            process.terminate()
    pool = told["kv"]["capacity_tokens"] * told["kv"]["bytes_per_token"]
    weights = sum(file.stat().st_size for folder in (model, DRAFTER) for file in folder.glob("*.safetensors"))
    rest = told["process"]["rss_bytes"] - pool - weights
    return f"resident MB: {(rest + pool + weights) / 1e6:.0f} = weights {weights / 1e6:.0f} + pool {pool / 1e6:.0f} + {rest / 1e6:.0f}\n"


def decode_s(runtime: Runtime, requests: int, speculation: Speculation, rounds: int) -> float:
    """Seconds of so many rounds with so many requests."""
    prompts = [[*PROMPT[:-1], 100 + number] for number in range(requests)]
    batch = [prefill(runtime, prompt, Sampling(), replace(speculation)) for prompt in prompts]
    taken = seconds(lambda: [decode_round(runtime, batch) for _ in range(rounds)])
    for generation in batch:
        release(runtime, generation)
    return taken


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def ratio(left: Sequence[float], right: Sequence[float]) -> str:
    return spread([a / b for a, b in zip(left, right, strict=True)])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
