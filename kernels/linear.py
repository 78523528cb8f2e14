"""Dense projection y = x W^T + b.

Plain torch on every device; the one thing added is a row padding that spares float32 on CPUs a slow path.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_SLOW_ROWS = range(2, 8)
"""float32 row counts for which the CPU matrix product is slower than for 8 rows (2 rows cost 1.2 times 8)."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs], weight [outputs, inputs], bias [outputs] or None -> [..., outputs]."""
    if x.ndim == 2 and len(x) in _SLOW_ROWS and x.dtype is torch.float32 and x.device.type == "cpu":
        padded = functional.pad(x, (0, 0, 0, 8 - len(x)))
        return functional.linear(padded, weight, bias)[: len(x)]
    return functional.linear(x, weight, bias)


def packs(dtype: torch.dtype) -> bool:
    """Whether weights of this type can be packed here: bfloat16 on processors, with the library torch brings for them."""
    operations = torch.ops.mkldnn
    known = hasattr(operations, "_reorder_linear_weight") and hasattr(operations, "_linear_pointwise")
    return dtype is torch.bfloat16 and known and bool(operations._is_mkldnn_bf16_supported())


def pack_weight(weight: Tensor) -> Tensor:
    """weight bfloat16 [outputs, inputs] -> the same in the product's own layout: few rows then go at twice the speed."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
    return packed


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` with a packed weight, bit for bit."""
    surplus = _few_counts(len(x)) - len(x) if x.ndim == 2 else 0
    padded = functional.pad(x, (0, 0, 0, surplus)) if surplus else x
    out: Tensor = torch.ops.mkldnn._linear_pointwise(padded, packed, bias, "none", [], "")
    return out[: len(x)] if surplus else out


def _few_counts(rows: int) -> int:
    """The row count that so many are filled up to: for every count it meets, the library compiles a product and keeps it."""
    if rows <= 32:
        return rows
    return -(-rows // 8) * 8 if rows <= 128 else -(-rows // 32) * 32
