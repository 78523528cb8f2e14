"""How a checkpoint's weights are kept, from `quantization_config`; what is not known here is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError
from engine.models.config import language_model
from engine.models.fields import Fields
from engine.models.int4 import PER_WORD


@dataclass(frozen=True)
class PackedExperts:
    """Routed experts in four bits (compressed-tensors "pack-quantized"), `group` inputs to a scale; the rest is plain."""

    group: int


@dataclass(frozen=True)
class FloatBlocks:
    """Matrices in 8-bit floats (e4m3), each block of `rows` x `columns` under a scale of its own."""

    rows: int
    columns: int


Quantization = PackedExperts | FloatBlocks | None
"""None: plain weights."""


def read_quantization(raw: Mapping[str, Any], where: str) -> Quantization:
    """How the weights of a config.json are kept. Raises EngineError for every form that is not known here."""
    text = language_model(raw, where)
    if not text.has("quantization_config"):
        return None
    config = text.table("quantization_config")
    method, form = config.text("quant_method"), config.text("format")
    if (method, form) == ("compressed-tensors", "pack-quantized"):
        return PackedExperts(_group(config))
    if method == "fp8" and config.has("weight_block_size"):
        return _blocks(config)
    name = {"compressed-tensors": f"compressed-tensors {form}", "fp8": "fp8 without weight_block_size"}.get(
        method, method
    )
    mend = "plain weights, compressed-tensors pack-quantized and fp8 in blocks are"
    raise EngineError(f"quantization {name or 'without a name'} is not supported", where=where, mend=mend)


def packed_group(raw: Mapping[str, Any], where: str) -> int:
    """Inputs that share a scale in the routed experts' packed weights; 0 where they are not packed."""
    found = read_quantization(raw, where)
    return found.group if isinstance(found, PackedExperts) else 0


def _group(config: Fields) -> int:
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


def _blocks(config: Fields) -> FloatBlocks:
    # Static activation scales would have to be applied to the inputs; weights alone are read here.
    for key, only in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        if config.text(key, only) != only:
            raise config.wrong(key, f"is not supported, only {only}")
    size = config.wholes("weight_block_size", low=1)
    if len(size) != 2:
        raise config.wrong("weight_block_size", "is not two whole numbers, rows and columns")
    return FloatBlocks(*size)
