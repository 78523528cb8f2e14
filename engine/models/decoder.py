"""Decoder: the target model as the engine runs it, one flat row of tokens at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig
from engine.models.experts import ExpertMlp
from engine.models.latent import LatentAttention
from engine.models.layers import Attend, Attention, Linear, Mlp, RMSNorm
from engine.models.rope import RotaryTables
from kernels.linear import linear, pack_weight, packed_linear


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the config says which attention and which MLP."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = (
            LatentAttention(config, config.latent, layer) if config.latent is not None else Attention(config, layer)
        )
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = (
            ExpertMlp(config.hidden_size, config.experts)
            if config.experts is not None and config.experts.sparse[layer]
            else Mlp(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        )

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A decoder. Parameter names are the checkpoint's without its `model.` prefix, projections fused."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # From a tensor: made from sizes it would draw random numbers, and on the meta device that loads torch's compiler, 80 MB.
        self.embed_tokens = nn.Embedding.from_pretrained(
            torch.empty(config.vocab_size, config.hidden_size), freeze=False
        )
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self.rotary = RotaryTables(config.rope, config.rotary_dim)
        self.packed_head: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic the weights are kept in."""
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.embed_tokens.weight.device

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """token_ids, positions int64 [tokens] -> (final-normed hidden [tokens, hidden], features [tokens, taps * hidden]).

        `features` holds, tap by tap, the residual stream after layer l for each l of `taps`. Every row is a token of
        its own: what it sees of the others is `attend`'s affair, and its position comes from `positions` alone.
        """
        x = self.embed(token_ids)
        tables = self.rotary(positions, x.dtype)
        after: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            x = layer(x, tables, attend)
            if index in taps:
                after[index] = x
        features = torch.cat([after[tap] for tap in taps], dim=-1) if taps else x.new_empty(len(x), 0)
        return self.norm(x), features

    def place(self, device: torch.device) -> None:
        """Move everything to `device`."""
        self.to(device)
        self.rotary.frequencies = self.rotary.frequencies.to(device)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Token ids of any shape -> their embeddings [..., hidden]."""
        return nn.functional.embedding(token_ids, self.embed_tokens.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final-normed hidden [..., hidden] -> logits [..., vocab] in the model's dtype."""
        if self.packed_head is not None:
            return packed_linear(hidden, self.packed_head)
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return linear(hidden, head)

    def pack(self) -> None:
        """Pack every matrix that is only multiplied with; a tied head gets a packed copy beside its embedding."""
        pack_linears(self.layers)
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        self.packed_head = pack_weight(head)
        if self.lm_head is not None:
            self.lm_head.weight = nn.Parameter(head.to("meta"), requires_grad=False)


def pack_linears(model: nn.Module) -> None:
    """Pack the projections of a model; latent attention reads one of its own by rows, which stays as it is."""
    kept = {id(module.kv_b_proj) for module in model.modules() if isinstance(module, LatentAttention)}
    for module in model.modules():
        if isinstance(module, Linear) and id(module) not in kept:
            module.pack()
