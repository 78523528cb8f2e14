"""The device-resident round, on the CPU through the kernels' references, against what the DDTree authors' program produced.

tests/kernels/interpreted/check_device_round.py runs the same round through the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import write_models

from engine.budget import RoundCost
from engine.config import config_from_toml
from engine.device.costs import costs_of
from engine.device.graphs import bucket
from engine.device.model import DeviceModel, device_model, device_state
from engine.device.round import device_prefill, device_round, plan_of, read_accepted
from engine.drafter import load_drafter
from engine.generate import generate
from engine.models.loader import load_target
from engine.runtime import Sampling, Speculation, load_runtime
from kernels.token_choice import SamplingTensors

PAGES = 64


def loaded(folder: Path, page_size: int) -> DeviceModel:
    target = load_target(folder / "target", torch.float32)
    drafter = load_drafter(folder / "drafter", target.config, torch.float32)
    slots = PAGES * page_size
    return device_model(target, drafter, slots=slots, page_size=page_size, block_size=8, device=torch.device("cpu"))


def shuffled_pages() -> torch.Tensor:
    return torch.randperm(PAGES, generator=torch.Generator().manual_seed(3))


def decode(
    model: DeviceModel,
    prompt: list[int],
    modes: Sequence[tuple[str, int]],
    tokens: int,
    sampling: SamplingTensors,
    costs: torch.Tensor | None = None,
) -> tuple[list[int], list[int]]:
    """(tokens, commit lengths): rounds in the modes given, over and over, on pages in no order."""
    state = device_state(model, pages=PAGES, sampling=sampling)
    state.page_table.copy_(shuffled_pages())
    out, commits = [device_prefill(model, state, prompt)], []
    while len(out) < tokens:
        mode, budget = modes[len(commits) % len(modes)]
        device_round(model, state, replace(plan_of(mode, budget, model, PAGES * model.page_size), costs=costs))
        new = read_accepted(state)
        assert int(state.length) == len(prompt) + sum(commits) + len(new)
        out += new
        commits.append(len(new))
    return out[:tokens], commits


GREEDY = SamplingTensors.of(0, 0.0)


@pytest.mark.parametrize(("page_size", "case_index"), [(16, 4), (7, 6), (64, 7)])
def test_tokens_and_commit_lengths_are_the_authors(
    tiny_folder: Path, expected: dict[str, Any], page_size: int, case_index: int
) -> None:
    model, case = loaded(tiny_folder, page_size), expected["cases"][case_index]
    arms = [
        ("off", 0, case["autoregressive"], None),
        ("dflash", 0, case["dflash"]["tokens"], case["dflash"]["commit_lengths"]),
    ]
    arms += [("ddtree", run["tree_budget"], run["tokens"], run["commit_lengths"]) for run in case["ddtree"]]
    for mode, budget, tokens, commit_lengths in arms:
        wanted = tokens[:40]
        ours, commits = decode(model, case["prompt"], [(mode, budget)], len(wanted), GREEDY)
        assert ours == wanted, (mode, budget)
        if commit_lengths is not None:
            assert commits == commit_lengths[: len(commits)], (mode, budget)


def test_modes_may_change_from_round_to_round_without_the_drafter_missing_context(
    tiny_folder: Path, expected: dict[str, Any]
) -> None:
    case = expected["cases"][6]
    changing = [("ddtree", 16), ("off", 0), ("dflash", 0), ("off", 0), ("ddtree", 4)]
    model, afresh = loaded(tiny_folder, 7), loaded(tiny_folder, 7)
    ours, commits = decode(model, case["prompt"], changing, 40, GREEDY)
    assert ours == case["autoregressive"][:40]
    # What the drafter has cached by the last round is what a prefill of the same text caches.
    text = case["prompt"] + ours
    decode(afresh, text, [("off", 0)], 1, GREEDY)
    taken_in = len(case["prompt"]) + sum(commits[:-1])
    slots = shuffled_pages()[torch.arange(taken_in) // 7] * 7 + torch.arange(taken_in) % 7
    assert model.drafting is not None and afresh.drafting is not None
    torch.testing.assert_close(
        model.drafting.kv.keys[:, slots], afresh.drafting.kv.keys[:, slots], atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        model.drafting.kv.values[:, slots], afresh.drafting.kv.values[:, slots], atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("kind", ["llama", "qwen3-moe", "deepseek"])
def test_every_kind_of_target_decodes_as_the_engine_does(tmp_path: Path, kind: str) -> None:
    folders = write_models(kind, tmp_path)
    target = load_target(folders[0], torch.float32)
    drafter = load_drafter(folders[1], target.config, torch.float32)
    prompt, tokens = [3, 14, 15, 9, 2, 6], 24
    slots = PAGES * 4 + 1  # the last slot is padding rows' own
    model = device_model(target, drafter, slots=slots, page_size=4, block_size=6, device=torch.device("cpu"))
    runtime = load_runtime(
        config_from_toml(f'[model]\npath = "{folders[0]}"\ndtype = "float32"\n[context]\ncontext_length = 200\n')
    )
    wanted = generate(runtime, prompt, Sampling(), Speculation("off"), max_tokens=tokens, ignore_eos=True).token_ids
    for mode, budget in (("off", 0), ("dflash", 0), ("ddtree", 12)):
        ours, _ = decode(model, prompt, [(mode, budget)], tokens, GREEDY)
        assert ours == wanted, (kind, mode)
    dear = torch.tensor([1.0, *(1.2 + 0.5 * n for n in range(1, 13))])  # nodes soon cost more than they promise
    adaptive, _ = decode(model, prompt, [("ddtree", 12)], tokens, GREEDY, dear)
    assert adaptive == wanted, (kind, "adaptive: padding rows follow the live ones")


def test_buckets_double_up_to_the_capacity() -> None:
    assert [bucket(length, 5000) for length in (1, 1024, 1025, 4000, 4097, 5000)] == [
        1024,
        1024,
        2048,
        4096,
        5000,
        5000,
    ]


def test_the_costs_of_a_plan_rise_with_its_nodes() -> None:
    cost = RoundCost(0.5, ((0, ((1.0, 2.0), (9.0, 10.0))), (100, ((1.0, 4.0), (9.0, 20.0)))))
    assert costs_of(cost, 50, 4, torch.device("cpu")).tolist() == [3.5, 5.0, 6.5, 8.0, 9.5]


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_a_sampled_tree_run_is_the_sampled_autoregressive_run(
    tiny_folder: Path, expected: dict[str, Any], temperature: float
) -> None:
    model, case = loaded(tiny_folder, 16), expected["cases"][2]
    sampling = SamplingTensors.of(17, temperature, top_k=20, top_p=0.95)
    plain, _ = decode(model, case["prompt"], [("off", 0)], 30, sampling)
    tree, commits = decode(model, case["prompt"], [("ddtree", 16)], 30, sampling)
    other, _ = decode(model, case["prompt"], [("off", 0)], 30, SamplingTensors.of(18, temperature))
    assert tree == plain
    assert plain != other
    assert max(commits) > 1
