"""Multi-head latent attention in its absorbed form (DeepSeek-V2, section 2.1): the cache holds latents, never keys or values.

A query's plain part goes through the matrix that would make keys of latents, and the attended latents through the one that
would make values of them: q (W_k c) = (q W_k) c. Equal to the expanded form, at one cached row a token for all heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from engine.models.config import Latent, ModelConfig
from engine.models.layers import Attend, Linear, RMSNorm
from kernels.rope import apply_rope

LATENT_NORM_EPS = 1e-6
"""The norms of the compressed queries and latents keep this whatever the config's own figure is."""


class LatentAttention(nn.Module):
    """The keys handed to `attend` are [latent | rotary key] of one head, and the values are none: they are in the keys."""

    def __init__(self, config: ModelConfig, shape: Latent, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.shape = layer, config.heads, shape
        hidden, bias = config.hidden_size, config.attention_bias
        queries = config.heads * (shape.plain_dim + shape.rotary_dim)
        if shape.query_rank:
            self.q_a_proj = Linear(hidden, shape.query_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(shape.query_rank, LATENT_NORM_EPS)
            self.q_b_proj = Linear(shape.query_rank, queries)
        else:
            self.q_proj = Linear(hidden, queries)
        self.kv_a_proj_with_mqa = Linear(hidden, shape.rank + shape.rotary_dim, bias=bias)
        self.kv_a_layernorm = RMSNorm(shape.rank, LATENT_NORM_EPS)
        self.kv_b_proj = Linear(shape.rank, config.heads * (shape.plain_dim + shape.value_dim))
        self.o_proj = Linear(config.heads * shape.value_dim, hidden, bias=bias)
        # `attend` divides scores by the square root of the cached width; queries carry what makes that the model's scale.
        self.query_scale = shape.score_scale * math.sqrt(shape.rank + shape.rotary_dim)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """x [tokens, hidden] -> [tokens, hidden]."""
        shape = self.shape
        plain, rotary = self._queries(x).split((shape.plain_dim, shape.rotary_dim), dim=-1)
        latent, key = self.kv_a_proj_with_mqa(x).split((shape.rank, shape.rotary_dim), dim=-1)
        row = torch.cat((self.kv_a_layernorm(latent).unsqueeze(1), apply_rope(key.unsqueeze(1), *tables)), dim=-1)
        to_key, to_value = self.kv_b_proj.weight.view(self.heads, -1, shape.rank).split(
            (shape.plain_dim, shape.value_dim), dim=1
        )
        absorbed = torch.einsum("thd,hdr->thr", plain, to_key)  # [tokens, heads, rank]
        q = torch.cat((absorbed, apply_rope(rotary, *tables)), dim=-1) * self.query_scale
        attended = attend(self.layer, q, row, row[..., :0]).view(len(x), self.heads, shape.rank)
        return self.o_proj(torch.einsum("thr,hvr->thv", attended, to_value).flatten(1))

    def _queries(self, x: Tensor) -> Tensor:
        """[tokens, heads, plain_dim + rotary_dim]"""
        flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self.shape.query_rank else self.q_proj(x)
        return flat.view(len(x), self.heads, -1)
