"""Forward passes over rows that lie one after the other in the cache: the target's, the drafter's, and the drafter's context.

Every shape is fixed by the arguments' shapes; what varies from round to round (where the rows begin, how many are real) is
read on the device from `extent`, int32 [2]: (position of row 0, live rows). Residual additions ride in the next norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from engine.cache import KvStore
from engine.device.model import DeviceModel
from engine.draft import narrower
from engine.drafter import DraftLayer
from engine.models.decoder import DecoderLayer
from engine.models.latent import LatentAttention
from engine.models.layers import Attend, Attention, RMSNorm
from kernels.kv_store import kv_store
from kernels.latent_attention import latent_attention
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm


@dataclass(frozen=True)
class Rows:
    """The rows of a pass: `depths` int32 [rows] below the first position, whom each sees of the others as ancestor words
    int32 [rows, words], the request's page table, and the longest context the pass has to serve.
    """

    extent: Tensor
    depths: Tensor
    words: Tensor
    page_table: Tensor
    longest: int

    @property
    def positions(self) -> Tensor:
        """Absolute positions, int64 [rows]."""
        return (self.extent[:1] + self.depths).long()


def target_pass(model: DeviceModel, token_ids: Tensor, rows: Rows, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """token_ids int64 [rows] -> (final-normed hidden [rows, hidden], features [rows, taps * hidden])."""
    target = model.target
    x = target.embed(token_ids)
    tables = target.rotary(rows.positions, x.dtype)
    delta: Tensor | None = None
    after: dict[int, Tensor] = {}
    for index, module in enumerate(target.layers):
        layer = cast(DecoderLayer, module)
        normed = _normed(x, delta, layer.input_layernorm)
        if isinstance(layer.self_attn, LatentAttention):
            delta = layer.self_attn(normed, tables, _attend_latents(model, layer.self_attn, rows))
        else:
            delta = _attention(layer.self_attn, normed, tables, model.target_cache, model.page_size, rows)
        delta = layer.mlp(_normed(x, delta, layer.post_attention_layernorm))
        if index in taps:
            x, delta = x + delta, None
            after[index] = x.clone()
    features = torch.cat([after[tap] for tap in taps], dim=-1) if taps else x.new_empty(len(x), 0)
    return _normed(x, delta, target.norm), features


def draft_pass(model: DeviceModel, seed: Tensor, rows: Rows) -> Tensor:
    """One block [seed, MASK, ...] -> final-normed hidden rows [block, hidden]; its keys lie past the context's."""
    drafting = model.drafting
    assert drafting is not None
    drafter, cache, config = drafting.drafter, drafting.kv, drafting.drafter.config
    masks = torch.full((model.block_size - 1,), config.mask_token_id, dtype=torch.int64, device=model.device)
    x = model.target.embed(torch.cat((seed, masks)))
    tables = drafter.rotary(rows.positions, x.dtype)
    sees_all = torch.full_like(rows.words, -1)
    delta: Tensor | None = None
    for index, (module, joined) in enumerate(zip(drafter.layers, model.projections, strict=True)):
        layer = cast(DraftLayer, module)
        normed = _normed(x, delta, layer.input_layernorm)
        qkv = functional.linear(normed, joined.weight, joined.bias).unflatten(-1, (-1, config.head_dim))
        norms = (layer.self_attn.q_norm.weight, layer.self_attn.k_norm.weight)
        keys, values, own = cache.keys[index], cache.values[index], config.windows[index]
        stored = (rows.page_table, rows.extent)
        q = kv_store(qkv, norms, config.rms_norm_eps, tables, *stored, keys, values, page_size=model.page_size)
        attended = paged_attention(
            q,
            keys,
            values,
            *stored,
            rows.words if own and config.causal_windows else sees_all,
            page_size=model.page_size,
            longest=rows.longest,
            window=narrower(own, drafting.window),
            depths=rows.depths,
        )
        delta = layer.mlp(_normed(x, layer.self_attn.o_proj(attended), layer.post_attention_layernorm))
    return _normed(x, delta, drafter.norm)


def take_in_context(model: DeviceModel, features: Tensor, extent: Tensor, page_table: Tensor) -> None:
    """Cache the drafter's keys and values of context rows: features [rows, taps * hidden] from position extent[0] on."""
    drafting = model.drafting
    assert drafting is not None
    drafter, cache, config = drafting.drafter, drafting.kv, drafting.drafter.config
    context = drafter.context(features)
    positions = extent[:1].long() + torch.arange(len(features), device=features.device)
    tables = drafter.rotary(positions, context.dtype)
    queries = config.heads * config.head_dim
    for index, (module, joined) in enumerate(zip(drafter.layers, model.projections, strict=True)):
        layer = cast(DraftLayer, module)
        bias = None if joined.bias is None else joined.bias[queries:]
        kv = functional.linear(context, joined.weight[queries:], bias).unflatten(-1, (-1, config.head_dim))
        norms = (layer.self_attn.q_norm.weight, layer.self_attn.k_norm.weight)
        keys, values = cache.keys[index], cache.values[index]
        kv_store(kv, norms, config.rms_norm_eps, tables, page_table, extent, keys, values, page_size=model.page_size)


def _normed(x: Tensor, delta: Tensor | None, norm: RMSNorm) -> Tensor:
    """The norm of the residual stream, `delta` added to it first, in place."""
    return rms_norm(x, norm.weight, norm.eps) if delta is None else add_rms_norm(x, delta, norm.weight, norm.eps)


def _attention(
    attention: Attention, x: Tensor, tables: tuple[Tensor, Tensor], cache: KvStore, page_size: int, rows: Rows
) -> Tensor:
    qkv = attention.qkv_proj(x).unflatten(-1, (-1, attention.head_dim))
    norms, eps = None, 0.0
    if attention.q_norm is not None and attention.k_norm is not None:
        norms, eps = (attention.q_norm.weight, attention.k_norm.weight), attention.q_norm.eps
    keys, values = cache.keys[attention.layer], cache.values[attention.layer]
    stored = (rows.page_table, rows.extent)
    q = kv_store(qkv, norms, eps, tables, *stored, keys, values, page_size=page_size)
    return attention.o_proj(
        paged_attention(q, keys, values, *stored, rows.words, page_size=page_size, longest=rows.longest)
    )


def _attend_latents(model: DeviceModel, attention: LatentAttention, rows: Rows) -> Attend:
    """Stores latent rows and attends to them. A padding row stores what row 0 does, where row 0 does."""
    rank, cache = attention.shape.rank, model.target_cache.keys[attention.layer][:, 0]

    def attend(layer: int, q: Tensor, latent: Tensor, values: Tensor) -> Tensor:
        place = torch.arange(len(q), device=q.device)
        live, positions = place < rows.extent[1], rows.extent[0] + place
        positions = torch.where(live, positions, rows.extent[0])
        pages = rows.page_table[positions // model.page_size].long()
        stored = torch.where(live[:, None], latent[:, 0], latent[:1, 0])
        cache.index_copy_(0, pages * model.page_size + positions % model.page_size, stored)
        return latent_attention(
            q,
            cache,
            rows.page_table,
            rows.extent,
            rows.words,
            rank=rank,
            scale=q.shape[-1] ** -0.5,
            page_size=model.page_size,
            longest=rows.longest,
        )

    return attend
