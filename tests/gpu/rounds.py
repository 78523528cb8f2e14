"""Whole rounds: equal tokens eager and captured on the tiny target, then times with a random Qwen3-8B-shaped model."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from engine.device.graphs import RoundGraphs, bucket, run_eagerly
from engine.device.model import DeviceModel, DeviceState, device_model, device_state
from engine.device.round import Plan, device_prefill, plan_of
from engine.drafter import Drafter, load_drafter
from engine.drafter_config import read_drafter_config
from engine.models.decoder import Decoder
from engine.models.loader import load_target, read_model_config
from kernels.token_choice import SamplingTensors
from tests.gpu.measure import Bench, Row

TINY = Path(__file__).parents[1] / "data" / "tiny-ddtree"
PAGE_SIZE = 16
CONTEXTS = (1024, 16384, 65536)
ARMS = (("off", 0), ("dflash", 0), ("ddtree", 16), ("ddtree", 32), ("ddtree", 64))
ROUNDS = 30


def check_rounds(bench: Bench) -> list[Row]:
    """Tokens of the tiny target: the authors' when greedy, the autoregressive run's when sampled; captured as eager."""
    target = load_target(TINY / "target", torch.float32)
    drafter = load_drafter(TINY / "drafter", target.config, torch.float32)
    model = device_model(target, drafter, slots=512, page_size=PAGE_SIZE, block_size=8, device=bench.device)
    cases = json.loads((TINY / "expected.json").read_text())["cases"]
    tokens = bench.size(60, 8)
    for case in cases[5:8] if bench.measures else cases[6:7]:
        wanted = case["autoregressive"][:tokens]
        for mode, budget in (("off", 0), ("dflash", 0), ("ddtree", 16)):
            for captured in (False, True) if bench.measures else (False,):
                ours = decode(
                    model, case["prompt"], mode, budget, tokens, SamplingTensors.of(0, 0.0), captured=captured
                )
                assert ours == wanted, f"{mode} {budget} captured={captured}: {ours} and not {wanted}"
        sampling = SamplingTensors.of(5, 0.9, 0, 0.95)
        plain = decode(model, case["prompt"], "off", 0, tokens, sampling, captured=False)
        tree = decode(model, case["prompt"], "ddtree", 16, tokens, sampling, captured=bench.measures)
        assert tree == plain, f"sampled with a tree {tree} and without {plain}"
    return [Row("rounds", "tiny target: greedy, sampled, eager, captured", note="tokens equal")]


def decode(
    model: DeviceModel,
    prompt: list[int],
    mode: str,
    budget: int,
    tokens: int,
    sampling: SamplingTensors,
    *,
    captured: bool,
) -> list[int]:
    state = device_state(model, pages=32, sampling=sampling)
    state.page_table.copy_(torch.randperm(32, generator=torch.Generator().manual_seed(3)))
    out = [device_prefill(model, state, prompt)]
    graphs = RoundGraphs(model, state)
    plan = plan_of(mode, budget, model, bucket(1, 512))
    while len(out) < tokens:
        out += (graphs.run(plan) if captured else run_eagerly(model, state, plan)).tokens
    return out[:tokens]


def time_rounds(bench: Bench, copy: float) -> list[Row]:
    """Autoregressive, chain and trees, eager and captured, by context; what the host takes; peak memory."""
    capacity = bench.size(CONTEXTS[-1] + 1024, 256)
    model = random_model(bench, capacity)
    state = device_state(model, pages=capacity // PAGE_SIZE, sampling=SamplingTensors.of(0, 0.0))
    state.page_table.copy_(torch.arange(capacity // PAGE_SIZE))
    weights = sum(p.numel() * p.element_size() for p in model.target.parameters())
    graphs, rows = RoundGraphs(model, state), []
    for context in CONTEXTS if bench.measures else (64,):
        for mode, budget in ARMS if bench.measures else (("ddtree", 4),):
            plan = plan_of(mode, budget, model, bucket(context + 600, capacity))
            eager = round_ms(bench, model, state, plan, context, None)
            case = f"{mode} {budget or ''} L={context}".replace("  ", " ")
            rows.append(Row("round, eager", case, eager * 1e3))
            if bench.measures:
                captured = round_ms(bench, model, state, plan, context, graphs)
                share = host_share(state, graphs, plan, context)
                floor = weights + 2 * context * 36 * 8 * 128 * 2
                of_copy = floor / (captured * 1e-3) / copy
                note = f"host {share:.1%}; {floor / 1e9:.1f} GB of target weights and keys"
                rows.append(Row("round, captured", case, captured * 1e3, floor / captured / 1e6, of_copy, note, share))
    if bench.measures:
        rows.append(Row("memory", "peak", note=f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB"))
    return rows


def round_ms(
    bench: Bench, model: DeviceModel, state: DeviceState, plan: Plan, context: int, graphs: RoundGraphs | None
) -> float:
    """Median wall milliseconds of a round, its tokens read back, always from the same context."""
    times = []
    for _ in range(ROUNDS if bench.measures else 1):
        state.length.fill_(context)
        state.waiting.zero_()
        if bench.measures:
            torch.cuda.synchronize()
        began = perf_counter()
        if graphs is None:
            run_eagerly(model, state, plan)
        else:
            graphs.run(plan)
        times.append((perf_counter() - began) * 1e3)
    return median(times[len(times) // 3 :]) if bench.measures else math.nan


def host_share(state: DeviceState, graphs: RoundGraphs, plan: Plan, context: int) -> float:
    """What reading back and starting again add to a captured round, as a part of it."""

    def per_round_ms(waits: bool) -> float:
        state.length.fill_(context)
        state.waiting.zero_()
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(ROUNDS):
            graphs.run(plan) if waits else graphs.enqueue(plan)
        torch.cuda.synchronize()
        return (perf_counter() - began) * 1e3 / ROUNDS

    return 1 - per_round_ms(False) / per_round_ms(True)


def random_model(bench: Bench, slots: int) -> DeviceModel:
    """Qwen3-8B's shape and its drafter's, weights at random: what a round costs does not depend on them."""
    full = bench.measures
    shape: dict[str, Any] = {
        "vocab_size": 151936 if full else 300, "hidden_size": 4096 if full else 64, "intermediate_size": 12288 if full else 96,
        "num_attention_heads": 32 if full else 4, "num_key_value_heads": 8 if full else 2, "head_dim": 128 if full else 16,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 131072, "tie_word_embeddings": False, "dtype": "bfloat16",
        "hidden_act": "silu", "model_type": "qwen3", "attention_bias": False,
    }  # fmt: skip
    layers, taps = (36, [1, 9, 17, 25, 33]) if full else (4, [1, 2])
    drafts = {
        **shape, "architectures": ["DFlashDraftModel"], "num_hidden_layers": 5 if full else 2, "num_target_layers": layers,
        "block_size": 16, "dflash_config": {"mask_token_id": 200, "target_layer_ids": taps},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as kept:
        folders = {
            "target": {**shape, "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": layers},
            "drafter": drafts,
        }
        for name, config in folders.items():
            (Path(kept) / name).mkdir()
            (Path(kept) / name / "config.json").write_text(json.dumps(config))
        target_config = read_model_config(Path(kept) / "target")
        drafter_config = read_drafter_config(Path(kept) / "drafter", target_config)
    with torch.device("meta"):
        target, drafter = Decoder(target_config), Drafter(drafter_config)
    for module in (target, drafter):
        filled(module, bench)
    return device_model(target, drafter, slots=slots, page_size=PAGE_SIZE, block_size=16, device=bench.device)


def filled(module: nn.Module, bench: Bench) -> None:
    module.to(torch.bfloat16).to_empty(device=bench.device).requires_grad_(False).eval()
    for parameter in module.parameters():
        parameter.normal_(0.0, 0.02) if parameter.ndim > 1 else parameter.fill_(1.0)
