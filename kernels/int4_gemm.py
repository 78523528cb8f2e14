"""y = x W^T with W packed to four bits, one scale to 32 inputs (compressed-tensors "pack-quantized", symmetric).

W[n, k] = (nibble - 8) * scale[n, k // 32]; nibble i of word w is input 8 w + i, lowest bits first. Words are loaded once
and unpacked in registers by shifts. Few rows against a matrix that is read once: inputs are split over programs until the
GPU is full, and a second launch sums the parts in float32, in order. Weights are rounded to x's dtype before the product.
"""

from __future__ import annotations

from collections.abc import Iterator

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

PER_WORD, GROUP = 8, 32


def int4_gemm(x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """x [rows, inputs], words int32 [outputs, inputs / 8], scales [outputs, inputs / 32] -> [rows, outputs] in x's dtype.

    Raises ValueError that names the argument.
    """
    if not on_triton(x):
        return reference(x, words, scales)
    out = torch.empty(len(x), len(words), dtype=x.dtype, device=x.device)
    for launch in launches(x, words, scales, out, gpu_of(x)):
        launch.run()
    return out


def reference(x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """`int4_gemm` in torch."""
    return x @ unpack(words, scales, x.dtype).T


def unpack(words: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """words int32 [..., outputs, inputs / 8], scales [..., outputs, inputs / 32] -> weights [..., outputs, inputs]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    steps = ((words.unsqueeze(-1) >> shifts) & 15) - 8  # [..., outputs, inputs / 8, 8]
    wide = torch.promote_types(dtype, torch.float32)
    return (steps.flatten(-2).unflatten(-1, (-1, GROUP)) * scales.to(wide).unsqueeze(-1)).flatten(-2).to(dtype)


@jit()
def int4_tile(
    words: tl.tensor,
    scales: tl.tensor,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
) -> tl.tensor:
    """words int32 [OUTPUTS, INPUTS / 8], scales [OUTPUTS, INPUTS / 32] -> float32 weights [OUTPUTS, INPUTS]."""
    shifts = tl.arange(0, 8)[None, None, :] * 4
    steps = ((words[:, :, None] >> shifts) & 15) - 8
    grouped = tl.reshape(steps.to(tl.float32), (OUTPUTS, INPUTS // 32, 32)) * scales.to(tl.float32)[:, :, None]
    return tl.reshape(grouped, (OUTPUTS, INPUTS))


@jit(varying=("rows",))
def int4_gemm_kernel(
    x_ptr: tl.tensor,
    words_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    x_row: tl.tensor,
    word_row: tl.tensor,
    scale_row: tl.tensor,
    steps: tl.tensor,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)[:, None]
    split = tl.program_id(2)
    acc = tl.zeros([ROWS, OUTPUTS], dtype=tl.float32)
    for step in range(split * steps, (split + 1) * steps):
        column = step * INPUTS + tl.arange(0, INPUTS)[None, :]
        word = step * (INPUTS // 8) + tl.arange(0, INPUTS // 8)[None, :]
        group = step * (INPUTS // 32) + tl.arange(0, INPUTS // 32)[None, :]
        x = tl.load(x_ptr + row.to(tl.int64) * x_row + column, mask=(row < rows) & (column < inputs), other=0.0)
        words = tl.load(
            words_ptr + output.to(tl.int64) * word_row + word, mask=(output < outputs) & (word < inputs // 8), other=0
        )
        scales = tl.load(
            scales_ptr + output.to(tl.int64) * scale_row + group,
            mask=(output < outputs) & (group < inputs // 32),
            other=0.0,
        )
        weights = int4_tile(words, scales, OUTPUTS, INPUTS).to(x.dtype)
        if UPCAST:
            x, weights = x.to(tl.float32), weights.to(tl.float32)
        acc += tl.dot(x, tl.trans(weights), input_precision="ieee")
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)[None, :]
    at = (split.to(tl.int64) * rows + row) * outputs + column
    tl.store(out_ptr + at, acc, mask=(row < rows) & (column < outputs))


@jit(varying=("size", "parts"))
def sum_parts_kernel(
    parts_ptr: tl.tensor,
    out_ptr: tl.tensor,
    size: tl.tensor,
    parts: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for part in range(0, parts):
        acc += tl.load(parts_ptr + part * size.to(tl.int64) + at, mask=at < size, other=0.0)
    tl.store(out_ptr + at, acc, mask=at < size)


def config(arch: int, rows: int) -> tuple[int, int, int, int, int]:
    """(rows, outputs, inputs of a tile, warps, stages), as compiled without spills."""
    return (16, 64, 128, 4, 3) if rows <= 16 else (32, 64, 128, 4, 3) if rows <= 32 else (64, 128, 64, 8, 3)


def splits(gpu: Gpu, rows: int, outputs: int, inputs: int) -> int:
    """Parts the inputs are split into: a power of two that about fills the GPU, each part 4 tiles or more."""
    tile_rows, tile_outputs, tile_inputs, _, _ = config(gpu.arch, rows)
    blocks, parts = cdiv(rows, tile_rows) * cdiv(outputs, tile_outputs), 1
    while blocks * parts * 2 <= 2 * gpu.sms and cdiv(inputs, tile_inputs) >= 8 * parts:
        parts *= 2
    return parts


def floor(rows: int, outputs: int, inputs: int, element_bytes: int) -> Floor:
    """Words and 16-bit scales read once, 0.5625 bytes a weight; x read, y written."""
    weights = outputs * inputs // 2 + outputs * inputs // GROUP * 2
    return Floor(weights + rows * (inputs + outputs) * element_bytes, 2 * rows * outputs * inputs)


def launches(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    out: Tensor,
    gpu: Gpu,
    tile: tuple[int, int, int, int, int] | None = None,
    parts: int | None = None,
) -> tuple[Launch, ...]:
    """The product and, where inputs are split, the sum of its parts. `tile` and `parts` replace the choices made here."""
    rows, inputs = x.shape
    outputs = len(words)
    require(inputs % GROUP == 0, "x", f"of a multiple of {GROUP} inputs", inputs)
    require(
        words.shape == (outputs, inputs // PER_WORD) and words.dtype is torch.int32,
        "words",
        f"int32 [{outputs}, {inputs // PER_WORD}]",
        tuple(words.shape),
    )
    require(
        scales.shape == (outputs, inputs // GROUP), "scales", f"[{outputs}, {inputs // GROUP}]", tuple(scales.shape)
    )
    require(
        all(t.stride(1) == 1 for t in (x, words, scales)), "x, words and scales", "contiguous within a row", "strided"
    )
    tile_rows, tile_outputs, tile_inputs, warps, stages = tile or config(gpu.arch, rows)
    parts = parts or splits(gpu, rows, outputs, inputs)
    partial = torch.empty(parts, rows, outputs, device=x.device) if parts > 1 else out
    arguments: dict[str, Argument] = {
        "x_ptr": x, "words_ptr": words, "scales_ptr": scales, "out_ptr": partial, "rows": rows, "outputs": outputs, "inputs": inputs,
        "x_row": x.stride(0), "word_row": words.stride(0), "scale_row": scales.stride(0), "steps": cdiv(cdiv(inputs, tile_inputs), parts),
        "ROWS": tile_rows, "OUTPUTS": tile_outputs, "INPUTS": tile_inputs, "UPCAST": INTERPRETED,
    }  # fmt: skip
    product = Launch(
        int4_gemm_kernel,
        (cdiv(rows, tile_rows), cdiv(outputs, tile_outputs), parts),
        arguments,
        warps,
        stages,
        wide=True,
    )
    return (product,) if parts == 1 else (product, sum_launch(partial, out))


def sum_launch(parts: Tensor, out: Tensor) -> Launch:
    """parts float32 [parts, ...] summed in order -> out [...], both contiguous."""
    arguments: dict[str, Argument] = {
        "parts_ptr": parts, "out_ptr": out, "size": out.numel(), "parts": len(parts), "BLOCK": min(pow2(out.numel()), 1024)
    }  # fmt: skip
    return Launch(sum_parts_kernel, (cdiv(out.numel(), 1024),), arguments)


def cases(arch: int) -> Iterator[Case]:
    """Every tile, with Kimi K2's expert matrices, and the sum of parts."""
    for rows, outputs, inputs in ((1, 4096, 7168), (32, 4096, 7168), (64, 7168, 2048)):
        x = torch.empty(rows, inputs, dtype=torch.bfloat16, device="meta")
        words = torch.empty(outputs, inputs // 8, dtype=torch.int32, device="meta")
        scales = torch.empty(outputs, inputs // 32, dtype=torch.bfloat16, device="meta")
        out = torch.empty(rows, outputs, dtype=torch.bfloat16, device="meta")
        tile = "x".join(map(str, config(arch, rows)[:3]))
        product, *sums = launches(x, words, scales, out, Gpu(arch, 132), parts=4)
        yield f"rows={rows} {outputs}x{inputs} {tile} w{product.warps} s{product.stages}", product
        if rows == 1:
            yield "parts=4", sums[0]
