"""Weights in 8-bit floats with a scale to each block, as DeepSeek-V3, Kimi K2 and Qwen3 are released: made plain at load.

weight[o, i] = e4m3[o, i] * scale_inv[o // rows, i // columns]; blocks at the lower and right edge may be cut short.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.models.quantization import FloatBlocks

SCALES = "_scale_inv"
"""What follows a matrix's name in the name of its scales."""


def dequantized(weight: Tensor, scales: Tensor, blocks: FloatBlocks, dtype: torch.dtype) -> Tensor:
    """weight e4m3 [..., out, in], scales [..., out / rows, in / columns] rounded up -> [..., out, in] of `dtype`.

    The product is rounded once, from float32.
    """
    spread = scales.float().repeat_interleave(blocks.rows, -2).repeat_interleave(blocks.columns, -1)
    return (weight.float() * spread[..., : weight.shape[-2], : weight.shape[-1]]).to(dtype)


def make_plain(tensors: dict[str, Tensor], blocks: FloatBlocks, dtype: torch.dtype, *, where: str) -> None:
    """Replace each matrix that has scales by its plain values, one by one, and drop the scales.

    Raises EngineError for scales without their matrix, of another shape, or beside a matrix that is no 8-bit float.
    """
    for name in [name for name in tensors if name.endswith(SCALES)]:
        scales, owner = tensors.pop(name), name.removesuffix(SCALES)
        if owner not in tensors:
            raise EngineError(f"the weights hold {name} and lack {owner}", where=where)
        weight = tensors[owner]
        if weight.dtype is not torch.float8_e4m3fn:
            raise EngineError(f"{owner} has scales and holds {weight.dtype}, not 8-bit floats (e4m3)", where=where)
        wanted = (*weight.shape[:-2], -(-weight.shape[-2] // blocks.rows), -(-weight.shape[-1] // blocks.columns))
        if scales.shape != wanted:
            sizes = f"{list(scales.shape)}, and blocks of {blocks.rows} x {blocks.columns} ask for {list(wanted)}"
            raise EngineError(f"{name} has shape {sizes}", where=where)
        tensors[owner] = dequantized(weight, scales, blocks, dtype)
