"""Rotate fresh queries and keys and put keys and values into their cache slots, in one pass over a fused projection.

For each row of qkv = [q heads | k heads | v heads]: q' = rope(norm(q)), keys[slot] = rope(norm(k)), values[slot] = v, where
norm is the per-head RMS norm of Qwen3 or nothing, and rope turns by the row's own angles, so position = context + depth. A
row's slot follows from its place in the sequence: position `first + row` of the page table. Rows at or after `live` are
padding: they write nothing to the cache, and nought to q'.

Rounding: the norm as in `rms_norm`, then the rotation in float32 with one rounding (torch: one a product).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels import rms_norm, rope
from kernels.launch import Argument, Case, Floor, Gpu, Launch, cdiv, gpu_of, jit, on_triton, pow2, require, tl


def kv_store(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor],
    page_table: Tensor,
    extent: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    page_size: int,
) -> Tensor:
    """qkv [rows, heads + 2 * kv_heads, head_dim] -> rotated queries [rows, heads, head_dim]; fills keys and values in place.

    norms: weights [head_dim] of the query and the key norm, or None. tables: cos and signed sin [rows, 1, head_dim] of
    `rope_tables`. page_table int32 [pages]. extent int32 [2]: (position of row 0, live rows). keys, values [slots,
    kv_heads, head_dim] of one layer. Raises ValueError that names the argument.
    """
    heads = qkv.shape[1] - 2 * keys.shape[1]
    if not on_triton(qkv):
        return reference(qkv, norms, eps, tables, page_table, extent, keys, values, page_size)
    q = torch.empty(len(qkv), heads, qkv.shape[2], dtype=qkv.dtype, device=qkv.device)
    launch(qkv, norms, eps, tables, page_table, extent, keys, values, q, page_size, gpu_of(qkv)).run()
    return q


def reference(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor],
    page_table: Tensor,
    extent: Tensor,
    keys: Tensor,
    values: Tensor,
    page_size: int,
) -> Tensor:
    """`kv_store` in torch."""
    kv_heads = keys.shape[1]
    q, k, v = qkv.split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), dim=1)
    if norms is not None:
        q, k = (rms_norm.reference(x, weight, eps) for x, weight in zip((q, k), norms, strict=True))
    q, k = (rope.reference(x, *tables) for x in (q, k))
    first, live = extent.tolist()
    positions = torch.arange(first, first + live, device=qkv.device)
    slots = page_table[positions // page_size].long() * page_size + positions % page_size
    keys[slots], values[slots] = k[:live].to(keys.dtype), v[:live].to(values.dtype)
    return torch.cat((q[:live], torch.zeros_like(q[live:])))


@jit()
def kv_store_kernel(
    qkv_ptr: tl.tensor,
    q_norm_ptr: tl.tensor,
    k_norm_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    table_ptr: tl.tensor,
    extent_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    q_ptr: tl.tensor,
    qkv_row: tl.tensor,
    key_slot: tl.tensor,
    value_slot: tl.tensor,
    EPS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (column < HALF)
    live = row < tl.load(extent_ptr + 1)
    given = inside & (column < tl.where(live, HALF, 0))  # what may be read and stored
    at = qkv_ptr + row.to(tl.int64) * qkv_row + head * DIM + column
    first = tl.load(at, mask=given, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=given, other=0.0).to(tl.float32)

    turned = head < HEADS + KV_HEADS
    x, y = first, second
    if NORMED:
        scale = tl.rsqrt((tl.sum(x * x, axis=1) + tl.sum(y * y, axis=1)) / DIM + EPS)[:, None]
        of_q = (head < HEADS) & (column < HALF)
        of_k = (head >= HEADS) & turned & (column < HALF)
        weight = tl.load(q_norm_ptr + column, mask=of_q, other=0.0) + tl.load(k_norm_ptr + column, mask=of_k, other=0.0)
        x = (x * scale).to(q_ptr.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
        weight = tl.load(q_norm_ptr + HALF + column, mask=of_q, other=0.0) + tl.load(
            k_norm_ptr + HALF + column, mask=of_k, other=0.0
        )
        y = (y * scale).to(q_ptr.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
        x, y = x.to(q_ptr.dtype.element_ty).to(tl.float32), y.to(q_ptr.dtype.element_ty).to(tl.float32)
    angle_at = row * DIM + column
    cos = tl.load(cos_ptr + angle_at, mask=column < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle_at + HALF, mask=column < HALF, other=0.0).to(tl.float32)
    first = tl.where(turned, x * cos - y * sin, first)
    second = tl.where(turned, y * cos + x * sin, second)

    q_at = q_ptr + row.to(tl.int64) * HEADS * DIM + head * DIM + column
    tl.store(q_at, first, mask=inside & (head < HEADS))
    tl.store(q_at + HALF, second, mask=inside & (head < HEADS))
    position = tl.where(live, tl.load(extent_ptr) + row, 0)
    slot = tl.load(table_ptr + position // PAGE).to(tl.int64) * PAGE + position % PAGE
    k_at = keys_ptr + slot * key_slot + (head - HEADS) * DIM + column
    is_k = given & (head >= HEADS) & turned
    tl.store(k_at, first, mask=is_k)
    tl.store(k_at + HALF, second, mask=is_k)
    v_at = values_ptr + slot * value_slot + (head - HEADS - KV_HEADS) * DIM + column
    tl.store(v_at, first, mask=given & (head >= HEADS + KV_HEADS))
    tl.store(v_at + HALF, second, mask=given & (head >= HEADS + KV_HEADS))


def config(arch: int, head_dim: int) -> tuple[int, int]:
    """(heads a program, warps): 512 pairs of elements for 4 warps, on every architecture."""
    return max(1, 512 // pow2(head_dim // 2)), 4


def floor(rows: int, heads: int, kv_heads: int, head_dim: int, element_bytes: int) -> Floor:
    """Reads the projection and both tables, writes queries, keys and values; 4 operations an element normed, 3 turned."""
    elements = rows * (heads + 2 * kv_heads) * head_dim
    return Floor((2 * elements + 2 * rows * head_dim) * element_bytes, 7 * elements)


def launch(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor],
    page_table: Tensor,
    extent: Tensor,
    keys: Tensor,
    values: Tensor,
    q: Tensor,
    page_size: int,
    gpu: Gpu,
) -> Launch:
    """As in `kv_store`; q [rows, heads, head_dim] contiguous, keys and values contiguous within a slot."""
    rows, all_heads, dim = qkv.shape
    kv_heads = keys.shape[1]
    require(dim % 2 == 0, "qkv", "of an even head_dim", dim)
    require(qkv.stride()[1:] == (dim, 1), "qkv", "contiguous within a row", f"strided {qkv.stride()}")
    require(
        keys.shape == values.shape and keys.shape[2] == dim, "keys and values", f"of head_dim {dim}", tuple(keys.shape)
    )
    for name, cache in (("keys", keys), ("values", values)):
        require(cache.stride()[1:] == (dim, 1), name, "contiguous within a slot", f"strided {cache.stride()}")
    for name, table in (("cos", tables[0]), ("signed_sin", tables[1])):
        require(
            table.numel() == rows * dim and table.is_contiguous(),
            name,
            f"contiguous [{rows}, 1, {dim}]",
            tuple(table.shape),
        )
    for name, tensor in (("page_table", page_table), ("extent", extent)):
        require(tensor.dtype is torch.int32 and tensor.is_contiguous(), name, "contiguous int32", tensor.dtype)
    tile, warps = config(gpu.arch, dim)
    arguments: dict[str, Argument] = {
        "qkv_ptr": qkv, "q_norm_ptr": norms and norms[0], "k_norm_ptr": norms and norms[1], "cos_ptr": tables[0], "sin_ptr": tables[1],
        "table_ptr": page_table, "extent_ptr": extent, "keys_ptr": keys, "values_ptr": values, "q_ptr": q,
        "qkv_row": qkv.stride(0), "key_slot": keys.stride(0), "value_slot": values.stride(0),
        "EPS": eps, "HEADS": all_heads - 2 * kv_heads, "KV_HEADS": kv_heads, "DIM": dim, "HALF": dim // 2,
        "COLUMNS": pow2(dim // 2), "TILE": tile, "PAGE": page_size, "NORMED": norms is not None,
    }  # fmt: skip
    return Launch(kv_store_kernel, (rows, cdiv(all_heads, tile)), arguments, warps)


def cases(arch: int) -> Iterator[Case]:
    """Qwen3, Llama and SmolLM2 heads, and a drafter's context, which has no queries; pages are address arithmetic only."""
    kinds = ((32, 8, 128, 16, True), (32, 8, 128, 1, False), (9, 3, 64, 16, False), (0, 8, 128, 16, True))
    for heads, kv_heads, dim, page, normed in kinds:
        kv = torch.empty(4096, kv_heads, dim, dtype=torch.bfloat16, device="meta")
        qkv = torch.empty(65, heads + 2 * kv_heads, dim, dtype=torch.bfloat16, device="meta")
        tables = (torch.empty(65, 1, dim, dtype=torch.bfloat16, device="meta"),) * 2
        norms = (kv[0, 0], kv[0, 0]) if normed else None
        pages = torch.empty(4096, dtype=torch.int32, device="meta")
        ready = launch(qkv, norms, 1e-6, tables, pages, pages, kv, kv, qkv[:, :heads], page, Gpu(arch, 1))
        yield f"heads={heads}+{kv_heads} dim={dim} page={page} normed={int(normed)}", ready
