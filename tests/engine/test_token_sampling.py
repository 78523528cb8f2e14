"""Sampling: exact in distribution, and the same tokens whatever was drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import exp
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.generate import generate
from engine.runtime import Runtime, Sampling, Speculation
from engine.sampling import chooser, filter_log_probs, noise, sample
from kernels.token_choice import exponential_noise

PROMPT = [9, 33, 2, 58, 17]
DRAFTING = [Speculation("dflash"), Speculation("ddtree", 7), Speculation("ddtree", 64)]
SETTINGS = [
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.6, seed=6, top_p=0.9),
    Sampling(temperature=1.5, seed=3, top_k=5),
    Sampling(temperature=0.9, seed=4, top_p=0.95, top_k=20, min_p=0.05),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_a_sampled_run_with_drafts_is_the_sampled_autoregressive_run(
    tiny: Callable[..., Runtime], expected: dict[str, Any], sampling: Sampling
) -> None:
    runtime = tiny()
    case, drafted = expected["cases"][4], 0
    plain = generate(runtime, case["prompt"], sampling, Speculation("off"), max_tokens=60)
    assert plain.token_ids != case["autoregressive"][:60]
    for speculation in DRAFTING:
        answer = generate(runtime, case["prompt"], sampling, speculation, max_tokens=60)
        assert answer.token_ids == plain.token_ids
        drafted += sum(answer.commit_lengths) - answer.steps
    assert drafted > 10


def test_a_seed_repeats_and_another_seed_or_none_does_not(tiny: Callable[..., Runtime]) -> None:
    def answer(seed: int | None) -> list[int]:
        return generate(tiny(), PROMPT, Sampling(1.5, seed), Speculation("ddtree", 7), max_tokens=40).token_ids

    assert answer(7) == answer(7)
    assert answer(7) != answer(8)
    assert answer(None) != answer(None)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampled_tokens_have_the_targets_distribution(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -1.5])
    sampling, draws = Sampling(temperature=temperature, seed=5), 6000
    counts = Counter(sample(logits, sampling, position) for position in range(draws))
    exact = torch.softmax(logits / temperature, dim=-1)
    distance = sum(abs(counts[token] / draws - exact[token].item()) for token in range(6)) / 2
    assert distance < 0.03  # the expected distance of 6000 exact draws is 0.010


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    few, many = torch.arange(50), torch.arange(500)
    assert torch.equal(noise(few, 3, 9), noise(few, 3, 9))
    assert torch.equal(noise(few, 3, 9), noise(many, 3, 9)[:50])
    assert torch.equal(noise(few[[4, 40]], 3, 9), noise(few, 3, 9)[[4, 40]])
    assert not torch.equal(noise(few, 3, 9), noise(few, 3, 10))
    assert not torch.equal(noise(few, 3, 9), noise(few, 4, 9))
    pool = torch.cat([noise(many, seed, position) for seed in range(4) for position in range(4)])
    assert pool.mean().item() == pytest.approx(1.0, abs=0.05)
    assert pool.min() > 0


@pytest.mark.parametrize("seed", [0, 3, -3, 2**61 + 7, 2**63 + 5])
def test_noise_is_the_kernels(seed: int) -> None:
    tokens = torch.arange(0, 150_000, 1_001)
    kernels = exponential_noise(seed, torch.tensor(70_001), tokens)
    assert torch.allclose(noise(tokens, seed, 70_001), kernels, rtol=1e-12, atol=0.0)


def test_temperature_nought_takes_the_most_probable_token_of_every_row() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]])
    choose = chooser(logits, [5, 6], Sampling(temperature=0.0))
    assert [choose(0), choose(1)] == [1, 0]


log_prob_rows = st.lists(st.floats(-8, 0), min_size=1, max_size=12).map(
    lambda row: torch.log_softmax(torch.tensor(row, dtype=torch.float32), dim=-1)
)


@settings(max_examples=150, deadline=None)
@given(log_prob_rows, st.integers(0, 14), st.floats(0.05, 1.0), st.floats(0.0, 1.0))
def test_filters_keep_what_their_definitions_keep(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> None:
    kept = kept_tokens(filter_log_probs(row, Sampling(1.0, 0, top_p=1.0, top_k=top_k)))
    threshold = sorted(row.tolist(), reverse=True)[min(top_k or len(row), len(row)) - 1]
    assert kept == {token for token, value in enumerate(row.tolist()) if value >= threshold}

    kept = kept_tokens(filter_log_probs(row, Sampling(1.0, 0, min_p=min_p)))
    floor = min_p * exp(row.max().item())
    for token, value in enumerate(row.tolist()):
        if abs(exp(value) - floor) > 1e-6:
            assert (token in kept) == (exp(value) > floor)

    kept = kept_tokens(filter_log_probs(row, Sampling(1.0, 0, top_p=top_p)))
    by_rank = sorted(row.tolist(), reverse=True)
    needed = next((n for n in range(1, len(row)) if sum(map(exp, by_rank[:n])) >= top_p), len(row))
    if all(abs(sum(map(exp, by_rank[:n])) - top_p) > 1e-5 for n in range(1, len(row))):
        assert len(kept) == needed
        assert row.argmax().item() in kept or row.max() == row[min(kept)]


def kept_tokens(filtered: torch.Tensor) -> set[int]:
    return set(torch.isfinite(filtered).nonzero().flatten().tolist())


def test_a_filtered_token_is_never_drawn() -> None:
    logits = torch.tensor([0.1, 0.0, -0.1, -0.2])
    drawn = {sample(logits, Sampling(1.0, 3, top_k=2), position) for position in range(400)}
    assert drawn == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"temperature": -0.1}, "temperature = -0.1 is not a finite number of 0 or above"),
        ({"top_p": 0.0}, "top_p = 0.0 is not above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p = 1.1 is not above 0 and at most 1"),
        ({"top_k": -1}, "top_k = -1 is not 0 or above"),
        ({"min_p": 1.5}, "min_p = 1.5 is not between 0 and 1"),
        ({"temperature": float("nan")}, "temperature = nan is not a finite number of 0 or above"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineError) as caught:
        Sampling(**arguments)
    assert str(caught.value) == says
