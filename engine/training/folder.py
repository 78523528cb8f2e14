"""A new drafter for a target, and the DFlash folder it is written to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.drafter import Drafter
from engine.drafter_config import DrafterConfig
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.loader import FUSED, checkpoint_names
from engine.models.rope import Rope


def drafter_config(
    target: ModelConfig, *, layers: int, taps: tuple[int, ...], block_size: int, mask_token_id: int
) -> DrafterConfig:
    """A drafter with the target's own layer sizes, full attention in every layer.

    Its positions are never stretched, whatever the target's are: it is trained on the positions it meets. A target with latent
    attention caches one wide head for all; its drafter gets plain heads as wide as the target's values, eight or so to a cached one.
    """
    kv_heads, head_dim = target.kv_heads, target.head_dim
    if target.latent:
        eighth = max(target.heads // 8, 1)
        kv_heads = next(heads for heads in range(eighth, 0, -1) if target.heads % heads == 0)
        head_dim = target.latent.value_dim
    return DrafterConfig(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        layers=layers,
        heads=target.heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope=Rope(target.rope.theta),
        vocab_size=target.vocab_size,
        attention_bias=False,
        block_size=block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=taps,
        windows=(0,) * layers,
        causal_windows=False,
    )


def new_drafter(config: DrafterConfig, target: Decoder, seed: int) -> Drafter:
    """A drafter that starts as a copy of the target's last layers, reading the last tap; float32, ready to train.

    Those layers already turn a residual stream into words of the target's head. Started so, forty steps reach a loss that random
    weights are still far from. What the target has in another shape (experts, latent attention) starts random, and norms
    that it does not have start at one.
    """
    drafter = Drafter(config)
    own = dict(drafter.named_parameters())
    first = target.config.layers - config.layers
    weights = {
        f"layers.{place}.{name}": tensor
        for place in range(config.layers)
        for name, tensor in _unfused(target, first + place)
    }
    weights["norm.weight"] = target.norm.weight
    weights["hidden_norm.weight"] = weights["layers.0.input_layernorm.weight"]
    dice = torch.Generator("cpu").manual_seed(seed)
    with torch.no_grad():
        for name, parameter in own.items():
            if name in weights and weights[name].shape == parameter.shape:
                parameter.copy_(weights[name])
            elif parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=0.02, generator=dice)
        drafter.fc.weight.normal_(std=0.005, generator=dice)
        drafter.fc.weight[:, -config.hidden_size :] += torch.eye(config.hidden_size, device="cpu")
    return drafter.requires_grad_(True).train()


def _unfused(target: Decoder, layer: int) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a target layer under a drafter's names: fused projections taken apart."""
    heads = [heads * target.config.head_dim for heads in (target.config.heads, *[target.config.kv_heads] * 2)]
    for name, parameter in target.layers[layer].named_parameters():
        fused = next((fused for fused in FUSED if f".{fused}." in name), None)
        if fused is None:
            yield name, parameter
        else:
            parts = parameter.split(heads) if fused == "qkv_proj" else parameter.chunk(2)
            yield from zip(checkpoint_names(name), parts, strict=True)


def write_drafter(
    drafter: Drafter, target: ModelConfig, folder: Path, card: dict[str, Any], dtype: torch.dtype
) -> None:
    """Write config.json, model.safetensors in `dtype`, card.json and README.md; the weights are replaced in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().to(dtype).contiguous() for name, tensor in drafter.state_dict().items()}
    fresh = folder / ".model.safetensors"
    save_file(weights, str(fresh), metadata={"format": "pt"})
    _write_json(folder / "config.json", hf_config(drafter.config, target, dtype))
    _write_json(folder / "card.json", card)
    (folder / "README.md").write_text(card_text(card), encoding="utf-8")
    fresh.chmod(0o644)
    fresh.replace(folder / "model.safetensors")


def hf_config(config: DrafterConfig, target: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a DFlash drafter: a Qwen3 config plus block_size, num_target_layers and dflash_config."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "block_size": config.block_size,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": list(config.target_layer_ids)},
        "dtype": str(dtype).removeprefix("torch."),
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layer_types": ["full_attention"] * config.layers,
        "max_position_embeddings": target.max_position_embeddings,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "num_target_layers": target.layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": config.rope.theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }


def card_text(card: dict[str, Any]) -> str:
    """README.md of a drafter folder, from its card."""
    lines = [
        f"# DFlash drafter for {card['target']['name']}",
        "",
        f"Block size {card['block_size']}, {card['layers']} layers, target layers tapped: "
        f"{', '.join(map(str, card['target_layer_ids']))}. Trained by `python -m engine train-drafter`.",
        "",
        f"- Target weights: sha256 `{card['target']['weights_sha256']}`",
        f"- Data: {card['data']['responses']} responses of the target itself, {card['data']['response_tokens']} tokens",
        f"- Training: {card['training']['steps']} steps, {card['training']['blocks']} blocks, "
        f"{card['training']['minutes']} minutes, last loss {card['training']['loss']}",
    ]
    figures = card.get("held_out")
    if figures:
        names = [name for name in figures["all"] if name != "tokens"]
        lines += [
            "",
            f"Commit length (tokens kept per round, bonus included) on {figures['all']['tokens']} tokens of greedy text about subjects "
            "that were not trained on:",
            "",
            f"| text | {' | '.join(names)} |",
            f"|---|{'---|' * len(names)}",
        ]
        lines += [f"| {kind} | {' | '.join(f'{row[name]:.2f}' for name in names)} |" for kind, row in figures.items()]
        lines += ["", f"The same again: `{card['held_out_again']}`"]
    return "\n".join(lines) + "\n"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
