"""Speed of the kernels: floor bytes over time for what is bound by memory, microseconds for what is bound by latency."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kernels import draft_topk, int4_gemm, kv_store, latent_attention, moe_gemm, paged_attention, rms_norm, silu_mul
from kernels.accept_walk import Accepted, accept_walk
from kernels.launch import gpu_of, on_triton
from kernels.moe_gemm import ExpertWeights
from kernels.paged_attention import Shape
from kernels.token_choice import SamplingTensors, token_choice
from kernels.tree_build import ancestor_words, tree_build
from tests.gpu.measure import Bench, Row, copies, microseconds, row_of
from tests.gpu.values import integers, numbers, on, packed, pages, random_picks, random_tree

LENGTHS, NODES, PAGES = (1024, 4096, 16384, 65536, 131072), (1, 4, 16, 64), (1, 16, 64)
NODES_VERIFIED = (16, 64)
HEADS, KV_HEADS, DIM = 32, 8, 128  # Qwen3-8B


def attention_grid(bench: Bench, copy: float, length: int) -> list[Row]:
    """Paged attention over nodes x page. Aim: 70 % of copy at 16k and more with 16 nodes or fewer; pages alike."""
    length = bench.size(length, 64)
    return [attention_row(bench, copy, length, nodes, page_size) for nodes in NODES for page_size in PAGES]


def attention_row(bench: Bench, copy: float, length: int, nodes: int, page_size: int) -> Row:
    table, slots = pages(bench, length + nodes, page_size)
    caches = copies(bench, 2 * slots * KV_HEADS * DIM * 2, lambda: numbers(bench, 2, slots, KV_HEADS, DIM))
    words = ancestor_words(random_tree(nodes, nodes)[0]).to(bench.device)
    q, extent = numbers(bench, nodes, HEADS, DIM), integers([length, nodes], bench)

    def call(cache: Tensor) -> Callable[[], object]:
        return lambda: paged_attention.paged_attention(
            q, cache[0], cache[1], table, extent, words, page_size=page_size, longest=length
        )

    us = microseconds(bench, [call(cache) for cache in caches])
    shape = Shape(nodes, HEADS, KV_HEADS, DIM, length, page_size)
    note = ""
    if on_triton(q):
        tile = paged_attention.config(gpu_of(q).arch, shape)
        note = f"{tile.rows}x{tile.keys} w{tile.warps}, {paged_attention.splits(gpu_of(q), shape)} splits"
    case = f"L={length} nodes={nodes} page={page_size}"
    return row_of("paged attention", case, us, paged_attention.floor(shape, 2).bytes_moved, copy, note)


def attention_peers(bench: Bench, copy: float) -> list[Row]:
    """torch SDPA and flex-attention on the same work, their keys contiguous and in order: no page table to follow."""
    rows = []
    length = bench.size(16384, 64)
    for nodes in (1, 16, 64):
        q = numbers(bench, 1, HEADS, nodes, DIM)
        kv = [numbers(bench, 2, 1, KV_HEADS, length + nodes, DIM, seed=turn) for turn in range(bench.size(4, 1))]
        parents, _ = random_tree(nodes, nodes)
        visible = torch.eye(nodes, dtype=torch.bool)
        for node in range(1, nodes):
            visible[node] |= visible[parents[node]]
        mask = torch.cat((torch.ones(nodes, length, dtype=torch.bool), visible), dim=1).to(bench.device)
        moved = paged_attention.floor(Shape(nodes, HEADS, KV_HEADS, DIM, length, 1), 2).bytes_moved
        us = microseconds(bench, [sdpa(q, pair, mask) for pair in kv])
        rows.append(row_of("torch SDPA", f"L={length} nodes={nodes}", us, moved, copy))
        if nodes > 1 and bench.measures:
            rows.append(flex_row(bench, copy, q, kv, mask, moved, f"L={length} nodes={nodes}"))
    return rows


def sdpa(q: Tensor, kv: Tensor, mask: Tensor) -> Callable[[], object]:
    return lambda: functional.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=mask, enable_gqa=True)


def flex_row(bench: Bench, copy: float, q: Tensor, kv: list[Tensor], mask: Tensor, moved: int, case: str) -> Row:
    """A peer that will not compile is a row that says so, and no reason to lose the rest."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)

    def seen(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return mask[row, column]

    try:
        blocks = create_block_mask(seen, None, None, *mask.shape, device=str(bench.device))
        calls = [lambda pair=pair: compiled(q, pair[0], pair[1], block_mask=blocks, enable_gqa=True) for pair in kv]
        return row_of("flex-attention", case, microseconds(bench, calls), moved, copy)
    except (RuntimeError, ValueError) as error:
        return Row("flex-attention", case, note=f"failed: {' '.join(str(error).split())[:80]}")


def rows_kernels(bench: Bench, copy: float) -> list[Row]:
    """Norm, activation and K/V write at verify shapes."""
    kinds = (norm_row, silu_row, store_row)
    return [row(bench, copy, nodes) for nodes in NODES_VERIFIED for row in kinds]


def weight_kernels(bench: Bench, copy: float) -> list[Row]:
    """Products that read packed weights or experts, at verify shapes."""
    rows = []
    for nodes in NODES_VERIFIED:
        rows += [int4_row(bench, copy, nodes), experts_row(bench, copy, nodes, bits=16)]
        rows += [experts_row(bench, copy, nodes, bits=4)]
    return rows


def latent_kernels(bench: Bench, copy: float) -> list[Row]:
    """Latent attention by nodes and context."""
    contexts = (16384, 131072)
    return [latent_row(bench, copy, nodes, bench.size(length, 64)) for nodes in NODES_VERIFIED for length in contexts]


def candidates_kernel(bench: Bench, copy: float) -> list[Row]:
    """The draft's best candidates out of a whole vocabulary."""
    logits = copies(bench, 15 * 151936 * 2, lambda: numbers(bench, 15, bench.size(151936, 300)))
    moved = draft_topk.floor(15, 151936, 64, 2).bytes_moved
    calls = [lambda x=x: draft_topk.draft_topk(x, 64) for x in logits]
    return [row_of("draft top-k", "15 x 151936, k=64", microseconds(bench, calls), moved, copy)]


def norm_row(bench: Bench, copy: float, nodes: int) -> Row:
    x, delta, weight = numbers(bench, nodes, 4096), numbers(bench, nodes, 4096, seed=1), numbers(bench, 4096)
    us = microseconds(bench, [lambda: rms_norm.add_rms_norm(x, delta, weight, 1e-6)])
    moved = rms_norm.floor(nodes, 4096, 2, add=True).bytes_moved
    return row_of("norm + residual", f"{nodes} x 4096", us, moved, copy, "in L2: latency")


def silu_row(bench: Bench, copy: float, nodes: int) -> Row:
    x = numbers(bench, nodes, 2 * 12288)
    us = microseconds(bench, [lambda: silu_mul.silu_mul(x)])
    return row_of(
        "SiLU-mul", f"{nodes} x 12288", us, silu_mul.floor(nodes, 12288, 2).bytes_moved, copy, "in L2: latency"
    )


def store_row(bench: Bench, copy: float, nodes: int) -> Row:
    table, slots = pages(bench, 4096 + nodes, 16)
    keys, values = (torch.zeros(slots, KV_HEADS, DIM, dtype=torch.bfloat16, device=bench.device) for _ in range(2))
    qkv, weights = numbers(bench, nodes, HEADS + 2 * KV_HEADS, DIM), (numbers(bench, DIM), numbers(bench, DIM, seed=1))
    tables, extent = (
        (numbers(bench, nodes, 1, DIM), numbers(bench, nodes, 1, DIM, seed=1)),
        integers([4096, nodes], bench),
    )
    us = microseconds(
        bench, [lambda: kv_store.kv_store(qkv, weights, 1e-6, tables, table, extent, keys, values, page_size=16)]
    )
    moved = kv_store.floor(nodes, HEADS, KV_HEADS, DIM, 2).bytes_moved
    return row_of("norm, rope, K/V write", f"{nodes} nodes", us, moved, copy, "in L2: latency")


def int4_row(bench: Bench, copy: float, nodes: int) -> Row:
    outputs, inputs = bench.size(16384, 64), bench.size(7168, 64)
    words, scales = packed(bench, outputs, inputs)
    sets = copies(bench, outputs * inputs * 9 // 16, words.clone)
    x = numbers(bench, nodes, inputs)
    us = microseconds(bench, [lambda w=w: int4_gemm.int4_gemm(x, w, scales) for w in sets])
    moved = int4_gemm.floor(nodes, outputs, inputs, 2).bytes_moved
    return row_of("INT4 product", f"{nodes} x {outputs} x {inputs}", us, moved, copy)


def experts_row(bench: Bench, copy: float, nodes: int, *, bits: int) -> Row:
    """Qwen3-30B-A3B's gate and up in bfloat16, Kimi K2's at a quarter of its experts in INT4."""
    experts, outputs, inputs = (128, 1536, 2048) if bits == 16 else (96, 4096, 7168)
    if not bench.measures:
        experts, outputs, inputs = 16, 64, 64
    weights = (
        ExpertWeights(numbers(bench, experts, outputs, inputs))
        if bits == 16
        else ExpertWeights(*packed(bench, experts, outputs, inputs))
    )
    x, picks = numbers(bench, nodes, inputs), random_picks(bench, nodes, 8, experts)
    blocks = moe_gemm.moe_align(picks, experts, moe_gemm.block_size(picks.numel(), experts))
    us = microseconds(bench, [lambda: moe_gemm.moe_gemm(x, weights, blocks, pairs=picks.numel(), share=8)])
    taken = len(picks.unique())
    moved = moe_gemm.floor(picks.numel(), taken, outputs, inputs, 2, packed=bits == 4).bytes_moved
    return row_of(
        "experts' product", f"{'bf16' if bits == 16 else 'int4'} {nodes} nodes, {taken} experts", us, moved, copy
    )


def latent_row(bench: Bench, copy: float, nodes: int, length: int) -> Row:
    table, slots = pages(bench, length + nodes, 64)
    caches = copies(bench, slots * 576 * 2, lambda: numbers(bench, slots, 576))
    words = ancestor_words(random_tree(nodes, nodes)[0]).to(bench.device)
    q, extent = numbers(bench, nodes, 8, 576), integers([length, nodes], bench)

    def call(cache: Tensor) -> Callable[[], object]:
        return lambda: latent_attention.latent_attention(
            q, cache, table, extent, words, rank=512, scale=0.05, page_size=64, longest=length
        )

    moved = latent_attention.floor(latent_attention.Shape(nodes, 8, 512, 64, length, 64), 2).bytes_moved
    us = microseconds(bench, [call(cache) for cache in caches])
    return row_of("latent attention", f"L={length} nodes={nodes} heads=8", us, moved, copy)


def latencies(bench: Bench) -> list[Row]:
    """Build and walk together, which aim at 150 us at budget 64; and the choice of tokens."""
    rows = []
    for budget in (16, 64, 256):
        logits = numbers(bench, 15, 600, dtype=torch.float32, seed=budget) * 2
        best = torch.log_softmax(logits, -1).sort(dim=-1, descending=True)
        ids, log_probs = best.indices[:, :budget].contiguous(), best.values[:, :budget].contiguous()
        seed = torch.tensor([5], device=bench.device)
        tree = tree_build(seed, ids, log_probs, budget)
        choices = tree.token_ids.roll(-1)
        room = Accepted.empty(16, bench.device)

        def build_and_walk(seed=seed, ids=ids, log_probs=log_probs, budget=budget, choices=choices, room=room) -> None:  # type: ignore[no-untyped-def]
            grown = tree_build(seed, ids, log_probs, budget)
            accept_walk(grown.token_ids, grown.parents, grown.live, choices, 15, room)

        us = microseconds(bench, [build_and_walk])
        rows.append(Row("build + walk", f"budget={budget}", us))
    for name, sampling in (("greedy", SamplingTensors.of(0, 0.0)), ("top-p 0.95", SamplingTensors.of(3, 0.8, 0, 0.95))):
        logits = numbers(bench, 65, bench.size(151936, 300))
        positions, here = torch.arange(65, device=bench.device), on(bench, sampling)
        us = microseconds(
            bench, [lambda logits=logits, positions=positions, here=here: token_choice(logits, positions, here)]
        )
        rows.append(Row("token choice", f"65 x 151936 {name}", us))
    return rows


def verdicts(rows: list[Row]) -> list[Row]:
    """The aims, judged by the rows above; nothing is judged that was not measured."""
    aimed = [row for row in rows if row.what == "paged attention" and not math.isnan(row.us)]
    if not aimed:
        return []
    by_case = {tuple(int(part.split("=")[1]) for part in row.case.split()): row for row in aimed}
    long = [row.of_copy for (length, nodes, _), row in by_case.items() if length >= 16384 and nodes <= 16]
    apart = [
        by_case[length, nodes, 1].us / by_case[length, nodes, 64].us - 1
        for length, nodes, page in by_case
        if page == 64 and length >= 16384 and nodes <= 16 and (length, nodes, 1) in by_case
    ]
    build = [row.us for row in rows if row.what == "build + walk" and row.case == "budget=64"]
    host = [row.host for row in rows if not math.isnan(row.host)]
    judged = (
        ("attention >= 70 % of copy, L >= 16k, nodes <= 16", "least {:.0%}", long and min(long)),
        ("page 1 within 5 % of 64, there", "at most {:+.1%}", apart and max(apart)),
        ("build + walk <= 150 us at budget 64", "{:.0f} us", build and build[0]),
        ("host under 3 % of a captured round", "at most {:.1%}", host and max(host)),
    )
    return [Row("aim", aim, note=form.format(value) if value != [] else "not measured") for aim, form, value in judged]
