"""RMS norm: y = w * x / sqrt(mean(x^2) + eps) over the last dimension.

Rounding order of the Llama family: the statistics and the product with them in float32, one rounding to x's dtype,
then the weight.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., size], weight [size] -> x's shape and dtype."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)
