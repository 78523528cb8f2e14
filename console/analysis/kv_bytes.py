"""What one token leaves in a model's KV cache, from the model's Hugging Face config. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from console.analysis.kv_layers import WHERE, Config, KvLayers, whole
from console.errors import UsageError

ELEMENT_BYTES: Mapping[str, int] = {
    **{"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4, "fp8": 1},
    **{"float8_e4m3fn": 1, "float8_e4m3": 1, "float8_e5m2": 1},
}
_NESTS = ("text_config", "llm_config", "language_config")
"""Where models of several kinds of input keep the text model's config."""


@dataclass(frozen=True)
class KvWidth:
    """What one layer keeps of a token.

    Grouped-query attention keeps a key of `key_dim` and a value of `value_dim` for each of `heads`; multi-head latent
    attention (`latent_dim` set: `kv_lora_rank + qk_rope_head_dim`) keeps one vector that all heads share.
    """

    heads: int
    key_dim: int
    value_dim: int
    latent_dim: int | None = None
    index_dim: int = 0  # of a key for choosing what to attend to, kept in a type of the engine's own and not counted

    def elements(self, tensor_parallel: int = 1) -> int:
        """Elements a layer and token on one device.

        Heads are split over the devices, and repeated where there are fewer heads than devices; a latent vector is
        the same for every head, so each device holds all of it.
        """
        if self.latent_dim is not None:
            return self.latent_dim
        return ceil(self.heads / tensor_parallel) * (self.key_dim + self.value_dim)


def text_config(config: Any) -> Config:
    """The text model's own config, which models of several kinds of input nest. UsageError for what is no config."""
    if not isinstance(config, Mapping):
        raise UsageError("must hold one JSON object", where=WHERE, mend="is this a model folder?")
    nest = next((key for key in _NESTS if config.get(key) is not None), None)
    text = config if nest is None else config[nest]
    if not isinstance(text, Mapping):
        raise UsageError(f"{nest} must be an object", where=WHERE)
    if config.get("is_encoder_decoder") or text.get("is_encoder_decoder"):
        raise UsageError(
            "is_encoder_decoder: such a model keeps more than its own tokens, which is not known", where=WHERE
        )
    return text


def kv_width(text: Config) -> KvWidth:
    """What a layer keeps; a key that is missing or no whole number is a UsageError that names it."""
    if text.get("kv_lora_rank") is not None and text.get("use_mla") is not False:
        latent = whole(text, "kv_lora_rank") + whole(text, "qk_rope_head_dim")
        return KvWidth(1, latent, 0, latent, whole(text, "index_head_dim") if text.get("index_head_dim") else 0)
    heads = _kv_heads(text)
    key_dim = _head_dim(text)
    return KvWidth(heads, key_dim, whole(text, "v_head_dim") if text.get("v_head_dim") is not None else key_dim)


def _kv_heads(text: Config) -> int:
    if text.get("num_key_value_heads") is not None:
        return whole(text, "num_key_value_heads")
    if text.get("num_kv_heads") is not None and (text.get("new_decoder_architecture") or not text.get("multi_query")):
        return whole(text, "num_kv_heads")  # Falcon
    return 1 if text.get("multi_query") else whole(text, "num_attention_heads")


def _head_dim(text: Config) -> int:
    if text.get("head_dim") is not None:
        return whole(text, "head_dim")
    heads = whole(text, "num_attention_heads")
    hidden = whole(text, "hidden_size")
    if hidden % heads:
        raise UsageError(f"head_dim is missing, and hidden_size {hidden} is no multiple of {heads} heads", where=WHERE)
    return hidden // heads


def dtype_of(config: Config, text: Config) -> str | None:
    """The weights' type as the config names it; None where it names none."""
    named = [one.get(key) for one in (text, config) for key in ("dtype", "torch_dtype")]
    found = next((name for name in named if name is not None), None)
    if found is None:
        return None
    if not isinstance(found, str):
        raise UsageError(f"dtype is {found!r}, no name of a type", where=WHERE)
    return found.removeprefix("torch.")


def notes_on(layers: KvLayers, width: KvWidth, element_bytes: int, tensor_parallel: int = 1) -> tuple[str, ...]:
    """What the bytes a token leave out, or count although an engine may free it."""
    notes = []
    if layers.windowed:
        beyond = layers.every * width.elements(tensor_parallel) * element_bytes
        notes.append(
            f"{layers.windowed} of {layers.every + layers.windowed} layers see the last {layers.window:,} tokens alone: where "
            f"the engine frees what they no longer see, a token beyond those takes {beyond:,} B"
        )
    if layers.stateful:
        notes.append(
            f"{layers.stateful} layers keep nothing for each token; a state of fixed size a request is not counted"
        )
    if width.index_dim:
        notes.append(f"each layer keeps an index key of {width.index_dim} values as well, which is not counted")
    return tuple(notes)
