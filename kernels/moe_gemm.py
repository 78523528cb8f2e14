"""The experts of a mixture: a product grouped by expert, dense or packed to four bits, and the weighted sum over a token's.

y[p] = x[p // share] W[expert of p]^T for the pairs p of `moe_align`'s blocks: each block is rows of one expert, so an
expert's matrix is read once however its tokens lie. Few tokens make blocks mostly padding: the weights' bytes are the cost.
out[t] = sum over ranks r of weight[t, r] * y[t * per_token + r], in float32, in rank order: the same at every batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import int4_gemm
from kernels.int4_gemm import GROUP, PER_WORD, int4_tile
from kernels.launch import INTERPRETED, Argument, Case, Floor, Launch, cdiv, jit, on_triton, pow2, require, tl
from kernels.moe_align import Blocks, moe_align
from kernels.silu_mul import silu_mul


@dataclass(frozen=True)
class ExpertWeights:
    """Every expert's matrix. Dense: `values` [experts, outputs, inputs], `scales` None.

    Packed: `values` int32 words [experts, outputs, inputs / 8], `scales` [experts, outputs, inputs / 32], as in `int4_gemm`.
    """

    values: Tensor
    scales: Tensor | None = None

    def dense(self, dtype: torch.dtype) -> Tensor:
        """[experts, outputs, inputs]"""
        return self.values.to(dtype) if self.scales is None else int4_gemm.unpack(self.values, self.scales, dtype)


def expert_mlp(x: Tensor, picks: Tensor, weights: Tensor, gate_up: ExpertWeights, down: ExpertWeights) -> Tensor:
    """Weighted sum of each token's experts, SwiGLU each: x [tokens, hidden] -> [tokens, hidden].

    picks int32 and weights float32 [tokens, per_token]; gate_up [experts, 2 * inner, hidden], down [experts, hidden, inner].
    """
    tokens, per_token = picks.shape
    experts = len(gate_up.values)
    blocks = moe_align(picks, experts, block_size(tokens * per_token, experts))
    inner = silu_mul(moe_gemm(x, gate_up, blocks, pairs=picks.numel(), share=per_token))
    return moe_combine(moe_gemm(inner, down, blocks, pairs=picks.numel(), share=1), weights)


def moe_gemm(x: Tensor, weights: ExpertWeights, blocks: Blocks, *, pairs: int, share: int) -> Tensor:
    """x [pairs / share, inputs] -> y [pairs, outputs] in x's dtype. Raises ValueError that names the argument."""
    out = torch.empty(pairs, weights.values.shape[1], dtype=x.dtype, device=x.device)
    if not on_triton(x):
        return gemm_reference(x, weights, blocks, share, out)
    launch(x, weights, blocks, share, out).run()
    return out


def moe_combine(rows: Tensor, weights: Tensor) -> Tensor:
    """rows [tokens * per_token, size], weights float32 [tokens, per_token] -> [tokens, size] in rows' dtype."""
    if not on_triton(rows):
        return combine_reference(rows, weights)
    out = torch.empty(len(weights), rows.shape[1], dtype=rows.dtype, device=rows.device)
    combine_launch(rows, weights, out).run()
    return out


def gemm_reference(x: Tensor, weights: ExpertWeights, blocks: Blocks, share: int, out: Tensor) -> Tensor:
    """`moe_gemm` in torch."""
    dense = weights.dense(x.dtype)
    for block, expert in enumerate(blocks.experts.tolist()):
        pairs = blocks.pairs[block][blocks.pairs[block] >= 0].long()
        if expert >= 0:
            out[pairs] = x[pairs // share] @ dense[expert].T
    return out


def combine_reference(rows: Tensor, weights: Tensor) -> Tensor:
    """`moe_combine` in torch."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    summed = (rows.to(wide).unflatten(0, weights.shape) * weights.to(wide).unsqueeze(-1)).sum(dim=1)
    return summed.to(rows.dtype)


@jit()
def moe_gemm_kernel(
    x_ptr: tl.tensor,
    values_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    experts_ptr: tl.tensor,
    out_ptr: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    x_row: tl.tensor,
    expert_stride: tl.tensor,
    value_row: tl.tensor,
    scale_expert: tl.tensor,
    scale_row: tl.tensor,
    SHARE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PACKED: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    expert = tl.load(experts_ptr + block).to(tl.int64)
    if expert >= 0:
        pair = tl.load(pairs_ptr + block * ROWS + tl.arange(0, ROWS))[:, None]
        source = x_ptr + (pair // SHARE).to(tl.int64) * x_row
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)[:, None]
        values = values_ptr + expert * expert_stride + output.to(tl.int64) * value_row
        acc = tl.zeros([ROWS, OUTPUTS], dtype=tl.float32)
        for step in range(0, tl.cdiv(inputs, INPUTS)):
            column = step * INPUTS + tl.arange(0, INPUTS)[None, :]
            x = tl.load(source + column, mask=(pair >= 0) & (column < inputs), other=0.0)
            if PACKED:
                word = step * (INPUTS // 8) + tl.arange(0, INPUTS // 8)[None, :]
                group = step * (INPUTS // 32) + tl.arange(0, INPUTS // 32)[None, :]
                words = tl.load(values + word, mask=(output < outputs) & (word < inputs // 8), other=0)
                at = scales_ptr + expert * scale_expert + output.to(tl.int64) * scale_row + group
                scales = tl.load(at, mask=(output < outputs) & (group < inputs // 32), other=0.0)
                weights = int4_tile(words, scales, OUTPUTS, INPUTS).to(x.dtype)
            else:
                weights = tl.load(values + column, mask=(output < outputs) & (column < inputs), other=0.0)
            if UPCAST:
                x, weights = x.to(tl.float32), weights.to(tl.float32)
            acc += tl.dot(x, tl.trans(weights), input_precision="ieee")
        column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)[None, :]
        tl.store(out_ptr + pair.to(tl.int64) * outputs + column, acc, mask=(pair >= 0) & (column < outputs))


@jit()
def moe_combine_kernel(
    rows_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    out_ptr: tl.tensor,
    size: tl.tensor,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for rank in tl.static_range(RANKS):
        row = tl.load(rows_ptr + (token * RANKS + rank) * size + column, mask=column < size, other=0.0)
        acc += row.to(tl.float32) * tl.load(weights_ptr + token * RANKS + rank)
    tl.store(out_ptr + token * size + column, acc, mask=column < size)


def block_size(pairs: int, experts: int) -> int:
    """Pairs of a block: small while experts have few tokens each."""
    return 16 if pairs <= 32 * experts else 64


def config(arch: int, block: int) -> tuple[int, int, int, int]:
    """(outputs, inputs of a tile, warps, stages) for blocks of `block` pairs, as compiled without spills."""
    return (64, 128, 4, 3) if block <= 16 else (128, 64, 8, 3)


def floor(pairs: int, taken: int, outputs: int, inputs: int, element_bytes: int, *, packed: bool) -> Floor:
    """The matrices of the `taken` experts read once, x and y once a pair."""
    matrix = outputs * inputs // 2 + outputs * inputs // GROUP * 2 if packed else outputs * inputs * element_bytes
    return Floor(taken * matrix + pairs * (inputs + outputs) * element_bytes, 2 * pairs * outputs * inputs)


def launch(
    x: Tensor,
    weights: ExpertWeights,
    blocks: Blocks,
    share: int,
    out: Tensor,
    tile: tuple[int, int, int, int] | None = None,
) -> Launch:
    """As in `moe_gemm`; out [pairs, outputs] contiguous. `tile`: (outputs, inputs, warps, stages) in place of `config`'s."""
    experts, outputs, _ = weights.values.shape
    inputs = x.shape[1]
    packed = weights.scales is not None
    wanted = (experts, outputs, inputs // PER_WORD if packed else inputs)
    require(weights.values.shape == wanted, "weights", str(list(wanted)), tuple(weights.values.shape))
    require(not packed or inputs % GROUP == 0, "x", f"of a multiple of {GROUP} inputs", inputs)
    require(x.stride(1) == 1 and weights.values.is_contiguous(), "x and weights", "contiguous within a row", "strided")
    require(len(x) * share == len(out), "x", f"of {len(out) // share} rows", len(x))
    require(blocks.block & (blocks.block - 1) == 0, "blocks", "of a power of two pairs", blocks.block)
    tile_outputs, tile_inputs, warps, stages = tile or config(0, blocks.block)
    scales = weights.scales
    arguments: dict[str, Argument] = {
        "x_ptr": x, "values_ptr": weights.values, "scales_ptr": scales, "pairs_ptr": blocks.pairs, "experts_ptr": blocks.experts,
        "out_ptr": out, "outputs": outputs, "inputs": inputs, "x_row": x.stride(0), "expert_stride": weights.values.stride(0),
        "value_row": weights.values.stride(1), "scale_expert": 0 if scales is None else scales.stride(0),
        "scale_row": 0 if scales is None else scales.stride(1), "SHARE": share, "ROWS": blocks.block, "OUTPUTS": tile_outputs,
        "INPUTS": tile_inputs, "PACKED": packed, "UPCAST": INTERPRETED,
    }  # fmt: skip
    return Launch(
        moe_gemm_kernel, (len(blocks.experts), cdiv(outputs, tile_outputs)), arguments, warps, stages, wide=True
    )


def combine_launch(rows: Tensor, weights: Tensor, out: Tensor) -> Launch:
    """rows [tokens * per_token, size], weights float32 [tokens, per_token], out [tokens, size], all contiguous."""
    tokens, per_token = weights.shape
    require(len(rows) == tokens * per_token, "rows", f"of {tokens * per_token} pairs", len(rows))
    require(rows.is_contiguous() and weights.is_contiguous(), "rows and weights", "contiguous", "strided")
    block = min(max(pow2(rows.shape[1]), 32), 1024)
    arguments: dict[str, Argument] = {
        "rows_ptr": rows, "weights_ptr": weights, "out_ptr": out, "size": rows.shape[1], "RANKS": per_token, "BLOCK": block
    }  # fmt: skip
    return Launch(moe_combine_kernel, (tokens, cdiv(rows.shape[1], block)), arguments, wide=rows.shape[1] % 8 == 0)


def cases(arch: int) -> Iterator[Case]:
    """Qwen3-30B-A3B dense and Kimi K2 packed, for a verify pass and for a prefill; the sum over experts."""
    for pairs, experts, outputs, inputs, packed in (
        (128, 128, 1536, 2048, False), (8192, 128, 1536, 2048, False), (128, 384, 4096, 7168, True), (32768, 384, 4096, 7168, True),
    ):  # fmt: skip
        block = block_size(pairs, experts)
        x = torch.empty(pairs // 8, inputs, dtype=torch.bfloat16, device="meta")
        values = torch.empty(
            experts,
            outputs,
            inputs // PER_WORD if packed else inputs,
            dtype=torch.int32 if packed else x.dtype,
            device="meta",
        )
        scales = torch.empty(experts, outputs, inputs // GROUP, dtype=x.dtype, device="meta") if packed else None
        out = torch.empty(pairs, outputs, dtype=x.dtype, device="meta")
        table = torch.empty(experts, block, dtype=torch.int32, device="meta")
        ready = launch(x, ExpertWeights(values, scales), Blocks(table, table[:, 0]), 8, out)
        tile = f"{block}x{ready.arguments['OUTPUTS']}x{ready.arguments['INPUTS']} w{ready.warps} s{ready.stages}"
        yield f"{'int4' if packed else 'bf16'} pairs={pairs} {outputs}x{inputs} {tile}", ready
    rows = torch.empty(128, 7168, dtype=torch.bfloat16, device="meta")
    yield "per_token=8 size=7168", combine_launch(rows, torch.empty(16, 8, device="meta"), rows[:16])
