"""ModelConfig: the shape of a target model, read from a Hugging Face config.json in its old and new forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.errors import EngineError
from engine.models.fields import Fields, read_json
from engine.models.rope import Rope, read_rope, stretched

LONGEST_CONTEXT = 262_144
"""Positions that YaRN is asked to reach at most."""
MOST_POSITIONS, MOST_LAYERS = 2**31, 10_000


@dataclass(frozen=True)
class Experts:
    """The routed experts of a mixture. `sparse[layer]`: whether the layer has them; the others have one dense MLP.

    A token takes the `per_token` experts with the best scores, among those of the `top_groups` best of `groups` groups;
    their weights are their scores, brought to a sum of 1 if `normalized`, times `scale`. With `score` "sigmoid" a learned
    bias moves the choice, never the weights. `shared`: inner size of the expert every token takes besides, 0 for none.
    """

    count: int
    per_token: int
    inner: int
    score: Literal["softmax", "sigmoid"]
    normalized: bool
    sparse: tuple[bool, ...]
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    shared: int = 0
    packed_group: int = 0  # inputs that share a scale in 4-bit weights; 0: plain weights


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): what is cached is one latent and one rotary key a token.

    `query_rank` 0: queries come straight from the hidden state. `score_scale` multiplies q k^T. `interleaved`: the
    checkpoint keeps rotary dimensions in pairs (0, 1), (2, 3), … instead of (0, d / 2), ….
    """

    query_rank: int
    rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    score_scale: float
    interleaved: bool


@dataclass(frozen=True)
class ModelConfig:
    """A decoder: dense or a mixture of experts, with grouped-query or latent attention. Sizes in elements.

    `kv_heads` and `head_dim` are those of the cached keys: with latent attention one head of `rank + rotary_dim`, and the
    values are the first `rank` of it. `dtype` is what the weights were stored in, "" unsaid.
    """

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
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that the rotary embedding turns."""
        return self.latent.rotary_dim if self.latent else self.head_dim

    @property
    def cached_values(self) -> int:
        """Elements a token takes in one layer of the cache."""
        return self.head_dim if self.latent else 2 * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values one token takes over all layers."""
        return self.layers * self.cached_values * element_bytes


def read_target_config(
    raw: Mapping[str, Any], *, where: str, qk_norm: bool, head_dim: int | None = None
) -> ModelConfig:
    """The common reading of a decoder's config.json.

    `raw` may nest the language model under `text_config`; `qk_norm` is the family's, and so is the `head_dim` where the
    file does not say. Raises EngineError for missing keys, wrong values and unsupported features.
    """
    text = language_model(raw, where)
    text.need("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    text.need("max_position_embeddings")
    layers, named = text.whole("num_hidden_layers", high=MOST_LAYERS), text.texts("layer_types")
    kinds = set(named) - {"full_attention"}
    if text.flag("use_sliding_window") or "sliding_attention" in kinds:
        raise EngineError("sliding-window attention in the target is not supported", where=where)
    if kinds:
        raise EngineError(f"layers of the kind {', '.join(sorted(kinds))} are not supported", where=where)
    if named and len(named) != layers:
        raise text.wrong("layer_types", f"has {len(named)} entries for {layers} layers")
    if text.text("hidden_act", "silu") != "silu":
        raise EngineError(f"hidden_act '{text.text('hidden_act')}' is not supported, only silu", where=where)
    hidden, heads = text.whole("hidden_size"), text.whole("num_attention_heads")
    kv_heads = text.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise EngineError(f"{heads} attention heads do not divide over {kv_heads} key-value heads", where=where)
    head_dim = text.whole("head_dim", head_dim or max(1, hidden // heads))
    if head_dim % 2:
        raise text.wrong("head_dim", "is odd, and the rotary embedding turns pairs")
    rope, stated = read_rope(text), text.whole("max_position_embeddings", high=MOST_POSITIONS)
    # Configs differ in whether they state the length before YaRN or after it.
    reached = int(rope.original_max_positions * rope.factor) if rope.kind == "yarn" else 0
    return ModelConfig(
        architecture=architecture_name(raw),
        vocab_size=text.whole("vocab_size"),
        hidden_size=hidden,
        intermediate_size=text.whole("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=text.number("rms_norm_eps", 1e-6),
        max_position_embeddings=max(stated, reached),
        rope=rope,
        tie_word_embeddings=text.flag("tie_word_embeddings"),
        attention_bias=text.flag("attention_bias"),
        mlp_bias=text.flag("mlp_bias"),
        qk_norm=qk_norm,
        eos_token_ids=text.wholes("eos_token_id"),
        dtype=(text.text("dtype") or text.text("torch_dtype")).removeprefix("torch."),
    )


def language_model(raw: Mapping[str, Any], where: str) -> Fields:
    """The entries of the language model: models of several parts nest it under `text_config`."""
    nested = Fields(raw, where).table("text_config")
    return Fields({**raw, **nested.raw}, where)


def family_names(raw: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """What the config calls its architecture, most telling first: the nested language model's names before the outer."""
    outer, nested = Fields(raw, where), Fields(raw, where).table("text_config")
    named = (*nested.texts("architectures"), *nested.texts("model_type"), *outer.texts("architectures"))
    return named or outer.texts("model_type")


def architecture_name(raw: Mapping[str, Any]) -> str:
    """What config.json calls the architecture: the first of `architectures`, else `model_type`."""
    names = Fields(raw, "").texts("architectures") or language_model(raw, "").texts("architectures")
    return names[0] if names else Fields(raw, "").text("model_type", "unnamed")


def end_of_text_ids(folder: Path, config: ModelConfig) -> frozenset[int]:
    """Ids that end an answer: those of config.json, and those chat models name in generation_config.json."""
    path = folder / "generation_config.json"
    if not path.exists():
        return frozenset(config.eos_token_ids)
    try:
        named = Fields(read_json(path), str(path)).wholes("eos_token_id")
    except EngineError as error:
        raise EngineError(error.what.replace("config.json: ", "", 1), where=str(path), mend=error.mend) from error
    return frozenset((*config.eos_token_ids, *named))


def with_rope_scaling(config: ModelConfig, scaling: str, *, where: str) -> ModelConfig:
    """`config` under the setting `rope_scaling`: "" leaves it, "yarn:F" stretches an unscaled model F times.

    Raises EngineError for another form, for a model that is scaled already and for a stretch beyond LONGEST_CONTEXT.
    """
    if not scaling:
        return config
    kind, _, words = scaling.partition(":")
    trained = config.max_position_embeddings
    try:
        factor = float(words)
    except ValueError:
        factor = 0.0
    if kind != "yarn" or not 1.0 < factor < float("inf"):
        mend = f'write "yarn:F", where F times the model\'s {trained} positions are to be reached'
        raise EngineError(f'rope_scaling = "{scaling}" is not known', where=where, mend=mend)
    if config.rope.kind != "default":
        raise EngineError(f"rope_scaling: the model is scaled by {config.rope.kind} already", where=where)
    reached = int(trained * factor)
    if reached > LONGEST_CONTEXT:
        most = f'at most "yarn:{LONGEST_CONTEXT / trained:g}" for this model'
        raise EngineError(f"rope_scaling reaches {reached} positions, beyond {LONGEST_CONTEXT}", where=where, mend=most)
    return replace(config, rope=stretched(config.rope, factor, trained), max_position_embeddings=reached)


def factor_for(config: ModelConfig, context_length: int) -> str | None:
    """The `rope_scaling` that would let an unscaled model hold `context_length` tokens; None where none would."""
    if config.rope.kind != "default" or context_length > LONGEST_CONTEXT:
        return None
    factor = -(-context_length * 100 // config.max_position_embeddings) / 100  # two decimals, rounded up
    return f"yarn:{factor:g}"
