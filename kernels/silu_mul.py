"""SwiGLU's elementwise half: silu(gate) * up (Shazeer 2020). silu is rounded to the dtype before the product, as torch does."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from kernels.launch import Argument, Case, Floor, Launch, cdiv, jit, on_triton, require, tl


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [..., 2 * inner], gate first -> [..., inner]."""
    if not on_triton(gate_up):
        return reference(gate_up)
    rows = gate_up.reshape(-1, gate_up.shape[-1])
    out = gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    launch(rows, out.view(len(rows), -1)).run()
    return out


def reference(gate_up: Tensor) -> Tensor:
    """`silu_mul` in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


@jit()
def silu_mul_kernel(
    gate_up_ptr: tl.tensor,
    out_ptr: tl.tensor,
    inner: tl.tensor,
    row_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inner
    gate = tl.load(gate_up_ptr + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + inner + column, mask=inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * inner + column, silu * up, mask=inside)


def config(arch: int, inner: int) -> tuple[int, int]:
    """(columns a program, warps): 16 bytes a thread of both halves, many programs a row so that few rows fill the GPU."""
    return (1024, 4) if inner > 512 else (256, 1)


def floor(rows: int, inner: int, element_bytes: int) -> Floor:
    """Reads both halves, writes one; an exponential counts as one operation."""
    return Floor(3 * rows * inner * element_bytes, 5 * rows * inner)


def launch(gate_up: Tensor, out: Tensor) -> Launch:
    """gate_up [rows, 2 * inner] contiguous within a row, out [rows, inner] contiguous."""
    rows, width = gate_up.shape
    require(width % 2 == 0, "gate_up", "of even width", width)
    require(gate_up.stride(1) == 1, "gate_up", "contiguous within a row", f"strided {gate_up.stride()}")
    block, warps = config(0, width // 2)
    arguments: dict[str, Argument] = {
        "gate_up_ptr": gate_up, "out_ptr": out, "inner": width // 2, "row_stride": gate_up.stride(0), "BLOCK": block
    }  # fmt: skip
    return Launch(silu_mul_kernel, (rows, cdiv(width // 2, block)), arguments, warps, wide=width % 16 == 0)


def cases(arch: int) -> Iterator[Case]:
    """Both block sizes."""
    for inner in (512, 12288):
        gate_up = torch.empty(64, 2 * inner, dtype=torch.bfloat16, device="meta")
        yield f"inner={inner}", launch(gate_up, gate_up[:, :inner])
