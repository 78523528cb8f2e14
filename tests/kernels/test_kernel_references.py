"""The torch references, which are the CPU path, against the plainest way to write each operation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.draft_topk import draft_topk
from kernels.kv_commit import kv_commit
from kernels.kv_write import kv_write
from kernels.linear import linear
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope, rope_frequencies, rope_tables
from kernels.silu_mul import silu_mul
from kernels.tree_attention import tree_attention, tree_bias


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error_ratio(ours: Tensor, exact: Tensor) -> float:
    """RMS of the difference over RMS of the exact values."""
    return ((ours.double() - exact.double()).square().mean() / exact.double().square().mean()).sqrt().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("nodes", "context", "heads", "kv_heads", "head_dim"), [
    (1, 0, 4, 4, 8), (1, 37, 6, 2, 16), (5, 0, 6, 2, 16), (9, 130, 9, 3, 64), (16, 3, 8, 1, 24),
])  # fmt: skip
@pytest.mark.parametrize("scattered", [False, True])
def test_attention_shows_each_node_the_context_and_its_ancestors(
    dtype: torch.dtype, nodes: int, context: int, heads: int, kv_heads: int, head_dim: int, scattered: bool
) -> None:
    length, total = context + nodes, 3 * (context + nodes) + 5
    keys = torch.full((total, kv_heads, head_dim), torch.nan, dtype=dtype)  # a slot never written must not be read
    values = keys.clone()
    order = torch.randperm(total, generator=torch.Generator().manual_seed(2))[:length]
    slots = order if scattered else slice(5, 5 + length)
    keys[slots], values[slots] = (
        numbers(length, kv_heads, head_dim).to(dtype),
        numbers(length, kv_heads, head_dim, seed=1).to(dtype),
    )
    q = numbers(nodes, heads, head_dim, seed=3).to(dtype)
    parents = [-1, *((7 * node) % node for node in range(1, nodes))]
    visible = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        visible[node] |= visible[parents[node]]

    bias = tree_bias(visible, length, heads // kv_heads, dtype)
    ours = tree_attention(q, keys, values, slots, bias)

    exact = torch.empty(nodes, heads, head_dim, dtype=torch.float64)
    for node in range(nodes):
        seen = torch.cat((torch.arange(context), context + visible[node].nonzero().flatten()))
        for head in range(heads):
            k, v = (cache[slots][seen, head // (heads // kv_heads)].double() for cache in (keys, values))
            exact[node, head] = torch.softmax(k @ q[node, head].double() / math.sqrt(head_dim), dim=0) @ v
    assert ours.shape == (nodes, heads * head_dim) and ours.dtype is dtype
    assert error_ratio(ours, exact.flatten(1)) < (2e-6 if dtype is torch.float32 else 1e-2)


def test_no_mask_is_made_where_nothing_is_hidden() -> None:
    assert tree_bias(torch.ones(1, 1, dtype=torch.bool), 50, 3, torch.float32) is None
    assert tree_bias(torch.ones(4, 9, dtype=torch.bool), 50, 3, torch.float32) is None


@pytest.mark.parametrize("shape", [(1, 8), (5, 123), (3, 4, 16)])
def test_rms_norm_divides_by_the_root_mean_square(shape: tuple[int, ...]) -> None:
    x, weight = numbers(*shape) * 7, numbers(shape[-1], seed=1)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert error_ratio(rms_norm(x, weight, 1e-5), exact) < 1e-6
    narrow = rms_norm(x.bfloat16(), weight.bfloat16(), 1e-5)
    assert narrow.dtype is torch.bfloat16 and error_ratio(narrow, exact) < 1e-2


def test_rotary_embedding_turns_pairs_and_keeps_inner_products_of_equal_distances() -> None:
    frequencies = rope_frequencies(8, 10000.0)
    assert frequencies.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    x = numbers(3, 2, 8)
    cos, sin = rope_tables(torch.tensor([0, 5, 9]), frequencies, torch.float32)
    turned = apply_rope(x, cos, sin)
    assert torch.equal(turned[0], x[0])
    angle = 5 * 0.1
    first, second = x[1, 0, 1].item(), x[1, 0, 5].item()
    assert turned[1, 0, 1].item() == pytest.approx(first * math.cos(angle) - second * math.sin(angle), abs=1e-6)
    assert turned[1, 0, 5].item() == pytest.approx(second * math.cos(angle) + first * math.sin(angle), abs=1e-6)
    q, k = numbers(1, 1, 8, seed=4).expand(3, 1, 8), numbers(1, 1, 8, seed=5).expand(3, 1, 8)
    near = apply_rope(q, *rope_tables(torch.tensor([3, 103, 1003]), frequencies, torch.float32))
    far = apply_rope(k, *rope_tables(torch.tensor([1, 101, 1001]), frequencies, torch.float32))
    products = (near * far).sum(-1).flatten()
    assert torch.allclose(products, products[:1].expand(3), atol=1e-3)


def test_llama3_scaling_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    plain = rope_frequencies(64, 500000.0)
    scaled = rope_frequencies(
        64, 500000.0, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )
    ratio, wavelength = scaled / plain, 2 * math.pi / plain
    assert torch.allclose(ratio[wavelength < 8192 / 4], torch.tensor(1.0))
    assert torch.allclose(ratio[wavelength > 8192], torch.tensor(1 / 8))
    between = ratio[(wavelength > 8192 / 4) & (wavelength < 8192)]
    assert len(between) and bool(((between > 1 / 8) & (between < 1)).all())
    assert torch.equal(rope_frequencies(64, 500000.0, kind="linear", factor=4.0), plain / 4)


def test_silu_mul_takes_the_gate_first() -> None:
    gate_up = numbers(4, 10)
    gate, up = gate_up[:, :5], gate_up[:, 5:]
    assert torch.allclose(silu_mul(gate_up), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("rows", range(1, 10))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_gives_every_row_whatever_rows_are_padded(rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = numbers(rows, 12).to(dtype), numbers(7, 12, seed=1).to(dtype), numbers(7, seed=2).to(dtype)
    exact = x.double() @ weight.double().T + bias.double()
    assert linear(x, weight, bias).shape == (rows, 7)
    assert error_ratio(linear(x, weight, bias), exact) < (1e-6 if dtype is torch.float32 else 1e-2)
    assert error_ratio(linear(x, weight), exact - bias.double()) < (1e-6 if dtype is torch.float32 else 1e-2)


@pytest.mark.parametrize("slots", [slice(3, 6), torch.tensor([8, 0, 5])], ids=["slice", "indices"])
def test_kv_write_fills_its_slots_and_no_other(slots: slice | Tensor) -> None:
    keys, values = torch.zeros(9, 2, 4), torch.zeros(9, 2, 4)
    k, v = numbers(3, 2, 4), numbers(3, 2, 4, seed=1)
    kv_write(keys, values, slots, k, v)
    assert torch.equal(keys[slots], k) and torch.equal(values[slots], v)
    assert keys.count_nonzero() == k.numel() and values.count_nonzero() == v.numel()


def test_kv_commit_reads_everything_before_it_writes() -> None:
    keys = torch.arange(10.0).view(1, 10, 1, 1).repeat(2, 1, 1, 1)
    values = -keys
    kv_commit(keys, values, torch.tensor([4, 5, 7]), torch.tensor([3, 4, 5]))
    for layer in range(2):
        assert keys[layer].flatten().tolist() == [0, 1, 2, 4, 5, 7, 6, 7, 8, 9]
        assert values[layer].flatten().tolist() == [0, -1, -2, -4, -5, -7, -6, -7, -8, -9]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draft_candidates_are_normalised_over_the_whole_vocabulary(dtype: torch.dtype) -> None:
    logits = (numbers(3, 50) * 4).to(dtype)
    token_ids, log_probs = draft_topk(logits, 6)
    exact = torch.log_softmax(logits.double(), dim=-1)
    best = exact.sort(dim=-1, descending=True)
    assert torch.allclose(log_probs.double(), best.values[:, :6], atol=1e-5)
    assert torch.allclose(exact.gather(1, token_ids), best.values[:, :6])
    assert log_probs.dtype is torch.float32
