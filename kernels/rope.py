"""Rotary position embedding, rotate-half form over the whole head (Su et al., RoFormer), with linear and Llama 3 scaling.

y = x * cos + swap_halves(x) * signed_sin, angles = position * frequencies in float32. A node's position is the context
length plus its depth, never its index. On a GPU the arithmetic is float32 with one rounding at the end; in torch each
product is rounded to x's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Launch, cdiv, jit, on_triton, pow2, require, tl


def rope_frequencies(
    head_dim: int,
    theta: float,
    *,
    kind: str = "default",
    factor: float = 1.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original_max_positions: int = 8192,
) -> Tensor:
    """Radians a position turns each pair of dimensions, float32 [head_dim / 2].

    "linear" divides all by `factor`. "llama3" divides those whose wavelength exceeds
    original_max_positions / low_freq_factor, keeps those below original_max_positions / high_freq_factor, and
    interpolates in between.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim)
    if kind == "linear":
        return frequencies / factor
    if kind == "llama3":
        turns = original_max_positions * frequencies / (2 * math.pi)  # full turns over the original context
        keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
        return keep * frequencies + (1 - keep) * frequencies / factor
    return frequencies


def rope_tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """positions int64 [tokens] -> cos and signed sin, each [tokens, 1, head_dim]: sin is negative in the first half."""
    if not on_triton(positions):
        return tables_reference(positions, frequencies, dtype)
    cos = torch.empty(len(positions), 1, 2 * len(frequencies), dtype=dtype, device=positions.device)
    sin = torch.empty_like(cos)
    tables_launch(positions, frequencies, cos, sin).run()
    return cos, sin


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] turned by its row's angles: x * cos + swap_halves(x) * signed_sin."""
    if not on_triton(x):
        return reference(x, cos, signed_sin)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch(x if x.stride(-1) == 1 else x.contiguous(), cos, signed_sin, out).run()
    return out


def tables_reference(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`rope_tables` in torch."""
    angles = positions.to(torch.float32)[:, None] * frequencies  # [tokens, head_dim / 2]
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def reference(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """`apply_rope` in torch."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)


@jit(varying=("tokens",))
def rope_tables_kernel(
    positions_ptr: tl.tensor,
    frequencies_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    tokens: tl.tensor,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < tokens) & (column < HALF)
    position = tl.load(positions_ptr + row, mask=row < tokens, other=0).to(tl.float32)
    angle = position * tl.load(frequencies_ptr + column, mask=column < HALF, other=0.0)
    cos, sin = tl.cos(angle), tl.sin(angle)
    at = row * (2 * HALF) + column
    tl.store(cos_ptr + at, cos, mask=inside)
    tl.store(cos_ptr + at + HALF, cos, mask=inside)
    tl.store(sin_ptr + at, -sin, mask=inside)
    tl.store(sin_ptr + at + HALF, sin, mask=inside)


@jit(varying=("rows", "heads"))
def rope_kernel(
    x_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    heads: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    token, head = row // heads, row % heads
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < HALF)
    x_at = token.to(tl.int64) * token_stride + head * head_stride + column
    table_at = token * (2 * HALF) + column
    first = tl.load(x_ptr + x_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + x_at + HALF, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + table_at, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + table_at + HALF, mask=inside, other=0.0).to(tl.float32)
    out_at = row.to(tl.int64) * (2 * HALF) + column
    tl.store(out_ptr + out_at, first * cos - second * sin, mask=inside)
    tl.store(out_ptr + out_at + HALF, second * cos + first * sin, mask=inside)


def config(arch: int, head_dim: int) -> tuple[int, int]:
    """(rows a program, warps): about 1,024 pairs of elements for 4 warps, on every architecture."""
    return max(1, 1024 // pow2(head_dim // 2)), 4


def floor(tokens: int, heads: int, head_dim: int, element_bytes: int) -> Floor:
    """Reads and writes x, reads both tables once; two products and an addition an element."""
    return Floor(2 * tokens * (heads + 1) * head_dim * element_bytes, 3 * tokens * heads * head_dim)


def tables_launch(positions: Tensor, frequencies: Tensor, cos: Tensor, sin: Tensor) -> Launch:
    """positions [tokens], frequencies float32 [head_dim / 2], cos and sin [tokens, 1, head_dim], all contiguous."""
    tile, warps = max(1, 256 // pow2(len(frequencies))), 4  # sines of large angles take registers
    require(frequencies.dtype is torch.float32, "frequencies", "float32", frequencies.dtype)
    arguments: dict[str, Argument] = {
        "positions_ptr": positions, "frequencies_ptr": frequencies, "cos_ptr": cos, "sin_ptr": sin,
        "tokens": len(positions), "HALF": len(frequencies), "COLUMNS": pow2(len(frequencies)), "ROWS": tile,
    }  # fmt: skip
    return Launch(rope_tables_kernel, (cdiv(len(positions), tile),), arguments, warps)


def launch(x: Tensor, cos: Tensor, signed_sin: Tensor, out: Tensor) -> Launch:
    """x [tokens, heads, head_dim] contiguous within a head, tables [tokens, 1, head_dim] and out contiguous."""
    tokens, heads, head_dim = x.shape
    require(head_dim % 2 == 0, "x", "of an even head_dim", head_dim)
    for name, table in (("cos", cos), ("signed_sin", signed_sin)):
        require(table.numel() == tokens * head_dim, name, f"shaped ({tokens}, 1, {head_dim})", tuple(table.shape))
        require(table.is_contiguous(), name, "contiguous", f"strided {table.stride()}")
    tile, warps = config(0, head_dim)
    arguments: dict[str, Argument] = {
        "x_ptr": x, "cos_ptr": cos, "sin_ptr": signed_sin, "out_ptr": out, "rows": tokens * heads, "heads": heads,
        "token_stride": x.stride(0), "head_stride": x.stride(1),
        "HALF": head_dim // 2, "COLUMNS": pow2(head_dim // 2), "ROWS": tile,
    }  # fmt: skip
    return Launch(rope_kernel, (cdiv(tokens * heads, tile),), arguments, warps)


def cases(arch: int) -> Iterator[Case]:
    """The head sizes of the models served, 64 being the rotary part of an MLA head as well."""
    for head_dim in (64, 128, 256):
        x = torch.empty(64, 40, head_dim, dtype=torch.bfloat16, device="meta")
        cos = x[:, :1].contiguous()
        frequencies = torch.empty(head_dim // 2, device="meta")
        positions = torch.empty(64, dtype=torch.int64, device="meta")
        yield f"tables head_dim={head_dim}", tables_launch(positions, frequencies, cos, cos)
        yield f"head_dim={head_dim}", launch(x, cos, cos, x)
