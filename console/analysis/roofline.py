"""How far the context slope lies above what the memory system alone would cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console.analysis.kv_bytes import ELEMENT_BYTES, kv_width, text_config
from console.analysis.kv_layers import kv_layers
from console.errors import UsageError

BYTES_OF_DTYPE = {**ELEMENT_BYTES, "auto": 2}


@dataclass(frozen=True)
class Roofline:
    """The slope's share of the memory roofline: bytes of cache read per context token, and the time that takes."""

    bytes_per_token: int
    floor_us_per_token: float
    slope_us_per_token: float

    @property
    def share(self) -> float:
        """Floor over measured slope: 1 means bound by memory, near 0 means bound by the implementation."""
        return self.floor_us_per_token / self.slope_us_per_token


def kv_bytes_per_token(
    model_config: Mapping[str, Any], *, dtype: str = "bfloat16", tensor_parallel: int = 1
) -> int | None:
    """Bytes of cache read per context token *on one GPU* for a Hugging Face config; None if the config does not say.

    A window's layers read no more for a longer context, so the others count alone.
    """
    try:
        text = text_config(model_config)
        layers, width = kv_layers(text), kv_width(text)
    except UsageError:
        return None
    return layers.every * width.elements(max(tensor_parallel, 1)) * BYTES_OF_DTYPE.get(dtype, 2) or None


def context_roofline(
    slope_ms_per_token: float, model_config: Mapping[str, Any] | None, hardware: Mapping[str, Any] | None
) -> Roofline | None:
    """The roofline of a context slope; None when the model's config or the memory bandwidth is not known.

    `hardware`: a key naming the memory bandwidth of one GPU with its unit (`memory_bandwidth_gb_s`, `…_tb_s`,
    `…_bytes_s`), `tensor_parallel` or `gpu_count`, `kv_dtype`.
    """
    if not model_config or not hardware or slope_ms_per_token <= 0:
        return None
    bandwidth = bandwidth_bytes_s(hardware)
    ways = int(hardware.get("tensor_parallel") or hardware.get("gpu_count") or 1)
    size = kv_bytes_per_token(model_config, dtype=str(hardware.get("kv_dtype", "bfloat16")), tensor_parallel=ways)
    if not bandwidth or size is None:
        return None
    return Roofline(size, size / bandwidth * 1e6, slope_ms_per_token * 1e3)


def bandwidth_bytes_s(hardware: Mapping[str, Any]) -> float | None:
    """Memory bandwidth of one GPU in bytes a second, from the first key that names it; None if none does.

    The unit is read from the key's ending. A key without one is read by size: no memory is slower than 1 GB/s or
    faster than 1 PB/s, so below 100 it can only be TB/s, below 100,000 only GB/s, and above that bytes.
    """
    for key, value in hardware.items():
        if "bandwidth" not in key.lower() or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        unit = re.sub(r"[^a-z]", "", key.lower().split("bandwidth", 1)[1])
        if unit.startswith(("tb", "tib")):
            return float(value) * 1e12
        if unit.startswith(("gb", "gib")):
            return float(value) * 1e9
        if unit.startswith(("b", "bytes")):
            return float(value)
        return float(value) * (1e12 if value < 100 else 1e9 if value < 1e5 else 1.0)
    return None
