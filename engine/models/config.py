"""ModelConfig: the shape of a target model, read from a Hugging Face config.json in its old and new forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import EngineError


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: base `theta` and how its frequencies are scaled ("linear" by `factor`, or Llama 3's bands)."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """A dense decoder of the Llama or Qwen3 kind. Sizes in elements; `dtype` is what the weights were stored in, "" unsaid."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: Rope
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    dtype: str

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values one token takes over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder, or an EngineError that says what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        mend = "give a Hugging Face model folder" if path.parent.is_dir() else "there is no such folder"
        raise EngineError(f"no {path.name} in the folder", where=str(path.parent), mend=mend) from error
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot read it as JSON ({error})", where=str(path)) from error
    if not isinstance(value, dict):
        raise EngineError("it holds no JSON object", where=str(path))
    return value


def read_target_config(raw: Mapping[str, Any], *, where: str, qk_norm: bool) -> ModelConfig:
    """The common reading of a dense decoder's config.json.

    `raw` may nest the language model under `text_config`; `qk_norm` is the family's. Raises EngineError for missing keys
    and unsupported features.
    """
    text = language_model(raw)
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    missing = [key for key in keys if not isinstance(text.get(key), int)]
    if missing:
        raise EngineError(f"config.json lacks {', '.join(missing)}", where=where)
    if text.get("use_sliding_window") or "sliding_attention" in (text.get("layer_types") or ()):
        raise EngineError("sliding-window attention in the target is not supported", where=where)
    if text.get("hidden_act", "silu") != "silu":
        raise EngineError(f"hidden_act {text['hidden_act']!r} is not supported, only silu", where=where)
    heads = text["num_attention_heads"]
    kv_heads = text.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise EngineError(f"{heads} attention heads do not divide over {kv_heads} key-value heads", where=where)
    return ModelConfig(
        architecture=architecture_name(raw),
        vocab_size=text["vocab_size"],
        hidden_size=text["hidden_size"],
        intermediate_size=text["intermediate_size"],
        layers=text["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=text.get("head_dim") or text["hidden_size"] // heads,
        rms_norm_eps=float(text.get("rms_norm_eps") or 1e-6),
        max_position_embeddings=int(text.get("max_position_embeddings") or 2048),
        rope=read_rope(text, where=where),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
        attention_bias=bool(text.get("attention_bias", False)),
        mlp_bias=bool(text.get("mlp_bias", False)),
        qk_norm=qk_norm,
        eos_token_ids=token_ids(text.get("eos_token_id")),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch."),
    )


def language_model(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the language model: models of several parts nest it under `text_config`."""
    return {**raw, **(raw.get("text_config") or {})}


def architecture_name(raw: Mapping[str, Any]) -> str:
    """What config.json calls the architecture: the first of `architectures`, else `model_type`."""
    names = raw.get("architectures") or language_model(raw).get("architectures")
    return str(names[0] if names else raw.get("model_type", "unnamed"))


def token_ids(value: Any) -> tuple[int, ...]:
    """eos_token_id as config files write it (an id, a list, null) -> ids."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def end_of_text_ids(folder: Path, config: ModelConfig) -> frozenset[int]:
    """Ids that end an answer: those of config.json, and those chat models name in generation_config.json."""
    path = folder / "generation_config.json"
    named = token_ids(read_json(path).get("eos_token_id")) if path.exists() else ()
    return frozenset((*config.eos_token_ids, *named))


def read_rope(text: Mapping[str, Any], *, where: str) -> Rope:
    """The rotary embedding of a config: `rope_parameters`, or the older `rope_theta` with `rope_scaling`."""
    scaling = text.get("rope_parameters") or text.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or text.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if float(scaling.get("partial_rotary_factor") or text.get("partial_rotary_factor") or 1.0) != 1.0:
        raise EngineError("partial rotary embeddings are not supported", where=where)
    if kind == "default":
        return Rope(theta)
    try:
        if kind == "linear":
            return Rope(theta, "linear", factor=float(scaling["factor"]))
        if kind == "llama3":
            return Rope(
                theta,
                "llama3",
                factor=float(scaling["factor"]),
                low_freq_factor=float(scaling["low_freq_factor"]),
                high_freq_factor=float(scaling["high_freq_factor"]),
                original_max_positions=int(
                    scaling.get("original_max_position_embeddings") or text["max_position_embeddings"]
                ),
            )
    except KeyError as error:
        raise EngineError(f"rope scaling {kind!r} lacks {error.args[0]}", where=where) from error
    raise EngineError(f"rope scaling {kind!r} is not supported", where=where, mend="default, linear and llama3 are")
