"""Attention of draft-tree nodes over a paged cache, grouped queries: softmax(q k^T * scale) v, each node seeing the whole
context and its own ancestors.

The nodes' keys and values are in the cache already, at positions length .. length + live - 1, so that one page table serves
context and tree. Rows of a program are (node, query head of a group): all heads that share a key head read it once. Context
tiles need no mask; tree tiles take bit j of a node's ancestor words for column j. Page sizes of any kind: where the tile
size divides it, one table entry serves a tile; else every key looks up its own page. Nodes at or after `live` are padding:
they give nought. With a window, a node at depth d sees keys after position length + d - window only.

float32 scores, statistics and sums; products in the cache's dtype. Partial results of splits are merged by
`split_attention`. Source: the tree mask of DDTree (arXiv 2604.12989); split keys as in flash decoding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

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
from kernels.split_attention import merge_launch, node_sees, softmax_step, split_count, tile_slots


@dataclass(frozen=True)
class Shape:
    """What a configuration depends on. `length`: the longest context the launch has to serve."""

    nodes: int
    heads: int
    kv_heads: int
    head_dim: int
    length: int
    page_size: int
    element_bytes: int = 2

    @property
    def rows(self) -> int:
        """Query rows that share a key head."""
        return self.nodes * self.heads // self.kv_heads


@dataclass(frozen=True)
class Tile:
    """`rows` of queries by `keys`, with `warps` and pipeline `stages`."""

    rows: int
    keys: int
    warps: int
    stages: int


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    extent: Tensor,
    ancestors: Tensor,
    *,
    page_size: int,
    longest: int,
    scale: float | None = None,
    window: int = 0,
    depths: Tensor | None = None,
) -> Tensor:
    """q [nodes, heads, head_dim], keys and values [slots, kv_heads, head_dim] of one layer -> [nodes, heads * head_dim].

    page_table int32 [pages]: position p lies in slot page_table[p // page_size] * page_size + p % page_size.
    extent int32 [2]: (context length, live nodes), read on the device. ancestors int32 [nodes, words]: bit j of node i set
    where i sees node j. longest: the most the context length can be, from which the number of splits follows.
    scale: 1 / sqrt(head_dim) unless given. window: 0 for none, else it needs depths int32 [nodes].
    Raises ValueError that names the argument.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not on_triton(q):
        return reference(q, keys, values, page_table, extent, ancestors, page_size, scale, window, depths)
    out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    given = (q, keys, values, page_table, extent, ancestors, depths, out)
    for launch in launches(*given, page_size, longest, scale, window, gpu_of(q)):
        launch.run()
    return out


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    extent: Tensor,
    ancestors: Tensor,
    page_size: int,
    scale: float,
    window: int = 0,
    depths: Tensor | None = None,
) -> Tensor:
    """`paged_attention` in torch, in float32 or, for float64 tensors, float64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    length, live = extent.tolist()
    positions = torch.arange(length + live, device=q.device)
    slots = page_table[positions // page_size].long() * page_size + positions % page_size
    group = q.shape[1] // keys.shape[1]
    k, v = (cache[slots].to(wide).repeat_interleave(group, dim=1) for cache in (keys, values))
    node = torch.arange(live, device=q.device)
    tree = (ancestors[:live, node // 32] >> (node % 32)) & 1 == 1
    visible = torch.cat((torch.ones(live, length, dtype=torch.bool, device=q.device), tree), dim=1)
    if window and depths is not None:
        visible &= positions > (length + depths[:live, None] - window)
    scores = torch.einsum("nhd,khd->hnk", q[:live].to(wide), k) * scale
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    out[:live] = torch.einsum("hnk,khd->nhd", weights, v).to(q.dtype)
    return out.flatten(1)


@jit(varying=("nodes", "window"))
def paged_attention_kernel(
    q_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    table_ptr: tl.tensor,
    extent_ptr: tl.tensor,
    bits_ptr: tl.tensor,
    depths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    peak_ptr: tl.tensor,
    total_ptr: tl.tensor,
    nodes: tl.tensor,
    window: tl.tensor,
    q_node: tl.tensor,
    q_head: tl.tensor,
    key_slot: tl.tensor,
    key_head: tl.tensor,
    value_slot: tl.tensor,
    value_head: tl.tensor,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    WHOLE: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    kv_head, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    length, live = tl.load(extent_ptr), tl.load(extent_ptr + 1)
    end = length + live
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    node, head = row // GROUP, kv_head * GROUP + row % GROUP
    column, offset = tl.arange(0, COLUMNS), tl.arange(0, KEYS)
    q_at = node.to(tl.int64)[:, None] * q_node + head[:, None] * q_head + column[None, :]
    q = tl.load(q_ptr + q_at, mask=(node < live)[:, None] & (column < DIM)[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    horizon = length - window  # keys at or before it are out of the window of every node
    if WINDOWED:
        horizon += tl.load(depths_ptr + node, mask=node < live, other=0)
        begin = tl.maximum(length - window + 1, 0) // KEYS
    else:
        begin = 0
    tiles = tl.cdiv(tl.cdiv(end, KEYS) - begin, tl.num_programs(2))
    first = begin + split * tiles
    last = tl.minimum(first + tiles, tl.cdiv(end, KEYS))
    free = first if WINDOWED else tl.minimum(last, length // KEYS)  # tiles before it lie wholly in the context

    acc = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    peak = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    k_base, v_base = keys_ptr + kv_head * key_head, values_ptr + kv_head * value_head
    for tile in range(first, free):
        slot = tile_slots(table_ptr, tile * KEYS, offset, end, PAGE, WHOLE)[:, None]
        held = (slot >= 0) & (column < DIM)[None, :]
        k = tl.load(k_base + slot * key_slot + column[None, :], mask=held, other=0.0)
        v = tl.load(v_base + slot * value_slot + column[None, :], mask=held, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        acc, peak, total = softmax_step(scores, True, v, acc, peak, total, MASKED=False)
    for tile in range(tl.maximum(first, free), last):
        position = tile * KEYS + offset
        slot = tile_slots(table_ptr, tile * KEYS, offset, end, PAGE, WHOLE)[:, None]
        held = (position < end)[:, None] & (column < DIM)[None, :]
        k = tl.load(k_base + slot * key_slot + column[None, :], mask=held, other=0.0)
        v = tl.load(v_base + slot * value_slot + column[None, :], mask=held, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        in_tree = ((position >= length) & (position < end))[None, :] & (node < live)[:, None]
        seen = node_sees(bits_ptr, node[:, None], (position - length)[None, :], in_tree, WORDS)
        visible = ((position < length)[None, :] & (node < live)[:, None]) | seen
        if WINDOWED:
            visible = visible & (position[None, :] > horizon[:, None])
        acc, peak, total = softmax_step(scores, visible, v, acc, peak, total, MASKED=True)

    total = tl.where(node < live, total, 0.0)
    heads = tl.num_programs(1) * GROUP
    out_row = node * heads + head
    inside = node < nodes
    if SPLIT:
        out_row += split * nodes * heads
        tl.store(peak_ptr + out_row, peak, mask=inside)
        tl.store(total_ptr + out_row, total, mask=inside)
    else:
        acc = tl.where(total[:, None] > 0, acc / tl.where(total > 0, total, 1.0)[:, None], 0.0)
    tl.store(out_ptr + out_row[:, None] * DIM + column[None, :], acc, mask=inside[:, None] & (column < DIM)[None, :])


def config(arch: int, shape: Shape) -> Tile:
    """Tile sizes by the rows that share a key head, as compiled without spills; the architecture decides shared memory."""
    if shape.element_bytes > 2:
        return Tile(16, 16, 4, 1)  # products without tensor cores take registers: for tests, not for speed
    if shape.head_dim > 128:
        return Tile(16, 32, 4, 2) if shape.rows <= 16 else Tile(32, 32, 8, 2)
    if shape.rows <= 16:
        return Tile(16, 128 if shape.length > 8192 else 64, 4, 2)
    return Tile(32, 64, 4, 2) if shape.rows <= 32 else Tile(64, 64, 8, 2)


def splits(gpu: Gpu, shape: Shape) -> int:
    """How many programs share the keys of one row tile and key head."""
    tile = config(gpu.arch, shape)
    return split_count(
        gpu,
        cdiv(shape.rows, tile.rows) * shape.kv_heads,
        cdiv(shape.length + shape.nodes, tile.keys),
        per_sm=2 if tile.warps == 4 else 1,
        partial_rows=shape.rows,
        length=shape.length,
    )


def floor(shape: Shape, element_bytes: int) -> Floor:
    """Keys and values read once, queries read and answers written; two products of 2 operations a row, key and dimension."""
    seen = shape.length + shape.nodes
    kept = 2 * seen * shape.kv_heads + 2 * shape.nodes * shape.heads
    return Floor(kept * shape.head_dim * element_bytes, 4 * shape.nodes * shape.heads * shape.head_dim * seen)


def launches(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    extent: Tensor,
    ancestors: Tensor,
    depths: Tensor | None,
    out: Tensor,
    page_size: int,
    longest: int,
    scale: float,
    window: int,
    gpu: Gpu,
    tile: Tile | None = None,
    split: int | None = None,
) -> tuple[Launch, ...]:
    """The attention and, where its keys are split, the merge. `tile` and `split` replace the choices made here."""
    nodes, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    require(heads % kv_heads == 0, "q", f"of a multiple of {kv_heads} heads", heads)
    require(keys.shape == values.shape, "values", f"shaped {tuple(keys.shape)} like keys", tuple(values.shape))
    require(keys.shape[2] == head_dim, "keys", f"of q's head_dim {head_dim}", keys.shape[2])
    require(keys.dtype == values.dtype == q.dtype, "keys and values", f"{q.dtype} like q", (keys.dtype, values.dtype))
    require(
        all(t.stride(-1) == 1 for t in (q, keys, values)), "q, keys and values", "contiguous within a head", "strided"
    )
    for name, tensor in (("page_table", page_table), ("extent", extent), ("ancestors", ancestors)):
        require(tensor.dtype is torch.int32 and tensor.is_contiguous(), name, "contiguous int32", tensor.dtype)
    words = ancestors.shape[1]
    require(
        len(ancestors) == nodes and 32 * words >= nodes,
        "ancestors",
        f"[{nodes}, {cdiv(nodes, 32)}]",
        tuple(ancestors.shape),
    )
    require(not window or depths is not None, "depths", "given with a window", depths)
    shape = Shape(nodes, heads, kv_heads, head_dim, longest, page_size, q.element_size())
    tile = tile or config(gpu.arch, shape)
    split = split or splits(gpu, shape)
    rows = nodes * heads
    partial = torch.empty(split, rows, head_dim, device=q.device) if split > 1 else out
    peaks, totals = (torch.empty(split, rows, device=q.device) if split > 1 else None for _ in range(2))
    arguments: dict[str, Argument] = {
        "q_ptr": q, "keys_ptr": keys, "values_ptr": values, "table_ptr": page_table, "extent_ptr": extent,
        "bits_ptr": ancestors, "depths_ptr": depths if window else None, "out_ptr": partial, "peak_ptr": peaks, "total_ptr": totals,
        "nodes": nodes, "window": window, "q_node": q.stride(0), "q_head": q.stride(1),
        "key_slot": keys.stride(0), "key_head": keys.stride(1), "value_slot": values.stride(0), "value_head": values.stride(1),
        "SCALE": scale / math.log(2), "GROUP": heads // kv_heads, "DIM": head_dim, "COLUMNS": max(pow2(head_dim), 16), "WORDS": words,
        "ROWS": tile.rows, "KEYS": tile.keys, "PAGE": page_size, "WHOLE": page_size % tile.keys == 0, "SPLIT": split > 1,
        "WINDOWED": window > 0, "UPCAST": INTERPRETED,
    }  # fmt: skip
    grid = (cdiv(shape.rows, tile.rows), kv_heads, split)
    attention = Launch(paged_attention_kernel, grid, arguments, tile.warps, tile.stages, wide=True)
    return (
        (attention, merge_launch(partial, peaks, totals, out, rows_a_program=8 if INTERPRETED else 1))
        if peaks is not None and totals is not None
        else (attention,)
    )


def cases(arch: int) -> Iterator[Case]:
    """Every tile of `config`, with and without splits, for page sizes that tiles divide and that they do not."""
    shapes = [
        (Shape(4, 32, 8, 128, 4096, 1), 1, 0), (Shape(4, 32, 8, 128, 4096, 64), 8, 0), (Shape(1, 32, 8, 128, 131072, 1), 16, 0),
        (Shape(4, 32, 8, 128, 131072, 256), 16, 0), (Shape(8, 32, 8, 128, 32768, 1), 16, 0), (Shape(8, 32, 8, 128, 32768, 64), 16, 0),
        (Shape(65, 32, 8, 128, 16384, 1), 1, 0), (Shape(65, 32, 8, 128, 16384, 16), 4, 0), (Shape(65, 32, 8, 128, 16384, 64), 4, 0),
        (Shape(16, 32, 8, 128, 16384, 16), 4, 2048), (Shape(17, 9, 3, 64, 2048, 1), 2, 0), (Shape(4, 9, 3, 64, 2048, 16), 4, 0),
        (Shape(1, 16, 2, 256, 16384, 1), 16, 0), (Shape(17, 16, 2, 256, 16384, 64), 8, 0),
        (Shape(17, 32, 8, 128, 4096, 16, 4), 1, 0),
    ]  # fmt: skip
    for shape, split, window in shapes:
        dtype = torch.bfloat16 if shape.element_bytes == 2 else torch.float32
        q = torch.empty(shape.nodes, shape.heads, shape.head_dim, dtype=dtype, device="meta")
        kv = torch.empty(shape.length, shape.kv_heads, shape.head_dim, dtype=dtype, device="meta")
        small = torch.empty(shape.nodes, cdiv(shape.nodes, 32), dtype=torch.int32, device="meta")
        given = (q, kv, kv, small[0], small[0], small, small[:, 0], q.flatten(1))
        scale = 1 / math.sqrt(shape.head_dim)
        launch = launches(*given, shape.page_size, shape.length, scale, window, Gpu(arch, 1), split=split)[0]
        sizes = f"{'fp32 ' if dtype is torch.float32 else ''}dim={shape.head_dim} group={shape.heads // shape.kv_heads} nodes={shape.nodes}"
        where = f"page={shape.page_size} length={shape.length} window={window} split={split}"
        tile = f"{launch.arguments['ROWS']}x{launch.arguments['KEYS']} w{launch.warps} s{launch.stages}"
        yield f"{sizes} {where} {tile}", launch
