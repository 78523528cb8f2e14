"""Draft top-k and token choice in the interpreter against torch in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.draft_topk import draft_topk, launches
from kernels.token_choice import SamplingTensors, cut_reference, exponential_noise, reference, token_choice
from kernels.token_choice import launches as choice_launches
from tests.kernels.interpreted.inputs import guarded, numbers, programs_in_another_order


def best_of(logits: Tensor, k: int, chunk: int, size: int) -> tuple[Tensor, Tensor]:
    ids, id_guard = guarded(len(logits), k, dtype=torch.int64, fill=-5)
    log_probs, guard = guarded(len(logits), k, dtype=torch.float32, fill=math.nan)
    for launch in launches(logits, ids, log_probs, chunk, size):
        launch.run()
    assert id_guard.eq(-5).all() and guard.isnan().all()
    return ids, log_probs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "vocab", "k", "chunk", "size"), [
    (2, 50, 6, 64, 32), (3, 131, 1, 16, 4), (2, 100, 5, 16, 32), (1, 64, 16, 16, 32), (2, 40, 40, 16, 128),
])  # fmt: skip
def test_candidates_are_the_most_probable_in_order(
    dtype: torch.dtype, rows: int, vocab: int, k: int, chunk: int, size: int
) -> None:
    memory = torch.full((rows, vocab + 9), math.nan, dtype=dtype)  # rows with a gap of poison between them
    logits = memory[:, :vocab]
    logits.copy_(numbers(rows, vocab, seed=k) * 4)
    with programs_in_another_order(seed=k):
        ids, log_probs = best_of(logits, k, chunk, size)
    exact = torch.log_softmax(logits.double(), dim=-1)
    order = exact.sort(dim=-1, descending=True, stable=True)  # of equals the lower token id first
    assert torch.equal(ids, order.indices[:, :k])
    assert torch.allclose(log_probs.double(), order.values[:, :k], rtol=0, atol=3e-6)


def test_equal_logits_come_by_token_id_through_every_merge() -> None:
    logits = torch.tensor([[-1.0, 2.0, -0.0, 2.0, 0.0, -3.0, 2.0, -math.inf] * 6])
    ids, log_probs = best_of(logits, 8, 8, 16)
    assert ids.tolist() == [[1, 3, 6, 9, 11, 14, 17, 19]]
    assert torch.allclose(log_probs, torch.log_softmax(logits, dim=-1).gather(1, ids), atol=1e-6)


def test_the_public_function_runs_the_kernels() -> None:
    logits = numbers(2, 70)
    ids, log_probs = draft_topk(logits, 3)
    best = torch.log_softmax(logits.double(), dim=-1).topk(3)
    assert torch.equal(ids, best.indices) and torch.allclose(log_probs.double(), best.values, atol=2e-6)
    with pytest.raises(ValueError, match="k must be from 1 to 70, not 71"):
        draft_topk(logits, 71)


def choose(logits: Tensor, positions: list[int], sampling: SamplingTensors, chunk: int) -> Tensor:
    out, guard = guarded(len(logits), dtype=torch.int64, fill=-5)
    with programs_in_another_order(seed=chunk):
        for launch in choice_launches(logits, torch.tensor(positions), sampling, out, chunk):
            launch.run()
    assert guard.eq(-5).all()
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_greedy_takes_the_most_probable_token_and_the_lower_id_of_equals(dtype: torch.dtype) -> None:
    logits = numbers(4, 75).to(dtype)
    logits[1, [9, 40, 70]] = 8.0
    chosen = choose(logits, [5, 6, 6, 7], SamplingTensors.of(3, 0.0), 16)
    assert chosen.tolist() == logits.float().argmax(-1).tolist()
    assert chosen[1] == 9


FILTERS = [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.2), (9, 0.8, 0.05), (1, 1.0, 0.0), (0, 1e-6, 0.0)]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), FILTERS)
def test_sampled_tokens_are_the_references_under_every_filter(top_k: int, top_p: float, min_p: float) -> None:
    logits = numbers(4, 70, seed=top_k) * 3
    positions = [0, 17, 4_000_000, 3]
    for seed in (1, -(2**62) - 12345):
        sampling = SamplingTensors.of(seed, 0.7, top_k, top_p, min_p)
        assert torch.equal(
            choose(logits, positions, sampling, 32), reference(logits, torch.tensor(positions), sampling)
        )


def test_a_token_depends_on_seed_and_position_and_on_nothing_else() -> None:
    logits = numbers(1, 60).expand(5, 60).contiguous()
    sampling = SamplingTensors.of(11, 1.0)
    together = choose(logits, [3, 9, 3, 100, 9], sampling, 64)
    assert together[0] == together[2] and together[1] == together[4]
    assert choose(logits[:1], [100], sampling, 16)[0] == together[3]  # another batch, another chunk
    others = {int(choose(logits[:1], [3], SamplingTensors.of(seed, 1.0), 64)[0]) for seed in range(12)}
    assert len(others) > 3


def test_sampled_frequencies_are_the_targets_probabilities() -> None:
    """The reference, which the kernel equals draw by draw: 20,000 draws, total variation distance."""
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0, -20.0]])
    sampling = SamplingTensors.of(5, 1.0)
    draws = reference(logits.expand(20_000, 5), torch.arange(20_000), sampling)
    frequencies = draws.bincount(minlength=5).double() / len(draws)
    assert (frequencies - logits.double().softmax(-1)[0]).abs().sum() / 2 < 0.01
    assert frequencies[4] == 0


def test_noise_is_philox_with_known_answers() -> None:
    # Random123's known answer for Philox4x32-10 with counter and key nought: first words 6627e8d5, e169c58d.
    u = 0x6627E8D5 * 2.0**-32 + 0xE169C58D * 2.0**-64
    assert exponential_noise(0, torch.tensor(0), torch.tensor([0])).item() == pytest.approx(-math.log1p(-u), rel=1e-15)


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), FILTERS[1:])
def test_the_cut_keeps_what_the_engines_filter_keeps(top_k: int, top_p: float, min_p: float) -> None:
    from engine.sampling import Sampling, filter_log_probs

    scaled = numbers(4, 50, seed=8).double() * 3
    cut = cut_reference(scaled, top_k, top_p, min_p)
    for row in range(4):
        kept = filter_log_probs(torch.log_softmax(scaled[row], -1), Sampling(1.0, 1, top_p, top_k, min_p)).isfinite()
        assert torch.equal(scaled[row] >= cut[row], kept)


def test_positions_of_another_kind_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="positions must be int64"):
        token_choice(numbers(2, 9), torch.tensor([1, 2], dtype=torch.int32), SamplingTensors.of(0, 1.0))
