"""The Qwen3 mixtures of experts: Qwen3 attention, a softmax router over all experts, none of them shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.models.config import Experts, ModelConfig, language_model, read_target_config
from engine.models.quantization import packed_group

ARCHITECTURES = ("Qwen3MoeForCausalLM", "qwen3_moe")


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """ModelConfig of a Qwen3-MoE config.json. Layers named in `mlp_only_layers`, and all but every
    `decoder_sparse_step`th, have a dense MLP."""
    config, text = read_target_config(raw, where=where, qk_norm=True), language_model(raw, where)
    text.need("num_experts_per_tok", "moe_intermediate_size")
    count = text.whole("num_local_experts") if text.has("num_local_experts") else text.whole("num_experts")
    step, dense = text.whole("decoder_sparse_step", 1), set(text.wholes("mlp_only_layers"))
    per_token = text.whole("num_experts_per_tok")
    if per_token > count:
        raise text.wrong("num_experts_per_tok", f"is more than the {count} experts there are")
    return replace(
        config,
        experts=Experts(
            count=count,
            per_token=per_token,
            inner=text.whole("moe_intermediate_size"),
            score="softmax",
            normalized=text.flag("norm_topk_prob"),
            sparse=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(config.layers)),
            packed_group=packed_group(raw, where),
        ),
    )
