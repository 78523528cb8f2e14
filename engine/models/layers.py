"""The layers that decoders and their drafter are made of.

Nothing here knows a cache: attention hands rotated queries, keys and values to the caller's `Attend`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig
from kernels.linear import linear, pack_weight, packed_linear
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope
from kernels.silu_mul import silu_mul

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [tokens, heads, head_dim], k [rows, kv_heads, head_dim], v the same) -> [tokens, heads * head_dim].

q and k come with the rotary embedding applied. The callee decides what each query sees and remembers k and v.
"""


class Linear(nn.Module):
    """y = x W^T (+ b); weight [outputs, inputs]. Once packed, `weight` is a shape without storage."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias) if self.packed is None else packed_linear(x, self.packed, self.bias)

    def pack(self) -> None:
        """Keep the weight in the layout that the processor's matrix product reads, and in no other."""
        self.packed = pack_weight(self.weight)
        self.weight = nn.Parameter(self.weight.to("meta"), requires_grad=False)


class RMSNorm(nn.Module):
    """RMS norm over the last dimension, statistics in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query self-attention with one fused projection; `qk_norm` norms each head first (Qwen3)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        width = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv_proj = Linear(config.hidden_size, width, bias=config.attention_bias)
        self.o_proj = Linear(config.heads * config.head_dim, config.hidden_size, bias=config.attention_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        qkv = self.qkv_proj(x).view(len(x), -1, self.head_dim)
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])), dim=1)
        q, k = apply_rope(qk, *tables).split((self.heads, self.kv_heads), dim=1)
        return self.o_proj(attend(self.layer, q, k, v))


class Mlp(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)), gate and up fused in one matrix."""

    def __init__(self, hidden: int, inner: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden, 2 * inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_mul(self.gate_up_proj(x)))
