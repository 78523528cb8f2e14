"""Move the keys and values of an accepted path together, over all layers."""

from __future__ import annotations

from torch import Tensor


def kv_commit(keys: Tensor, values: Tensor, sources: Tensor, targets: Tensor) -> None:
    """keys, values [layers, slots, kv_heads, head_dim]: rows `sources` go to `targets`, both int64 [rows].

    Sources and targets may overlap: everything is read before anything is written.
    """
    keys[:, targets] = keys[:, sources]
    values[:, targets] = values[:, sources]
