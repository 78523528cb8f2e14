"""RMS norm: y = w * x / sqrt(mean(x^2) + eps) over the last dimension, alone or after a residual addition.

Rounding order of the Llama family: the statistics and the product with them in float32, one rounding to x's dtype,
then the weight. With a residual, x + delta is rounded to x's dtype first, as the stored stream is (Zhang & Sennrich 2019).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Gpu, Launch, cdiv, gpu_of, jit, on_triton, pow2, require, tl


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., size], weight [size] -> x's shape and dtype."""
    if not on_triton(x, weight):
        return reference(x, weight, eps)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch(x.reshape(-1, x.shape[-1]), None, weight, eps, out.view(-1, x.shape[-1]), gpu_of(x)).run()
    return out


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x += delta in place, then its norm: x (contiguous) and delta [..., size], weight [size] -> the norm of the new x."""
    if not on_triton(x, weight):
        return reference(x.add_(delta), weight, eps)
    require(x.is_contiguous(), "x", "contiguous, being changed in place", f"strided {x.stride()}")
    require(delta.shape == x.shape, "delta", f"shaped {tuple(x.shape)} like x", tuple(delta.shape))
    out = torch.empty_like(x)
    rows = [tensor.reshape(-1, x.shape[-1]) for tensor in (x, delta, out)]
    launch(rows[0], rows[1], weight, eps, rows[2], gpu_of(x)).run()
    return out


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in torch."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


@jit(varying=("rows",))
def rms_norm_kernel(
    x_ptr: tl.tensor,
    delta_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    x_stride: tl.tensor,
    delta_stride: tl.tensor,
    EPS: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < SIZE)
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ptr + row * delta_stride + column, mask=inside, other=0.0).to(tl.float32)
        stored = x.to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * x_stride + column, stored, mask=inside)
        x = stored.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / SIZE + EPS)
    rounded = (x * scale[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < SIZE, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + column, rounded * weight, mask=inside)


def config(arch: int, size: int) -> tuple[int, int]:
    """(rows a program, warps) for rows of `size`; the same on every architecture. 16 bytes a thread where rows are long."""
    columns = pow2(size)
    return max(1, 1024 // columns), min(max(columns // 512, 2), 16)


def floor(rows: int, size: int, element_bytes: int, *, add: bool) -> Floor:
    """Reads x and the weight, writes y; with a residual also reads delta and writes x."""
    return Floor(((4 if add else 2) * rows + 1) * size * element_bytes, (5 if add else 4) * rows * size)


def launch(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor, gpu: Gpu) -> Launch:
    """x, delta, out [rows, size], out contiguous, the others contiguous within a row."""
    rows, size = x.shape
    require(weight.shape == (size,), "weight", f"shaped ({size},)", tuple(weight.shape))
    require(size <= 16384, "x", "at most 16384 wide", size)
    tile, warps = config(gpu.arch, size)
    arguments: dict[str, Argument] = {
        "x_ptr": x, "delta_ptr": delta, "weight_ptr": weight, "out_ptr": out, "rows": rows,
        "x_stride": x.stride(0), "delta_stride": 0 if delta is None else delta.stride(0),
        "EPS": eps, "SIZE": size, "COLUMNS": pow2(size), "ROWS": tile, "ADD": delta is not None,
    }  # fmt: skip
    return Launch(rms_norm_kernel, (cdiv(rows, tile),), arguments, warps, wide=size >= 1024)


def cases(arch: int) -> Iterator[Case]:
    """Head norms and the hidden sizes of the models served, with and without a residual."""
    for size, add in ((64, False), (128, False), (576, True), (2048, True), (4096, False), (4096, True), (7168, True)):
        x = torch.empty(64, size, dtype=torch.bfloat16, device="meta")
        yield f"size={size} add={int(add)}", launch(x, x if add else None, x[0], 1e-6, x, Gpu(arch, 1))
