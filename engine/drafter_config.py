"""DrafterConfig: a DFlash folder's config.json, checked against the target it is to draft for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.models.config import ModelConfig, Rope, read_json, read_rope


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
    where = str(folder)
    raw = read_json(folder / "config.json")
    own = raw.get("dflash_config") or {}
    _refuse_other_kinds(raw, own, where)
    sizes = _sizes(raw, where)
    _must_equal("hidden size", sizes["hidden_size"], target.hidden_size, where)
    _must_equal("vocabulary", sizes["vocab_size"], target.vocab_size, where)
    if isinstance(raw.get("num_target_layers"), int):
        _must_equal("number of target layers", raw["num_target_layers"], target.layers, where)
    if raw.get("hidden_act", "silu") != "silu":
        raise EngineError(f"hidden_act {raw['hidden_act']!r} is not supported, only silu", where=where)
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    kv_heads = raw.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise EngineError(f"{heads} attention heads do not divide over {kv_heads} key-value heads", where=where)
    taps = tuple(own.get("target_layer_ids") or default_target_layers(target.layers, layers))
    wrong = [tap for tap in taps if not isinstance(tap, int) or not 0 <= tap < target.layers]
    if wrong:
        outside = f"taps target layers {', '.join(map(str, wrong))}, outside 0-{target.layers - 1} of the target"
        raise EngineError(f"the drafter {outside}", where=where)
    return DrafterConfig(
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=raw.get("head_dim") or sizes["hidden_size"] // heads,
        rms_norm_eps=float(raw.get("rms_norm_eps") or 1e-6),
        rope=read_rope(raw, where=where),
        vocab_size=sizes["vocab_size"],
        attention_bias=bool(raw.get("attention_bias", False)),
        block_size=_block_size(raw, own, where),
        mask_token_id=_mask_token_id(raw, own, target.vocab_size, where),
        target_layer_ids=taps,
        windows=_windows(raw, layers, where),
        causal_windows=own.get("sliding_window_non_causal") is False,
    )


def default_target_layers(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """The taps of a drafter that names none: evenly from layer 1 to the third from last (half to even)."""
    if draft_layers == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (draft_layers - 1)) for i in range(draft_layers))


def _refuse_other_kinds(raw: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    mend = "the engine runs DFlash drafters"
    names = " ".join(map(str, [*(raw.get("architectures") or ()), raw.get("speculators_model_type", "")])).lower()
    found = next((kind for word, kind in _KIND_BY_NAME.items() if word in names), None)
    if found:
        raise EngineError(f"a {found} drafter is not supported", where=where, mend=mend)
    both = {**raw, **own}
    for key, kind in _KIND_BY_KEY.items():
        if both.get(key) not in (None, False):
            raise EngineError(f"a {kind} drafter is not supported ({key} is set)", where=where, mend=mend)
    if "speculators_model_type" in raw:
        raise EngineError("a drafter in the speculators format is not supported", where=where, mend=mend)
    for key, neutral in _NEUTRAL.items():
        if both.get(key) not in (None, neutral):
            raise EngineError(f"{key} = {both[key]} is not supported in a drafter", where=where)
    if "DFlashDraftModel" not in (raw.get("architectures") or ()) and "dflash_config" not in raw:
        raise EngineError("this is no DFlash drafter (config.json has no dflash_config)", where=where, mend=mend)
    unknown = sorted(own.keys() - _OWN_KEYS - _KIND_BY_KEY.keys() - _NEUTRAL.keys())
    if unknown:
        raise EngineError(f"dflash_config has keys the engine does not know: {', '.join(unknown)}", where=where)


def _sizes(raw: Mapping[str, Any], where: str) -> dict[str, int]:
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    missing = [key for key in keys if not isinstance(raw.get(key), int)]
    if missing:
        raise EngineError(f"config.json lacks {', '.join(missing)}", where=where)
    return {key: raw[key] for key in keys}


def _must_equal(what: str, drafter: int, target: int, where: str) -> None:
    if drafter != target:
        raise EngineError(f"the drafter's {what} is {drafter}, the target's is {target}", where=where)


def _block_size(raw: Mapping[str, Any], own: Mapping[str, Any], where: str) -> int:
    size = own.get("block_size", raw.get("block_size"))
    if not isinstance(size, int) or size < 2:
        raise EngineError(f"block_size is {size}, and a block holds at least 2 tokens", where=where)
    return size


def _mask_token_id(raw: Mapping[str, Any], own: Mapping[str, Any], vocab: int, where: str) -> int:
    token = own.get("mask_token_id", raw.get("mask_token_id"))
    if not isinstance(token, int):
        raise EngineError("dflash_config names no mask_token_id", where=where)
    if not 0 <= token < vocab:
        raise EngineError(f"mask_token_id {token} lies outside the vocabulary of {vocab}", where=where)
    return token


def _windows(raw: Mapping[str, Any], layers: int, where: str) -> tuple[int, ...]:
    kinds = raw.get("layer_types") or ["full_attention"] * layers
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if len(kinds) != layers or unknown:
        said = f"unknown {', '.join(unknown)}" if unknown else f"{len(kinds)} entries for {layers} layers"
        raise EngineError(f"layer_types: {said}", where=where)
    if "sliding_attention" not in kinds:
        return (0,) * layers
    window = raw.get("sliding_window")
    if not isinstance(window, int) or window <= 0:
        raise EngineError(f"layer_types has sliding_attention, but sliding_window is {window}", where=where)
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
