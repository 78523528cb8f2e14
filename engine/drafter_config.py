"""DrafterConfig: a DFlash folder's config.json, checked against the target it is to draft for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.models.config import ModelConfig
from engine.models.fields import Fields, read_json
from engine.models.rope import Rope, read_rope


@dataclass(frozen=True)
class DrafterConfig:
    """A DFlash drafter. `target_layer_ids`: the target layers (from 0) whose output residual stream it reads.

    `block_size` counts the seed: a block drafts block_size - 1 tokens. `windows`: per draft layer, how many of the
    latest positions a query sees, 0 for all. `causal_windows`: windowed layers are causal inside the block.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    vocab_size: int
    attention_bias: bool
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    windows: tuple[int, ...]
    causal_windows: bool


_KIND_BY_NAME: Mapping[str, str] = {
    "dflash2": "DFlash2",
    "domino": "Domino",
    "dspark": "DSpark",
    "jetspec": "JetSpec",
    "eagle": "EAGLE",
}
"""What the architecture's name of another kind of drafter contains, in small letters."""

_KIND_BY_KEY: Mapping[str, str] = {
    "conv_kernel_size": "DFlash2",
    "conv_group_size": "DFlash2",
    "selector_rank": "DFlash2",
    "selector_top_k": "DFlash2",
    "projector_type": "Domino",
    "shift_label": "Domino",
    "pure_draft_prefix_len": "Domino",
    "gru_hidden_dim": "Domino",
    "emb_dim": "Domino",
    "markov_rank": "DSpark",
    "markov_head": "DSpark",
    "confidence_head": "DSpark",
    "causal_head": "JetSpec",
    "target_hidden_size": "JetSpec",
}
"""Keys that only another kind of drafter has: run as DFlash, it would draft badly without a word."""

_NEUTRAL: Mapping[str, Any] = {
    "output_multiplier": 1.0,
    "final_logit_softcapping": 0.0,
    "attention_sink_bias": False,
    "attention_value_scale": 1.0,
}
"""Variations of DFlash not supported here, and the value at which each is as good as absent."""
_OWN_KEYS = frozenset({"mask_token_id", "target_layer_ids", "mask_token", "block_size", "sliding_window_non_causal"})


def read_drafter_config(folder: Path, target: ModelConfig) -> DrafterConfig:
    """Read and check. Raises EngineError: not a DFlash drafter, or one that does not fit `target`."""
    config = Fields(read_json(folder / "config.json"), str(folder))
    own = config.table("dflash_config")
    _refuse_other_kinds(config, own)
    config.need("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    _must_equal("hidden size", config, "hidden_size", target.hidden_size)
    _must_equal("vocabulary", config, "vocab_size", target.vocab_size)
    if config.has("num_target_layers"):
        _must_equal("number of target layers", config, "num_target_layers", target.layers)
    if config.text("hidden_act", "silu") != "silu":
        raise EngineError(f"hidden_act '{config.text('hidden_act')}' is not supported, only silu", where=config.where)
    layers, heads = config.whole("num_hidden_layers"), config.whole("num_attention_heads")
    kv_heads = config.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise EngineError(f"{heads} attention heads do not divide over {kv_heads} key-value heads", where=config.where)
    head_dim = config.whole("head_dim", max(1, config.whole("hidden_size") // heads))
    if head_dim % 2:
        raise config.wrong("head_dim", "is odd, and the rotary embedding turns pairs")
    return DrafterConfig(
        hidden_size=config.whole("hidden_size"),
        intermediate_size=config.whole("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config, amplitude_rule="plain"),
        vocab_size=config.whole("vocab_size"),
        attention_bias=config.flag("attention_bias"),
        block_size=_block_size(config, own),
        mask_token_id=_mask_token_id(config, own, target.vocab_size),
        target_layer_ids=_taps(_place(config, own, "target_layer_ids"), target.layers, layers),
        windows=_windows(config, layers),
        causal_windows=not _place(config, own, "sliding_window_non_causal").flag("sliding_window_non_causal", True),
    )


def default_target_layers(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """The taps of a drafter that names none: evenly from layer 1 to the third from last (half to even)."""
    if draft_layers == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (draft_layers - 1)) for i in range(draft_layers))


def _refuse_other_kinds(config: Fields, own: Fields) -> None:
    where, mend = config.where, "the engine runs DFlash drafters"
    architectures = config.texts("architectures")
    names = " ".join((*architectures, config.text("speculators_model_type"))).lower()
    found = next((kind for word, kind in _KIND_BY_NAME.items() if word in names), None)
    if found:
        raise EngineError(f"a {found} drafter is not supported", where=where, mend=mend)
    both = {**config.raw, **own.raw}
    for key, kind in _KIND_BY_KEY.items():
        if both.get(key) not in (None, False):
            raise EngineError(f"a {kind} drafter is not supported ({key} is set)", where=where, mend=mend)
    if config.has("speculators_model_type"):
        raise EngineError("a drafter in the speculators format is not supported", where=where, mend=mend)
    for key, neutral in _NEUTRAL.items():
        if both.get(key) not in (None, neutral):
            raise EngineError(f"{key} = {both[key]} is not supported in a drafter", where=where)
    if "DFlashDraftModel" not in architectures and not config.has("dflash_config"):
        raise EngineError("this is no DFlash drafter (config.json has no dflash_config)", where=where, mend=mend)
    unknown = sorted(own.raw.keys() - _OWN_KEYS - _KIND_BY_KEY.keys() - _NEUTRAL.keys())
    if unknown:
        raise EngineError(f"dflash_config has keys the engine does not know: {', '.join(unknown)}", where=where)


def _place(config: Fields, own: Fields, key: str) -> Fields:
    """Where a key of DFlash's stands: in `dflash_config` or, as some write it, beside it."""
    return own if own.has(key) else config


def _must_equal(what: str, config: Fields, key: str, target: int) -> None:
    drafter = config.whole(key)
    if drafter != target:
        raise EngineError(f"the drafter's {what} is {drafter}, the target's is {target}", where=config.where)


def _taps(place: Fields, target_layers: int, draft_layers: int) -> tuple[int, ...]:
    taps = place.wholes("target_layer_ids", low=-target_layers) or default_target_layers(target_layers, draft_layers)
    wrong = [tap for tap in taps if not 0 <= tap < target_layers]
    if wrong:
        outside = f"taps target layers {', '.join(map(str, wrong))}, outside 0-{target_layers - 1} of the target"
        raise EngineError(f"the drafter {outside}", where=place.where)
    return taps


def _block_size(config: Fields, own: Fields) -> int:
    size = _place(config, own, "block_size").whole("block_size")
    if size < 2:
        raise EngineError(f"block_size is {size}, and a block holds at least 2 tokens", where=config.where)
    return size


def _mask_token_id(config: Fields, own: Fields, vocab: int) -> int:
    place = _place(config, own, "mask_token_id")
    if not place.has("mask_token_id"):
        raise EngineError("dflash_config names no mask_token_id", where=config.where)
    token = place.whole("mask_token_id", low=0)
    if token >= vocab:
        raise EngineError(f"mask_token_id {token} lies outside the vocabulary of {vocab}", where=config.where)
    return token


def _windows(config: Fields, layers: int) -> tuple[int, ...]:
    kinds = config.texts("layer_types") or ("full_attention",) * layers
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if len(kinds) != layers or unknown:
        said = f"unknown {', '.join(unknown)}" if unknown else f"{len(kinds)} entries for {layers} layers"
        raise EngineError(f"layer_types: {said}", where=config.where)
    if "sliding_attention" not in kinds:
        return (0,) * layers
    if not config.has("sliding_window"):
        raise EngineError("layer_types has sliding_attention, but sliding_window is None", where=config.where)
    window = config.whole("sliding_window", low=-1)
    if window <= 0:
        raise EngineError(f"layer_types has sliding_attention, but sliding_window is {window}", where=config.where)
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
