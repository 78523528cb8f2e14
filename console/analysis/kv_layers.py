"""Which layers of a model keep a key and a value for every token, read from its Hugging Face config.

Most models keep them in every layer. Hybrids keep a state of fixed size in the others; a window's layer needs no more than
its last tokens; and some layers read what another layer kept. Each family has its own words for that, and words that
nobody here knows are refused by name: a wrong count is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.errors import UsageError

Config = Mapping[str, Any]
WHERE = "config.json"
LARGEST = 10**9

_EVERY = ("full_attention", "attention", "global_attention", "full")
_WINDOWED = ("sliding_attention", "chunked_attention", "local_attention", "sliding")
_STATES = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "ssm")
_OTHER_SHAPES = (
    *("swa_head_dim", "swa_num_key_value_heads", "global_head_dim", "num_global_key_value_heads"),  # two widths
    *(
        "block_configs",
        "num_attention_groups",
        "cla_share_factor",
    ),  # widths by layer, heads by another rule, shared caches
    *("hybrid_layer_ids", "mb_per_layer", "block_types", "_block_types"),  # hybrids that say it in code of their own
)
_OF_HYBRIDS = ("mamba", "ssm", "linear_attn", "linear_num", "rnn")


@dataclass(frozen=True)
class KvLayers:
    """Layers that keep every token while it may be seen: `every` see all of them, `windowed` the last `window` alone."""

    every: int
    windowed: int = 0
    window: int = 0  # tokens
    stateful: int = 0  # layers with a state of fixed size instead, which no figure here counts


def whole(config: Config, key: str) -> int:
    """A count that has to be there. UsageError names the key."""
    value = config.get(key)
    if value is None:
        raise UsageError(f"{key} is missing", where=WHERE, mend="is this a model folder?")
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise UsageError(f"{key} is {str(value)[:40]!r}, no whole number from 1 to {LARGEST:,}", where=WHERE)
    return value


def kv_layers(config: Config) -> KvLayers:
    """The layers of `config`, the text model's own. Raises UsageError naming what is missing or not known."""
    for key in _OTHER_SHAPES:
        if config.get(key) not in (None, False, [], 0, 1 if key == "cla_share_factor" else None):
            raise UsageError(f"{key} is not known: what a token takes in such layers cannot be told", where=WHERE)
    count = whole(config, "num_hidden_layers")
    kinds = _kinds(config, count)
    own = kinds[: count - _shared(config, count)]
    window = _window(config)
    windowed = own.count("windowed") if window is not None else 0
    return KvLayers(
        every=own.count("every") + own.count("windowed") - windowed,
        windowed=windowed,
        window=window or 0,
        stateful=own.count("state"),
    )


def _shared(config: Config, count: int) -> int:
    """Layers at the end that read what an earlier one kept."""
    shared = config.get("num_kv_shared_layers") or 0
    if isinstance(shared, bool) or not isinstance(shared, int) or not 0 <= shared < count:
        raise UsageError(f"num_kv_shared_layers is {shared!r}, of {count} layers", where=WHERE)
    return shared


def _window(config: Config) -> int | None:
    """Tokens that a window's layer sees; None where none is in force, or it is as long as the longest context."""
    for key in ("sliding_window", "attention_chunk_size"):
        value = config.get(key)
        if value is None or (key == "sliding_window" and config.get("use_sliding_window") is False):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{key} is {value!r}, no count of tokens", where=WHERE)
        longest = config.get("max_position_embeddings")
        return value if value and not (isinstance(longest, int) and value >= longest) else None
    return None


def _kinds(config: Config, count: int) -> list[str]:
    """`every`, `windowed` or `state` for each layer."""
    named = _named(config, count)
    if named is not None:
        return named
    attending = _attending(config, count)
    if attending is not None:
        return ["every" if layer in attending else "state" for layer in range(count)]
    hybrid = next((key for key in config if str(key).startswith(_OF_HYBRIDS) and config[key]), None)
    if hybrid is not None:
        raise UsageError(f"{hybrid} tells of a hybrid, and nothing which of its layers attend", where=WHERE)
    return _alternating(config, count)


def _named(config: Config, count: int) -> list[str] | None:
    """Where the config names each layer's kind."""
    names: Any = config.get("layer_types")
    if names is None:
        return None
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) < count:
        raise UsageError(f"layer_types does not name a kind for each of {count} layers", where=WHERE)
    kinds = {
        **dict.fromkeys(_EVERY, "every"),
        **dict.fromkeys(_WINDOWED, "windowed"),
        **dict.fromkeys(_STATES, "state"),
    }
    for name in names[:count]:
        if not isinstance(name, str) or name not in kinds:
            raise UsageError(f"layer_types: {name!r} is not known", where=WHERE)
    return [kinds[name] for name in names[:count]]


def _attending(config: Config, count: int) -> set[int] | None:
    """The layers with attention, where the others have none; None where the config tells of no such."""
    layers = range(count)
    linear: Any = config.get("linear_attn_config")
    if isinstance(linear, Mapping) and "full_attn_layers" in linear:  # Kimi Linear, which counts from 1
        return {number - 1 for number in _numbers(linear["full_attn_layers"], "full_attn_layers", 1, count)}
    for key in ("attn_layer_indices", "full_attn_idxs"):  # Bamba, LFM2
        if config.get(key) is not None:
            return set(_numbers(config[key], key, 0, count - 1))
    flags: Any = config.get("attn_type_list")  # MiniMax: 1 attends, 0 is linear
    if flags is not None:
        flags = _numbers(flags, "attn_type_list", 0, 1)
        if len(flags) != count:
            raise UsageError(f"attn_type_list does not name a kind for each of {count} layers", where=WHERE)
        return {layer for layer in layers if flags[layer] == 1}
    pattern = config.get("hybrid_override_pattern")  # Nemotron-H: a letter a layer
    if pattern is not None:
        if not isinstance(pattern, str) or len(pattern) != count or set(pattern) - set("M*-E"):
            raise UsageError(f"hybrid_override_pattern does not name a kind for each of {count} layers", where=WHERE)
        return {layer for layer in layers if pattern[layer] == "*"}
    if config.get("full_attention_interval") is not None:  # Qwen3-Next
        interval = whole(config, "full_attention_interval")
        return {layer for layer in layers if (layer + 1) % interval == 0}
    if config.get("attn_layer_period") is not None:  # Jamba
        period, offset = whole(config, "attn_layer_period"), config.get("attn_layer_offset", 0)
        (offset,) = _numbers([offset], "attn_layer_offset", 0, count)
        return {layer for layer in layers if layer % period == offset % period}
    crossing: Any = config.get("cross_attention_layers")  # Llama 3.2 Vision: those keep the picture, not the text
    return None if not crossing else set(layers) - set(_numbers(crossing, "cross_attention_layers", 0, count - 1))


def _numbers(value: Any, key: str, least: int, most: int) -> list[int]:
    good = isinstance(value, list) and all(type(one) is int and least <= one <= most for one in value)
    if not good:
        raise UsageError(f"{key} must be a list of numbers from {least} to {most}", where=WHERE)
    return list(value)


def _alternating(config: Config, count: int) -> list[str]:
    """Where a window follows a rule; all layers have it unless the config tells of others."""
    interval: Any = config.get("sliding_window_pattern") or (2 if "gemma2" in str(config.get("model_type")) else None)
    if interval is not None:
        (interval,) = _numbers([interval], "sliding_window_pattern", 1, LARGEST)
        return ["every" if (layer + 1) % interval == 0 else "windowed" for layer in range(count)]
    first: Any = config.get("max_window_layers", 0) if config.get("use_sliding_window") else 0  # Qwen2
    (first,) = _numbers([first], "max_window_layers", 0, LARGEST)
    return ["every" if layer < first else "windowed" for layer in range(count)]
