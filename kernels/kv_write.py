"""Scatter new keys and values into their slots of one layer's cache."""

from __future__ import annotations

from torch import Tensor


def kv_write(keys: Tensor, values: Tensor, slots: slice | Tensor, k: Tensor, v: Tensor) -> None:
    """keys, values [all slots, kv_heads, head_dim], changed in place at `slots`; k, v [rows, kv_heads, head_dim]."""
    keys[slots] = k
    values[slots] = v
