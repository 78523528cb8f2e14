"""Weights packed to four bits (compressed-tensors' "pack-quantized"): eight to a word, one scale a group of inputs.

weight[out, in] = (nibble - 8) * scale[out, in // group]; nibble i of a word is input 8 * word + i, lowest bits first.
"""

from __future__ import annotations

import torch
from torch import Tensor

PER_WORD = 8


def unpack(words: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """words int32 [..., out, in / 8], scales [..., out, in / group] -> weights [..., out, in] of `dtype`.

    The product is rounded once, from float32.
    """
    shifts = torch.arange(0, 4 * PER_WORD, 4, dtype=torch.int32, device=words.device)
    steps = ((words.unsqueeze(-1) >> shifts) & 15) - 8  # [..., out, in / 8, 8]; the mask undoes the sign's spreading
    grouped = steps.flatten(-2).unflatten(-1, (scales.shape[-1], -1))  # [..., out, in / group, group]
    return (grouped * scales.float().unsqueeze(-1)).flatten(-2).to(dtype)


def pack(steps: Tensor) -> Tensor:
    """Steps in -8..7, [..., in] with `in` a multiple of 8 -> words int32 [..., in / 8]."""
    nibbles = (steps.to(torch.int64) + 8).unflatten(-1, (-1, PER_WORD))
    shifted = nibbles << torch.arange(0, 4 * PER_WORD, 4)
    words = shifted.sum(dim=-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
