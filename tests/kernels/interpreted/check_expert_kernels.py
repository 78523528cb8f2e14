"""Router, alignment, grouped and INT4 products in the interpreter against their references in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import int4_gemm as int4
from kernels import moe_gemm as grouped
from kernels.launch import KNOWN_GPUS
from kernels.moe_align import Blocks, launches, moe_align, most_blocks
from kernels.moe_align import reference as align_reference
from kernels.moe_gemm import ExpertWeights, expert_mlp
from kernels.moe_router import Routing, moe_router
from kernels.moe_router import reference as router_reference
from tests.kernels.interpreted.inputs import close, guarded, numbers, programs_in_another_order

SOFTMAX, SIGMOID = Routing("softmax", 4), Routing("sigmoid", 3, factor=2.827)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("tokens", "experts", "routing"), [
    (5, 20, SOFTMAX), (3, 7, replace(SOFTMAX, normalized=False)), (4, 24, SIGMOID), (1, 3, SIGMOID),
    (6, 32, replace(SIGMOID, groups=8, top_groups=3)), (3, 15, replace(SIGMOID, groups=5, top_groups=2)),
    (2, 6, replace(SIGMOID, groups=6, top_groups=4)),
])  # fmt: skip
def test_routers_pick_the_references_experts(dtype: torch.dtype, tokens: int, experts: int, routing: Routing) -> None:
    logits = numbers(tokens, experts, dtype=dtype, seed=experts)
    bias = numbers(experts, seed=1) * 0.3 if routing.score == "sigmoid" else None
    with programs_in_another_order(seed=1):
        picks, weights = moe_router(logits, bias, routing)
    exact_picks, exact_weights = router_reference(logits.double(), None if bias is None else bias.double(), routing)
    assert torch.equal(picks, exact_picks)
    close(weights, exact_weights)


def test_equal_scores_go_to_the_lower_expert_and_the_bias_only_chooses() -> None:
    picks, weights = moe_router(
        torch.zeros(1, 6), torch.tensor([0.0, 0.0, 0.5, 0.0, 0.0, 0.5]), replace(SIGMOID, factor=1.0)
    )
    assert picks.tolist() == [[2, 5, 0]]
    assert weights.tolist()[0] == pytest.approx([1 / 3] * 3)


def test_more_experts_than_the_groups_hold_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="per_token must be from 1 to 2, not 3"):
        moe_router(torch.zeros(1, 8), None, replace(SIGMOID, groups=4))


@pytest.mark.parametrize(("tokens", "per_token", "experts", "block", "chunk"), [
    (1, 2, 5, 4, 16), (9, 3, 7, 4, 8), (20, 2, 3, 16, 16), (4, 1, 40, 2, 32), (17, 4, 5, 8, 64),
])  # fmt: skip
def test_pairs_are_sorted_into_padded_blocks(tokens: int, per_token: int, experts: int, block: int, chunk: int) -> None:
    dice = torch.Generator().manual_seed(tokens)
    picks = torch.stack([torch.randperm(experts, generator=dice)[:per_token] for _ in range(tokens)]).to(torch.int32)
    most = most_blocks(picks.numel(), experts, block)
    pairs, guard = guarded(most, block, dtype=torch.int32, fill=-9)
    labels, label_guard = guarded(most, dtype=torch.int32, fill=-9)
    with programs_in_another_order(seed=experts):
        for launch in launches(picks, experts, Blocks(pairs, labels), chunk):
            launch.run()
    exact = align_reference(picks, experts, Blocks(torch.empty_like(pairs), torch.empty_like(labels)))
    assert torch.equal(pairs, exact.pairs) and torch.equal(labels, exact.experts)
    assert guard.eq(-9).all() and label_guard.eq(-9).all()
    assert sorted(pairs[pairs >= 0].tolist()) == list(range(picks.numel()))


def packed(*shape: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random words and scales for weights of `shape` [..., outputs, inputs]."""
    dice = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (*shape[:-1], shape[-1] // 8), generator=dice).to(torch.int32)
    return words, (numbers(*shape[:-1], shape[-1] // 32, seed=seed) * 0.1).to(dtype)


def test_nibbles_are_unpacked_lowest_first_with_eight_taken_off() -> None:
    words = torch.tensor([[0x76543210 - 2**32 * (0x76543210 >= 2**31), -0x77777778, 0, 0]], dtype=torch.int64).to(
        torch.int32
    )
    weights = int4.unpack(words, torch.tensor([[0.5]]), torch.float32)
    assert weights[0, :8].tolist() == [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5]
    assert weights[0, 8:16].tolist() == [0.0] * 8  # 0x88888888


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "outputs", "inputs", "parts"), [(1, 20, 64, 1), (5, 40, 96, 2), (19, 33, 160, 4)])
def test_int4_products_are_the_unpacked_matrices(
    dtype: torch.dtype, rows: int, outputs: int, inputs: int, parts: int
) -> None:
    memory = torch.full((rows, inputs + 8), math.nan, dtype=dtype)
    x = memory[:, :inputs]
    x.copy_(numbers(rows, inputs))
    words, scales = packed(outputs, inputs, seed=rows, dtype=dtype)
    out, guard = guarded(rows, outputs, dtype=dtype, fill=math.nan)
    with programs_in_another_order(seed=rows):
        for launch in int4.launches(x, words, scales, out, KNOWN_GPUS[90], (16, 16, 32, 4, 2), parts):
            launch.run()
    close(out, x.double() @ int4.unpack(words, scales, torch.float64).T)
    assert guard.isnan().all()


def test_an_int4_product_of_the_wrong_shape_is_refused_by_name() -> None:
    words, scales = packed(4, 64, seed=0, dtype=torch.float32)
    close(
        int4.int4_gemm(numbers(2, 64), words, scales),
        numbers(2, 64).double() @ int4.unpack(words, scales, torch.float64).T,
    )
    with pytest.raises(ValueError, match=r"words must be int32 \[4, 4\]"):
        int4.int4_gemm(numbers(2, 32), words, scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize(("tokens", "per_token", "experts"), [(3, 2, 5), (7, 3, 4)])
def test_each_pair_is_multiplied_by_its_expert_and_summed_with_its_weight(
    dtype: torch.dtype, bits: int, tokens: int, per_token: int, experts: int
) -> None:
    hidden, inner = 64, 32
    dice = torch.Generator().manual_seed(experts)
    picks = torch.stack([torch.randperm(experts, generator=dice)[:per_token] for _ in range(tokens)]).to(torch.int32)
    x, weights = numbers(tokens, hidden, dtype=dtype), numbers(tokens, per_token).abs()
    if bits == 4:
        gate_up, down = (
            ExpertWeights(*packed(experts, *shape, seed=3, dtype=dtype))
            for shape in ((2 * inner, hidden), (hidden, inner))
        )
    else:
        gate_up, down = (
            ExpertWeights(numbers(experts, *shape, dtype=dtype) * 0.1)
            for shape in ((2 * inner, hidden), (hidden, inner))
        )

    with programs_in_another_order(seed=tokens):
        ours = expert_mlp(x, picks, weights, gate_up, down)

    exact = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        for rank in range(per_token):
            expert = int(picks[token, rank])
            gate, up = (gate_up.dense(torch.float64)[expert] @ x[token].double()).chunk(2)
            exact[token] += weights[token, rank].double() * (
                down.dense(torch.float64)[expert] @ (gate * gate.sigmoid() * up)
            )
    close(ours, exact)


def test_a_block_nobody_uses_writes_nothing() -> None:
    picks = torch.tensor([[2, 0], [2, 1], [2, 0]], dtype=torch.int32)
    blocks = moe_align(picks, 40, 2)
    assert blocks.experts.tolist()[-1] == -1  # most_blocks counts more blocks than these pairs come to
    out, guard = guarded(6, 16, dtype=torch.float32, fill=math.nan)
    x, weights = numbers(3, 16), ExpertWeights(numbers(40, 16, 16))
    grouped.launch(x, weights, blocks, 2, out, (16, 16, 4, 2)).run()
    close(
        out,
        torch.stack([weights.values[int(picks.flatten()[pair])].double() @ x[pair // 2].double() for pair in range(6)]),
    )
    assert guard.isnan().all()
