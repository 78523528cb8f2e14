"""Rotary position embedding, rotate-half form over the whole head (Su et al., RoFormer), with linear and Llama 3 scaling."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
    angles = positions.to(torch.float32)[:, None] * frequencies  # [tokens, head_dim / 2]
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] turned by its row's angles: x * cos + swap_halves(x) * signed_sin."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)
