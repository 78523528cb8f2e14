"""Keep the cache rows of an accepted path: node path[i], written at position length + path[i], moves to length + i.

Rows only move down, but in parallel a row may be written before another program has read it: each program reads all rows
of its columns before it writes any. Leading nodes already in place are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Launch, cdiv, jit, on_triton, pow2, require, tl


def path_commit(
    caches: tuple[Tensor, ...], page_table: Tensor, extent: Tensor, path: Tensor, *, page_size: int
) -> None:
    """caches: each [layers, slots, ...], changed in place; path int32 [most], node ids from the root, -1 beyond its end.

    page_table int32 [pages]. extent int32: its first entry is the context length. Raises ValueError that names the argument.
    """
    if not on_triton(path):
        reference(caches, page_table, extent, path, page_size)
        return
    for cache in caches:
        launch(cache, page_table, extent, path, page_size).run()


def reference(caches: tuple[Tensor, ...], page_table: Tensor, extent: Tensor, path: Tensor, page_size: int) -> None:
    """`path_commit` in torch."""
    start = int(extent[0])
    kept = path[path >= 0].long()
    sources, targets = (
        page_table[positions // page_size].long() * page_size + positions % page_size
        for positions in (start + kept, start + torch.arange(len(kept), device=path.device))
    )
    for cache in caches:
        cache[:, targets] = cache[:, sources]


@jit(varying=("most", "width"))
def path_commit_kernel(
    cache_ptr: tl.tensor,
    table_ptr: tl.tensor,
    extent_ptr: tl.tensor,
    path_ptr: tl.tensor,
    most: tl.tensor,
    width: tl.tensor,
    layer_stride: tl.tensor,
    slot_stride: tl.tensor,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    node = tl.load(path_ptr + row, mask=row < most, other=-1)
    moved = node > row
    length = tl.load(extent_ptr)
    source, target = length + node, length + row
    from_slot = tl.load(table_ptr + source // PAGE, mask=moved, other=0).to(tl.int64) * PAGE + source % PAGE
    to_slot = tl.load(table_ptr + target // PAGE, mask=moved, other=0).to(tl.int64) * PAGE + target % PAGE
    base = cache_ptr + tl.program_id(0).to(tl.int64) * layer_stride + column
    held = moved & (column < width)
    kept = tl.load(base + from_slot * slot_stride, mask=held)
    tl.debug_barrier()
    tl.store(base + to_slot * slot_stride, kept, mask=held)


def config(arch: int, most: int) -> tuple[int, int]:
    """(columns a program, warps): 2,048 elements for 4 warps, on every architecture."""
    return max(16, 2048 // pow2(most)), 4


def floor(layers: int, moved: int, width: int, element_bytes: int) -> Floor:
    """Reads and writes each moved row of `width` elements once a layer."""
    return Floor(2 * layers * moved * width * element_bytes, 0)


def launch(cache: Tensor, page_table: Tensor, extent: Tensor, path: Tensor, page_size: int) -> Launch:
    """One cache; rows of a slot have to be contiguous."""
    layers, width = len(cache), cache[0, 0].numel()
    require(cache[0, 0].is_contiguous(), "caches", "contiguous within a slot", f"strided {cache.stride()}")
    for name, tensor in (("page_table", page_table), ("extent", extent), ("path", path)):
        require(tensor.dtype is torch.int32 and tensor.is_contiguous(), name, "contiguous int32", tensor.dtype)
    columns, warps = config(0, len(path))
    arguments: dict[str, Argument] = {
        "cache_ptr": cache, "table_ptr": page_table, "extent_ptr": extent, "path_ptr": path, "most": len(path), "width": width,
        "layer_stride": cache.stride(0), "slot_stride": cache.stride(1),
        "PAGE": page_size, "ROWS": pow2(len(path)), "COLUMNS": columns,
    }  # fmt: skip
    return Launch(path_commit_kernel, (layers, cdiv(width, columns)), arguments, warps)


def cases(arch: int) -> Iterator[Case]:
    """Blocks of 8 and 16, paths as deep as a lookup's, keys of eight heads and a latent row."""
    for most, page, inner in ((16, 16, (8, 128)), (8, 1, (8, 128)), (33, 16, (8, 128)), (16, 64, (576,))):
        cache = torch.empty(36, 4096, *inner, dtype=torch.bfloat16, device="meta")
        table = torch.empty(most, dtype=torch.int32, device="meta")
        yield f"most={most} page={page} width={cache[0, 0].numel()}", launch(cache, table, table, table, page)
