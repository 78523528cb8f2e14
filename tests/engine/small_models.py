"""Small random models with drafters, written to a folder: every kind of target the engine runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from engine.drafter import Drafter
from engine.drafter_config import read_drafter_config
from engine.models.loader import read_model_config

VOCAB, HIDDEN, LAYERS = 53, 32, 3
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "head_dim": 8,
    "norm_topk_prob": True,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
KINDS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, SHAPE),
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {**SHAPE, **EXPERTS}),
    "deepseek": (DeepseekV3Config, DeepseekV3ForCausalLM, {**SHAPE, **LATENT}),
}


def write_models(kind: str, folder: Path) -> tuple[Path, Path]:
    """(target, drafter) folders of one kind. The drafter is random, and near enough to uniform to be right at times."""
    config_kind, model_kind, settings = KINDS[kind]
    target, drafter = folder / "target", folder / "drafter"
    torch.manual_seed(7)
    model = model_kind(config_kind(**settings)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "gate.weight" in name or "experts" in name:
                tensor.copy_(torch.randn_like(tensor) * 0.3)
    model.save_pretrained(target)
    drafter.mkdir()
    config = {
        "architectures": ["DFlashDraftModel"],
        "block_size": 6,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [0, 1]},
    }
    (drafter / "config.json").write_text(json.dumps(config))
    weights = Drafter(read_drafter_config(drafter, read_model_config(target))).state_dict()
    random = {name: torch.randn_like(tensor) * 0.3 if tensor.ndim > 1 else tensor for name, tensor in weights.items()}
    save_file({name: tensor.contiguous() for name, tensor in random.items()}, drafter / "model.safetensors")
    return target, drafter
