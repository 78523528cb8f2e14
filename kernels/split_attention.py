"""What the attention kernels share: keys split over programs, pages, ancestor bits, the running softmax, and the merge.

A split attends to a run of key tiles and leaves (accumulator, peak, total) in float32, in base-2 logarithms: the answer
is sum_s 2^(peak_s - peak) acc_s / sum_s 2^(peak_s - peak) total_s. An empty split leaves total 0 and weighs nothing.
Few query rows against one long context is the shape of a verify pass, so splitting is always on (flash decoding, 2023).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Gpu, Launch, cdiv, jit, pow2, tl

MOST_SPLITS = 64


def split_count(gpu: Gpu, blocks: int, tiles: int, *, per_sm: int, partial_rows: int, length: int) -> int:
    """Splits for a grid of `blocks` programs over `tiles` key tiles, a power of two.

    The fewest whose last wave is at least 85 % as full as the best choice's, with 4 tiles or more a split, and partial
    results (`partial_rows` float32 rows a split and key head) of at most an eighth of the 16-bit keys and values of
    `length` positions. `per_sm`: programs a multiprocessor holds.
    """
    slots = gpu.sms * per_sm
    choices = [1]
    while (more := 2 * choices[-1]) <= min(MOST_SPLITS, tiles // 4) and more * partial_rows * 4 * 8 <= length * 4:
        choices.append(more)
    fill = [blocks * s / (cdiv(blocks * s, slots) * slots) for s in choices]
    return next(s for s, full in zip(choices, fill, strict=True) if full >= 0.85 * max(fill))


@jit()
def tile_slots(
    table_ptr: tl.tensor,
    first: tl.tensor,
    offset: tl.tensor,
    total: tl.tensor,
    PAGE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """Slots of positions first + offset. WHOLE: tiles never straddle pages, so one table entry serves the tile."""
    if WHOLE:
        page = tl.load(table_ptr + first // PAGE).to(tl.int64)
        return page * PAGE + first % PAGE + offset
    position = first + offset
    page = tl.load(table_ptr + position // PAGE, mask=position < total, other=0).to(tl.int64)
    return page * PAGE + position % PAGE


@jit()
def node_sees(
    bits_ptr: tl.tensor,
    node: tl.tensor,
    key_node: tl.tensor,
    asked: tl.tensor,
    WORDS: tl.constexpr,
) -> tl.tensor:
    """Whether `node` [rows, 1] sees tree node `key_node` [1, keys]: bit key_node of its ancestor words. `asked` masks."""
    word = tl.load(bits_ptr + node * WORDS + key_node // 32, mask=asked, other=0)
    return ((word >> (key_node % 32)) & 1) == 1


@jit()
def softmax_step(
    scores: tl.tensor,
    visible: tl.tensor,
    values: tl.tensor,
    acc: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Take one tile of scores (base 2) and values into (acc, peak, total). A wholly masked tile changes nothing."""
    if MASKED:
        scores = tl.where(visible, scores, -1.0e30)
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    weight = tl.exp2(scores - new_peak[:, None])
    if MASKED:
        weight = tl.where(visible, weight, 0.0)
    kept = tl.exp2(peak - new_peak)
    total = total * kept + tl.sum(weight, axis=1)
    acc = acc * kept[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
    return acc, new_peak, total


@jit(varying=("rows", "splits"))
def attention_merge_kernel(
    partial_ptr: tl.tensor,
    peak_ptr: tl.tensor,
    total_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    split = tl.arange(0, SPLITS)[None, :]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows) & (split < splits)
    at = split * rows + row
    total = tl.load(total_ptr + at, mask=inside, other=0.0)
    peak = tl.where(total > 0, tl.load(peak_ptr + at, mask=inside, other=-1.0e30), -1.0e30)
    weight = tl.where(total > 0, tl.exp2(peak - tl.max(peak, axis=1)[:, None]), 0.0)
    whole = tl.sum(weight * total, axis=1)
    live = (inside & (total > 0))[:, :, None] & (column < DIM)[None, None, :]
    partial = tl.load(partial_ptr + at.to(tl.int64)[:, :, None] * DIM + column[None, None, :], mask=live, other=0.0)
    answer = tl.sum(weight[:, :, None] * partial, axis=1) / tl.where(whole > 0, whole, 1.0)[:, None]
    written = (row < rows) & (column < DIM)[None, :]
    tl.store(out_ptr + row.to(tl.int64) * DIM + column[None, :], answer, mask=written)


def floor(splits: int, rows: int, dim: int, element_bytes: int) -> Floor:
    """The merge alone: reads all partials and their statistics once, writes the answer."""
    return Floor(rows * (splits * (dim + 2) * 4 + dim * element_bytes), 2 * splits * rows * dim)


def merge_launch(partial: Tensor, peaks: Tensor, totals: Tensor, out: Tensor, *, rows_a_program: int = 1) -> Launch:
    """partial float32 [splits, rows, dim], peaks and totals float32 [splits, rows] -> out [rows, dim], all contiguous."""
    splits, rows, dim = partial.shape
    columns = min(pow2(dim), 128)
    arguments: dict[str, Argument] = {
        "partial_ptr": partial, "peak_ptr": peaks, "total_ptr": totals, "out_ptr": out, "rows": rows, "splits": splits,
        "DIM": dim, "COLUMNS": columns, "SPLITS": pow2(splits), "ROWS": rows_a_program,
    }  # fmt: skip
    grid = (cdiv(rows, rows_a_program), cdiv(dim, columns))
    return Launch(attention_merge_kernel, grid, arguments, warps=4 if splits > 8 else 2, wide=dim >= 128)


def cases(arch: int) -> Iterator[Case]:
    """Few and many splits for heads of 128, the most for the other sizes."""
    for splits, dim in ((2, 128), (16, 128), (64, 128), (64, 64), (64, 512)):
        partial = torch.empty(splits, 512, dim, device="meta")
        peaks = torch.empty(splits, 512, device="meta")
        out = torch.empty(512, dim, dtype=torch.bfloat16, device="meta")
        yield f"splits={splits} dim={dim}", merge_launch(partial, peaks, peaks, out)
