"""Attention of tree nodes (or of a prompt chunk) over cached keys and values, grouped queries.

softmax(q k^T / sqrt(head_dim) + bias) v, where bias hides what a node may not see. The query heads that share a key head
are folded into rows, [kv_heads, nodes * group, head_dim]: on CPUs that keeps the fused kernel on its fast path, which
its own grouped-query switch leaves.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def tree_attention(q: Tensor, keys: Tensor, values: Tensor, slots: slice | Tensor, bias: Tensor | None) -> Tensor:
    """q [nodes, heads, head_dim]; keys, values [all slots, kv_heads, value_dim] of one layer -> [nodes, heads * value_dim].

    `slots` picks the rows to attend to, in position order: a slice where pages are consecutive, else int64 [length].
    `bias` is `tree_bias`'s, [nodes * group, length], or None where every node sees everything.
    """
    nodes, _, head_dim = q.shape
    kv_heads = keys.shape[1]
    rows = q.view(nodes, kv_heads, -1, head_dim).transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
    k, v = (cached_rows(cache, slots).transpose(0, 1).unsqueeze(0) for cache in (keys, values))
    out = functional.scaled_dot_product_attention(rows, k, v, attn_mask=bias)
    return out.view(kv_heads, nodes, -1, values.shape[-1]).transpose(0, 1).reshape(nodes, -1)


def stacked_attention(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor | None) -> Tensor:
    """`tree_attention` of several requests at once, each with slots and nodes of its own.

    q [requests, nodes, heads, head_dim], slots int64 [requests, length], bias [requests, 1, nodes * group or 1, length] ->
    [requests * nodes, heads * value_dim]. Where a request's context is shorter than the longest, its bias hides what follows.
    """
    requests, nodes, _, head_dim = q.shape
    kv_heads = keys.shape[1]
    rows = q.view(requests, nodes, kv_heads, -1, head_dim).transpose(1, 2).reshape(requests, kv_heads, -1, head_dim)
    k, v = (cached_rows(cache, slots.flatten()).unflatten(0, slots.shape).transpose(1, 2) for cache in (keys, values))
    out = functional.scaled_dot_product_attention(rows, k, v, attn_mask=bias)
    return out.view(requests, kv_heads, nodes, -1, values.shape[-1]).transpose(1, 2).reshape(requests * nodes, -1)


def cached_rows(cache: Tensor, slots: slice | Tensor) -> Tensor:
    """Rows of a layer's cache: in place for a slice; else copied whole rows at a time, eight times as fast as by subscript."""
    return cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots)


def tree_bias(visible: Tensor, length: int, group: int, dtype: torch.dtype) -> Tensor | None:
    """Additive mask [nodes * group, length]: all but the last columns are free, those follow `visible`.

    visible bool [nodes, columns]; `group` query heads share a key head. None where nothing is hidden.
    """
    if bool(visible.all()):
        return None
    bias = torch.zeros(len(visible), length, dtype=dtype, device=visible.device)
    bias[:, length - visible.shape[1] :].masked_fill_(~visible, -torch.inf)
    return bias.repeat_interleave(group, dim=0)
