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
