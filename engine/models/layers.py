"""The layers a dense decoder and its drafter are made of.

Nothing here knows a cache: attention hands rotated queries, keys and values to the caller's `Attend`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig, Rope
from kernels.linear import linear
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope, rope_frequencies, rope_tables
from kernels.silu_mul import silu_mul

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [tokens, heads, head_dim], k [rows, kv_heads, head_dim], v the same) -> [tokens, heads * head_dim].

q and k come with the rotary embedding applied. The callee decides what each query sees and remembers k and v.
"""


class Linear(nn.Module):
    """y = x W^T (+ b); weight [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """RMS norm over the last dimension, statistics in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class RotaryTables(nn.Module):
    """cos and sin rows for given positions."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        super().__init__()
        self.frequencies = rope_frequencies(
            head_dim,
            rope.theta,
            kind=rope.kind,
            factor=rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_positions=rope.original_max_positions,
        )

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return rope_tables(positions, self.frequencies.to(positions.device), dtype)


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


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables, attend)
        return x + self.mlp(self.post_attention_layernorm(x))
