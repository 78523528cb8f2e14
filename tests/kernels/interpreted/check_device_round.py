"""The whole round through the kernels, interpreted: draft, build, verify, walk, commit on the tiny target and its drafter.

Tokens and commit lengths are the torch path's, which are the DDTree authors' own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.device.model import device_model, device_state
from engine.device.round import device_prefill, device_round, plan_of, read_accepted
from engine.drafter import load_drafter
from engine.models.loader import load_target
from kernels.token_choice import SamplingTensors
from tests.engine.small_models import write_models

TINY = Path(__file__).parents[2] / "data" / "tiny-ddtree"
PAGES, PAGE_SIZE = 30, 7


@pytest.mark.parametrize(("mode", "budget", "rounds"), [("off", 0, 1), ("dflash", 0, 1), ("ddtree", 7, 2)])
def test_rounds_through_the_kernels_give_the_authors_tokens(mode: str, budget: int, rounds: int) -> None:
    case = json.loads((TINY / "expected.json").read_text())["cases"][6]
    tokens, commit_lengths = arm_of(case, mode, budget)
    target = load_target(TINY / "target", torch.float32)
    drafter = load_drafter(TINY / "drafter", target.config, torch.float32)
    slots = PAGES * PAGE_SIZE
    model = device_model(target, drafter, slots=slots, page_size=PAGE_SIZE, block_size=8, device=torch.device("cpu"))
    assert model.drafting is not None
    for cache in (model.target_cache, model.drafting.kv):
        cache.keys.fill_(torch.nan)  # a slot never written must not be read
        cache.values.fill_(torch.nan)
    state = device_state(model, pages=PAGES, sampling=SamplingTensors.of(0, 0.0))
    state.page_table.copy_(torch.randperm(PAGES, generator=torch.Generator().manual_seed(3)))
    ours, commits = [device_prefill(model, state, case["prompt"])], []
    for _ in range(rounds):
        device_round(model, state, plan_of(mode, budget, model, slots))
        new = read_accepted(state)
        ours += new
        commits.append(len(new))
    assert ours == tokens[: len(ours)]
    if commit_lengths:
        assert commits == commit_lengths[:rounds]


@pytest.mark.parametrize("kind", ["qwen3-moe", "deepseek"])
def test_experts_and_latents_through_the_kernels_give_the_reference_models_tokens(kind: str, tmp_path: Path) -> None:
    folders = write_models(kind, tmp_path)
    prompt = [3, 14, 15, 9, 2, 6]
    peer = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    with torch.inference_mode():
        wanted = peer.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=9)[0, len(prompt) :].tolist()
    target = load_target(folders[0], torch.float32)
    drafter = load_drafter(folders[1], target.config, torch.float32)
    slots = 10 * 4 + 1  # the last slot is padding rows' own
    model = device_model(target, drafter, slots=slots, page_size=4, block_size=6, device=torch.device("cpu"))
    state = device_state(model, pages=10, sampling=SamplingTensors.of(0, 0.0))
    state.page_table.copy_(torch.randperm(10, generator=torch.Generator().manual_seed(3)))
    ours = [device_prefill(model, state, prompt)]
    device_round(model, state, plan_of("ddtree", 6, model, 40))
    ours += read_accepted(state)
    assert ours == wanted[: len(ours)]


def arm_of(case: dict[str, Any], mode: str, budget: int) -> tuple[list[int], list[int]]:
    """(tokens, commit lengths; none recorded for autoregressive decoding)."""
    if mode == "off":
        return case["autoregressive"], []
    runs = [case["dflash"]] if mode == "dflash" else [run for run in case["ddtree"] if run["tree_budget"] == budget]
    return runs[0]["tokens"], runs[0]["commit_lengths"]
