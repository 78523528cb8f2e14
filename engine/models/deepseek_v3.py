"""DeepSeek-V3 and Kimi K2: latent attention, sigmoid router with a bias for the choice alone, shared experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.models.config import Experts, Latent, ModelConfig, language_model, read_target_config
from engine.models.fields import Fields
from engine.models.quantization import packed_group

ARCHITECTURES = ("DeepseekV3ForCausalLM", "deepseek_v3", "kimi_k2")


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """ModelConfig of a DeepSeek-V3 or Kimi K2 config.json."""
    text = language_model(raw, where)
    text.need("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts")
    rotary = text.whole("qk_rope_head_dim")
    if rotary % 2:
        raise text.wrong("qk_rope_head_dim", "is odd, and the rotary embedding turns pairs")
    # No head is hidden_size / heads wide here: that quotient may be anything.
    config = read_target_config({**text.raw, "head_dim": None}, where=where, qk_norm=False, head_dim=rotary)
    latent = _latent(text, config, rotary)
    return replace(
        config,
        architecture=(*text.texts("architectures"), config.architecture)[0],
        kv_heads=1,
        head_dim=latent.rank + latent.rotary_dim,
        latent=latent,
        experts=_experts(text, config.layers, packed_group(raw, where)),
    )


def _latent(text: Fields, config: ModelConfig, rotary: int) -> Latent:
    plain = text.whole("qk_nope_head_dim")
    return Latent(
        query_rank=text.whole("q_lora_rank", 0),
        rank=text.whole("kv_lora_rank"),
        plain_dim=plain,
        rotary_dim=rotary,
        value_dim=text.whole("v_head_dim"),
        score_scale=(plain + rotary) ** -0.5 * config.rope.score_factor,
        interleaved=text.flag("rope_interleave", True),
    )


def _experts(text: Fields, layers: int, group: int) -> Experts:
    """What is unsaid is DeepSeek-V3's own, as in `transformers`."""
    for key, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if text.text(key, only) != only:
            raise text.wrong(key, f"is not supported, only {only}")
    if text.whole("moe_layer_freq", 1) != 1:
        raise text.wrong("moe_layer_freq", "is not supported, only 1")
    count, groups = text.whole("n_routed_experts"), text.whole("n_group", 8)
    if count % groups:
        raise text.wrong("n_group", f"does not divide the {count} experts")
    top_groups, per_token = text.whole("topk_group", 4), text.whole("num_experts_per_tok", 8)
    if top_groups > groups:
        raise text.wrong("topk_group", f"is more than the {groups} groups there are")
    if per_token > count // groups * top_groups:
        raise text.wrong("num_experts_per_tok", f"is more than the {count // groups * top_groups} to choose from")
    inner, dense = text.whole("moe_intermediate_size"), text.whole("first_k_dense_replace", 3, low=0)
    return Experts(
        count=count,
        per_token=per_token,
        inner=inner,
        score="sigmoid",
        normalized=text.flag("norm_topk_prob", True),
        sparse=tuple(layer >= dense for layer in range(layers)),
        scale=text.number("routed_scaling_factor", 2.5),
        groups=groups,
        top_groups=top_groups,
        shared=inner * text.whole("n_shared_experts", 1, low=0),
        packed_group=group,
    )


def without_prediction_layers(tensors: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The tensors but for those of layers past the last one: they predict further tokens and are not run here."""
    return {name: tensor for name, tensor in tensors.items() if not _is_beyond(name, layers)}


def put_rotary_rows_apart(tensors: dict[str, Tensor], latent: Latent, heads: int) -> None:
    """Rows of interleaved rotary pairs brought into halves, once, in the weights: queries and keys are turned alike, so scores
    stay the same. A tensor of another shape than the config's is left for the loader to refuse.
    """
    halves = torch.cat((torch.arange(0, latent.rotary_dim, 2), torch.arange(1, latent.rotary_dim, 2)))
    width = latent.plain_dim + latent.rotary_dim
    for name, tensor in tensors.items():
        if (".self_attn.q_b_proj." in name or ".self_attn.q_proj." in name) and tensor.shape[:1] == (heads * width,):
            plain, rotary = tensor.view(heads, width, *tensor.shape[1:]).split(
                (latent.plain_dim, latent.rotary_dim), dim=1
            )
            tensors[name] = torch.cat((plain, rotary[:, halves]), dim=1).flatten(0, 1)
        elif ".self_attn.kv_a_proj_with_mqa." in name and tensor.shape[:1] == (latent.rank + latent.rotary_dim,):
            tensors[name] = torch.cat((tensor[: latent.rank], tensor[latent.rank :][halves]))


def _is_beyond(name: str, layers: int) -> bool:
    parts = name.split(".")
    return parts[0] == "layers" and parts[1].isdigit() and int(parts[1]) >= layers
