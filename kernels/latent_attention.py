"""Multi-head latent attention of draft-tree nodes over a paged cache, absorbed form (DeepSeek-V2, arXiv 2405.04434, 2.1).

A cached row is [latent | rotary key], one for all heads; queries were put through the matrix that makes keys of latents:
score = (q_latent . latent + q_rotary . key) * scale, answer = sum of weights * latent. The latent tile is loaded once and
serves as keys and as values. Rows of a program are (node, head) pairs; tree, pages, splits as in `paged_attention`.

float32 scores, statistics and sums; products in the cache's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import paged_attention
from kernels.launch import (
    INTERPRETED,
    Argument,
    Case,
    Floor,
    Gpu,
    Launch,
    cdiv,
    gpu_of,
    jit,
    on_triton,
    pow2,
    require,
    tl,
)
from kernels.paged_attention import Tile
from kernels.split_attention import merge_launch, node_sees, softmax_step, split_count, tile_slots


@dataclass(frozen=True)
class Shape:
    """What a configuration depends on. `length`: the longest context the launch has to serve."""

    nodes: int
    heads: int
    rank: int
    rotary: int
    length: int
    page_size: int
    element_bytes: int = 2

    @property
    def rows(self) -> int:
        """Query rows; all share the one cached row of a position."""
        return self.nodes * self.heads


def latent_attention(
    q: Tensor,
    cache: Tensor,
    page_table: Tensor,
    extent: Tensor,
    ancestors: Tensor,
    *,
    rank: int,
    scale: float,
    page_size: int,
    longest: int,
) -> Tensor:
    """q [nodes, heads, rank + rotary], cache [slots, rank + rotary] of one layer -> attended latents [nodes, heads * rank].

    page_table, extent, ancestors, page_size and longest as in `paged_attention`. Raises ValueError that names the argument.
    """
    if not on_triton(q):
        return reference(q, cache, page_table, extent, ancestors, rank, scale, page_size)
    out = torch.empty(q.shape[0], q.shape[1] * rank, dtype=q.dtype, device=q.device)
    for launch in launches(q, cache, page_table, extent, ancestors, out, scale, page_size, longest, gpu_of(q)):
        launch.run()
    return out


def reference(
    q: Tensor,
    cache: Tensor,
    page_table: Tensor,
    extent: Tensor,
    ancestors: Tensor,
    rank: int,
    scale: float,
    page_size: int,
) -> Tensor:
    """`latent_attention` in torch: attention whose one key head is the cached row, whose values are zero past the rank."""
    rows = cache.unsqueeze(1)
    given = (q, rows, rows, page_table, extent, ancestors, page_size, scale)
    return paged_attention.reference(*given).view(q.shape)[..., :rank].flatten(1)


@jit(varying=("nodes",))
def latent_attention_kernel(
    q_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    table_ptr: tl.tensor,
    extent_ptr: tl.tensor,
    bits_ptr: tl.tensor,
    out_ptr: tl.tensor,
    peak_ptr: tl.tensor,
    total_ptr: tl.tensor,
    nodes: tl.tensor,
    q_node: tl.tensor,
    q_head: tl.tensor,
    cache_slot: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    WORDS: tl.constexpr,
    LATENT: tl.constexpr,
    TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    WHOLE: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    split = tl.program_id(1)
    length, live = tl.load(extent_ptr), tl.load(extent_ptr + 1)
    end = length + live
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    node, head = row // HEADS, row % HEADS
    column, turn, offset = tl.arange(0, LATENT), tl.arange(0, TURNED), tl.arange(0, KEYS)
    q_at = q_ptr + node.to(tl.int64)[:, None] * q_node + head[:, None] * q_head
    asked = (node < live)[:, None]
    q = tl.load(q_at + column[None, :], mask=asked & (column < RANK)[None, :], other=0.0)
    q_turned = tl.load(q_at + RANK + turn[None, :], mask=asked & (turn < ROTARY)[None, :], other=0.0)
    if UPCAST:
        q, q_turned = q.to(tl.float32), q_turned.to(tl.float32)
    tiles = tl.cdiv(tl.cdiv(end, KEYS), tl.num_programs(1))
    first = split * tiles
    last = tl.minimum(first + tiles, tl.cdiv(end, KEYS))
    free = tl.minimum(last, length // KEYS)  # tiles before it lie wholly in the context

    acc = tl.zeros([ROWS, LATENT], dtype=tl.float32)
    peak = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    for tile in range(first, free):
        slot = tile_slots(table_ptr, tile * KEYS, offset, end, PAGE, WHOLE)[:, None]
        at = cache_ptr + slot * cache_slot
        latent = tl.load(at + column[None, :], mask=(slot >= 0) & (column < RANK)[None, :], other=0.0)
        key = tl.load(at + RANK + turn[None, :], mask=(slot >= 0) & (turn < ROTARY)[None, :], other=0.0)
        if UPCAST:
            latent, key = latent.to(tl.float32), key.to(tl.float32)
        scores = tl.dot(q_turned, tl.trans(key), input_precision="ieee")
        scores = tl.dot(q, tl.trans(latent), scores, input_precision="ieee") * SCALE
        acc, peak, total = softmax_step(scores, True, latent, acc, peak, total, MASKED=False)
    for tile in range(tl.maximum(first, free), last):
        position = tile * KEYS + offset
        slot = tile_slots(table_ptr, tile * KEYS, offset, end, PAGE, WHOLE)[:, None]
        at = cache_ptr + slot * cache_slot
        held = (position < end)[:, None]
        latent = tl.load(at + column[None, :], mask=held & (column < RANK)[None, :], other=0.0)
        key = tl.load(at + RANK + turn[None, :], mask=held & (turn < ROTARY)[None, :], other=0.0)
        if UPCAST:
            latent, key = latent.to(tl.float32), key.to(tl.float32)
        scores = tl.dot(q_turned, tl.trans(key), input_precision="ieee")
        scores = tl.dot(q, tl.trans(latent), scores, input_precision="ieee") * SCALE
        in_tree = ((position >= length) & (position < end))[None, :] & asked
        seen = node_sees(bits_ptr, node[:, None], (position - length)[None, :], in_tree, WORDS)
        visible = ((position < length)[None, :] & asked) | seen
        acc, peak, total = softmax_step(scores, visible, latent, acc, peak, total, MASKED=True)

    total = tl.where(node < live, total, 0.0)
    out_row = row.to(tl.int64)
    inside = node < nodes
    if SPLIT:
        out_row += split.to(tl.int64) * nodes * HEADS
        tl.store(peak_ptr + out_row, peak, mask=inside)
        tl.store(total_ptr + out_row, total, mask=inside)
    else:
        acc = tl.where(total[:, None] > 0, acc / tl.where(total > 0, total, 1.0)[:, None], 0.0)
    tl.store(out_ptr + out_row[:, None] * RANK + column[None, :], acc, mask=inside[:, None] & (column < RANK)[None, :])


def config(arch: int, shape: Shape) -> Tile:
    """Tile sizes as compiled without spills on every architecture: 64 rows of 512 columns leave no register free."""
    if shape.element_bytes > 2:
        return Tile(16, 16, 4, 1)  # twice the bytes in shared memory: for tests, not for speed
    return Tile(16, 32, 4, 2) if shape.rows <= 16 else Tile(32, 32, 8, 2)


def splits(gpu: Gpu, shape: Shape) -> int:
    """How many programs share the cached rows of one row tile."""
    tile = config(gpu.arch, shape)
    return split_count(
        gpu,
        cdiv(shape.rows, tile.rows),
        cdiv(shape.length + shape.nodes, tile.keys),
        per_sm=1,
        partial_rows=shape.rows,
        length=16
        * shape.length,  # one row for all heads is little to weigh partial results against: latency counts more
    )


def floor(shape: Shape, element_bytes: int) -> Floor:
    """Cached rows read once, queries read, answers written; 2 operations a row, key and dimension of scores and answers."""
    seen, width = shape.length + shape.nodes, shape.rank + shape.rotary
    kept = seen * width + shape.rows * (width + shape.rank)
    return Floor(kept * element_bytes, 2 * shape.rows * (width + shape.rank) * seen)


def launches(
    q: Tensor,
    cache: Tensor,
    page_table: Tensor,
    extent: Tensor,
    ancestors: Tensor,
    out: Tensor,
    scale: float,
    page_size: int,
    longest: int,
    gpu: Gpu,
    tile: Tile | None = None,
    split: int | None = None,
) -> tuple[Launch, ...]:
    """The attention and, where its keys are split, the merge. out [nodes, heads * rank]; `tile` and `split` as chosen."""
    nodes, heads, width = q.shape
    rank = out.shape[1] // heads
    require(cache.ndim == 2 and cache.shape[1] == width, "cache", f"[slots, {width}]", tuple(cache.shape))
    require(cache.dtype == q.dtype, "cache", f"{q.dtype} like q", cache.dtype)
    require(q.stride(2) == cache.stride(1) == 1, "q and cache", "contiguous within a row", "strided")
    for name, tensor in (("page_table", page_table), ("extent", extent), ("ancestors", ancestors)):
        require(tensor.dtype is torch.int32 and tensor.is_contiguous(), name, "contiguous int32", tensor.dtype)
    words = ancestors.shape[1]
    require(
        len(ancestors) == nodes and 32 * words >= nodes,
        "ancestors",
        f"[{nodes}, {cdiv(nodes, 32)}]",
        tuple(ancestors.shape),
    )
    shape = Shape(nodes, heads, rank, width - rank, longest, page_size, q.element_size())
    tile = tile or config(gpu.arch, shape)
    split = split or splits(gpu, shape)
    partial = torch.empty(split, shape.rows, rank, device=q.device) if split > 1 else out
    peaks, totals = (torch.empty(split, shape.rows, device=q.device) if split > 1 else None for _ in range(2))
    arguments: dict[str, Argument] = {
        "q_ptr": q, "cache_ptr": cache, "table_ptr": page_table, "extent_ptr": extent, "bits_ptr": ancestors,
        "out_ptr": partial, "peak_ptr": peaks, "total_ptr": totals, "nodes": nodes,
        "q_node": q.stride(0), "q_head": q.stride(1), "cache_slot": cache.stride(0),
        "SCALE": scale / math.log(2), "HEADS": heads, "RANK": rank, "ROTARY": width - rank, "WORDS": words,
        "LATENT": max(pow2(rank), 16), "TURNED": max(pow2(width - rank), 16), "ROWS": tile.rows, "KEYS": tile.keys,
        "PAGE": page_size, "WHOLE": page_size % tile.keys == 0, "SPLIT": split > 1, "UPCAST": INTERPRETED,
    }  # fmt: skip
    attention = Launch(
        latent_attention_kernel, (cdiv(shape.rows, tile.rows), split), arguments, tile.warps, tile.stages, wide=True
    )
    if peaks is None or totals is None:
        return (attention,)
    merged = out.view(shape.rows, rank)
    return attention, merge_launch(partial, peaks, totals, merged, rows_a_program=8 if INTERPRETED else 1)


def cases(arch: int) -> Iterator[Case]:
    """Kimi K2 and DeepSeek-V3 rows at tensor parallelism 8 and 1, pages that tiles divide and that they do not."""
    for nodes, heads, page, split, dtype in (
        (1, 8, 1, 16, torch.bfloat16),
        (1, 16, 64, 32, torch.bfloat16),
        (4, 8, 64, 16, torch.bfloat16),
        (4, 8, 1, 1, torch.bfloat16),
        (16, 64, 64, 4, torch.bfloat16),
        (16, 64, 1, 4, torch.bfloat16),
        (4, 8, 16, 1, torch.float32),
    ):
        q = torch.empty(nodes, heads, 576, dtype=dtype, device="meta")
        cache = torch.empty(4096, 576, dtype=dtype, device="meta")
        out = torch.empty(nodes, heads * 512, dtype=dtype, device="meta")
        bits = torch.empty(nodes, cdiv(nodes, 32), dtype=torch.int32, device="meta")
        given = (q, cache, bits[0], bits[0], bits, out, 0.1, page, 4096, Gpu(arch, 1))
        launch = launches(*given, split=split)[0]
        tile = f"{launch.arguments['ROWS']}x{launch.arguments['KEYS']} w{launch.warps} s{launch.stages}"
        yield (
            f"{'fp32 ' if dtype is torch.float32 else ''}heads={heads} nodes={nodes} page={page} split={split} {tile}",
            launch,
        )
