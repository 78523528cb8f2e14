"""Drafter: the DFlash block-diffusion drafter (arXiv 2602.06036), which proposes a whole block in one forward.

It owns no embedding and no head: the target's embed the block [seed, MASK, ...] and read out its hidden rows. Features of
target layers, fused once, enter every draft layer as extra keys and values ("context rows"). Parameter names are those
of the checkpoint, so `state_dict()` is what a DFlash folder stores.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from engine.drafter_config import DrafterConfig, read_drafter_config
from engine.errors import EngineError
from engine.models.config import ModelConfig
from engine.models.layers import Attend, Linear, RMSNorm
from engine.models.loader import assign_parameters, read_tensors
from engine.models.rope import RotaryTables
from kernels.rope import apply_rope
from kernels.silu_mul import silu_mul


class DraftAttention(nn.Module):
    """Queries from the block rows; keys and values from context rows and block rows, through the same weights."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim, self.kv_heads = layer, config.head_dim, config.kv_heads
        hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(hidden, queries, bias=config.attention_bias)
        self.k_proj = Linear(hidden, keys, bias=config.attention_bias)
        self.v_proj = Linear(hidden, keys, bias=config.attention_bias)
        self.o_proj = Linear(queries, hidden, bias=config.attention_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, rows: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """rows [n, hidden] -> rotated keys and values, each [n, kv_heads, head_dim]."""
        k = self.k_proj(rows).unflatten(-1, (self.kv_heads, self.head_dim))
        v = self.v_proj(rows).unflatten(-1, (self.kv_heads, self.head_dim))
        return apply_rope(self.k_norm(k), *tables), v

    def forward(self, h: Tensor, context: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """h [block, hidden], context [rows, hidden], tables for context rows then block rows -> [block, hidden]."""
        k, v = self.keys_values(torch.cat((context, h)), tables)
        cos, sin = tables
        q = self.q_proj(h).view(len(h), -1, self.head_dim)
        q = apply_rope(self.q_norm(q), cos[len(context) :], sin[len(context) :])
        return self.o_proj(attend(self.layer, q, k, v))


class DraftMlp(nn.Module):
    """SwiGLU, its matrices kept apart as the checkpoint keeps them."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, inner)
        self.up_proj = Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_mul(torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)))


class DraftLayer(nn.Module):
    """A Qwen3 layer whose input norm is applied to the block rows only."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DraftMlp(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor, context: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, tables, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """The drafter's own weights. Usable for inference and training alike: `attend` decides who sees whom."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = RotaryTables(config.rope, config.head_dim)

    def place(self, device: torch.device) -> None:
        """Move everything to `device`."""
        self.to(device)
        self.rotary.frequencies = self.rotary.frequencies.to(device)

    def context(self, features: Tensor) -> Tensor:
        """Target features [rows, taps * hidden] -> context rows [rows, hidden], the same for every layer."""
        return self.hidden_norm(self.fc(features))

    def forward(
        self, block: Tensor, block_positions: Tensor, context: Tensor, context_positions: Tensor, attend: Attend
    ) -> Tensor:
        """One draft: embedded block rows [block, hidden] -> final-normed hidden rows [block, hidden].

        block: target embeddings of [seed, MASK, ...], possibly of several blocks one after the other. context: rows
        from `context` whose keys are not cached yet, possibly none. Positions int64, absolute. `attend` gets queries of
        the block rows, and keys and values of context rows followed by block rows; block rows see each other both
        ways, unless a layer's window says otherwise. The hidden row at position p predicts the token AT p; the seed's
        row predicts nothing.
        """
        tables = self.rotary(torch.cat((context_positions, block_positions)), block.dtype)
        x = block
        for layer in self.layers:
            x = layer(x, context, tables, attend)
        return self.norm(x)

    def context_keys_values(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per layer, the keys and values of context rows alone: what a prefill writes to the draft cache."""
        tables = self.rotary(positions, context.dtype)
        return [cast(DraftLayer, layer).self_attn.keys_values(context, tables) for layer in self.layers]


def load_drafter(folder: Path | str, target: ModelConfig, dtype: torch.dtype) -> Drafter:
    """The drafter of a DFlash folder, checked against its target, cast to `dtype`, frozen.

    Raises EngineError in one clear line: another kind of drafter, a size that does not fit the target, a tapped layer
    the target has not, missing or surplus tensors.
    """
    folder = Path(folder)
    config = read_drafter_config(folder, target)
    tensors = read_tensors(folder)
    own = [name for name in ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d") if name in tensors]
    if own:
        mend = "only drafters that share the target's embedding and head are"
        raise EngineError(f"a drafter with its own {', '.join(own)} is not supported", where=str(folder), mend=mend)
    with torch.device("meta"):
        drafter = Drafter(config)
    assign_parameters(drafter, tensors, dtype, where=str(folder))
    return drafter.requires_grad_(False).eval()
