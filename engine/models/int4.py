"""Weights packed to four bits (compressed-tensors' "pack-quantized"): eight to a word, one scale a group of inputs.

weight[out, in] = (nibble - 8) * scale[out, in // group]; nibble i of a word is input 8 * word + i, lowest bits first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.models.config import language_model

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


def packed_group(raw: Mapping[str, Any], where: str) -> int:
    """Inputs that share a scale in the routed experts' packed weights; 0 where the weights are plain.

    Raises EngineError for every other quantization.
    """
    text = language_model(raw, where)
    if not text.has("quantization_config"):
        return 0
    config = text.table("quantization_config")
    form = (config.text("quant_method"), config.text("format"))
    if form != ("compressed-tensors", "pack-quantized"):
        name = form[0] if form[0] != "compressed-tensors" else f"{form[0]} {form[1]}"
        mend = "plain weights and compressed-tensors pack-quantized are"
        raise EngineError(f"quantization {name or 'without a name'} is not supported", where=where, mend=mend)
    groups = config.table("config_groups")
    if len(groups.raw) != 1:
        raise config.wrong("config_groups", f"holds {len(groups.raw)} groups, and one is supported")
    weights = groups.table(next(iter(groups.raw))).table("weights")
    wanted: Mapping[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    for key, only in wanted.items():
        if weights.raw.get(key) != only:
            raise weights.wrong(key, f"is not supported, only {only}")
    group = weights.whole("group_size")
    if group % PER_WORD:
        raise weights.wrong("group_size", f"is not a multiple of {PER_WORD}")
    return group
