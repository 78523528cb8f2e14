"""How many tokens fit: KV bytes a token from a Hugging Face config, pages, and the sentences an operator reads.

Pure arithmetic. What the running engine reports of its own pool is put beside it, never mixed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from console.analysis.kv_bytes import ELEMENT_BYTES, KvWidth, dtype_of, kv_width, notes_on, text_config
from console.analysis.kv_layers import LARGEST, WHERE, KvLayers, kv_layers, whole
from console.errors import UsageError


@dataclass(frozen=True)
class KvShape:
    """What one token leaves in the KV cache (see console.analysis.kv_bytes), and how far the model's positions reach."""

    architecture: str
    layers: KvLayers
    width: KvWidth
    max_position_embeddings: int  # tokens the model's config supports, RoPE scaling included
    dtype: str  # of the weights, as the config names it
    dtype_known: bool = True
    """Whether the config names the type of its weights."""
    stated_positions: int | None = None
    """What the config itself states, where its RoPE scaling names an original length and reaches further than that."""

    def bytes_per_token(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """KV bytes one token takes on one device, in all layers that keep one."""
        layers = self.layers.every + self.layers.windowed
        return layers * self.width.elements(tensor_parallel) * element_bytes

    def notes(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[str, ...]:
        """What has to be known beside the bytes."""
        unnamed = () if self.dtype_known else (f"the config names no dtype: counted as {self.dtype}",)
        return (*unnamed, *notes_on(self.layers, self.width, element_bytes, tensor_parallel))


def kv_shape(config: Any) -> KvShape:
    """The KV shape of a model's `config.json`, in old (`rope_scaling`) or new (`rope_parameters`) form, or nested in
    `text_config`; a key that is missing or not known is a `UsageError` that names it."""
    text = text_config(config)
    architectures = config.get("architectures") or text.get("architectures") or "unknown"
    dtype = dtype_of(config, text)
    layers, width = kv_layers(text), kv_width(text)
    return KvShape(
        architecture=str(architectures[0] if isinstance(architectures, list) else architectures),
        layers=layers,
        width=width,
        max_position_embeddings=_longest_context(text),
        dtype=dtype or "bfloat16",
        dtype_known=dtype is not None,
        stated_positions=_stated_positions(text),
    )


def _rope(text: Mapping[str, Any]) -> tuple[str | None, float | None, float | None]:
    """(kind, factor, original length) of the RoPE scaling, each None where it is not told."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise UsageError(f"rope_scaling must be an object, not {rope!r}", where=WHERE)
    figures = []
    for key in ("factor", "original_max_position_embeddings"):
        value = rope.get(key)
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST
        if value is not None and not good:
            raise UsageError(f"{key} of the RoPE scaling is {value!r}, no number above 0", where=WHERE)
        figures.append(value)
    return rope.get("rope_type", rope.get("type")), figures[0], figures[1]


def _longest_context(text: Mapping[str, Any]) -> int:
    """Tokens the positions reach. A scaled RoPE that names its original length reaches factor times that length, or
    what the config states where that is more (configs differ in whether they state the length before or after)."""
    stated = whole(text, "max_position_embeddings")
    kind, factor, original = _rope(text)
    if kind == "yarn" and factor:
        return max(stated, int((original or stated) * factor)) if original else int(stated * factor)
    return stated


def _stated_positions(text: Mapping[str, Any]) -> int | None:
    """See KvShape.stated_positions."""
    stated = whole(text, "max_position_embeddings")
    return stated if _rope(text)[2] and _longest_context(text) > stated else None


def stretched(shape: KvShape, scaling: str) -> KvShape:
    """`shape` under the setting `rope_scaling`: "yarn:F" stretches the positions F times. UsageError for another form."""
    if not scaling:
        return shape
    kind, _, words = scaling.partition(":")
    try:
        factor = float(words)
    except ValueError:
        factor = 0.0
    if kind != "yarn" or not 1.0 < factor < 1e6:
        raise UsageError(f"{scaling!r} is not known", where="rope_scaling", mend="write yarn:F, such as yarn:4")
    return replace(shape, max_position_embeddings=int(shape.max_position_embeddings * factor))


@dataclass(frozen=True)
class Capacity:
    """A pool and what fits in it. Bytes are of one device."""

    bytes_per_token: int
    page_size: int  # tokens
    pages: int
    context_length: int  # tokens of the longest request

    @property
    def tokens(self) -> int:
        """Tokens the whole pool holds."""
        return self.pages * self.page_size

    @property
    def pages_per_request(self) -> int:
        """Pages one request of full length takes: the last page is paid for whole."""
        return ceil(self.context_length / self.page_size)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool on one device."""
        return self.tokens * self.bytes_per_token

    @property
    def full_length_requests(self) -> float:
        """Requests of full length that fit at once; below 1 the context length cannot be reached."""
        return self.pages / self.pages_per_request

    @property
    def fits(self) -> bool:
        """Whether one request of full length fits."""
        return self.pages >= self.pages_per_request

    def sentences(self) -> tuple[str, ...]:
        """The arithmetic in words, as the Service screen and `--dry-run` show it."""
        need = self.pages_per_request * self.page_size * self.bytes_per_token
        verdict = f"{self.full_length_requests:.1f} requests at full length" if self.fits else "does not fit"
        return (
            f"{self.context_length:,} tokens × {self.bytes_per_token:,} B = {in_words(need)} of {in_words(self.pool_bytes)}"
            f" in the pool → {verdict}",
            f"{self.pages:,} pages of {self.page_size} tokens = {self.tokens:,} tokens",
        )

    def to_json(self) -> dict[str, Any]:
        """The object `ddtree capacity --json` prints."""
        return {
            "bytes_per_token": self.bytes_per_token,
            "page_size": self.page_size,
            "pages": self.pages,
            "pages_per_request": self.pages_per_request,
            "pool_bytes": self.pool_bytes,
            "tokens": self.tokens,
            "context_length": self.context_length,
            "full_length_requests": round(self.full_length_requests, 3),
            "fits": self.fits,
        }


def pool_of(bytes_per_token: int, page_size: int, memory_bytes: int, context_length: int) -> Capacity:
    """The pool that `memory_bytes` of one device hold, in whole pages."""
    return Capacity(bytes_per_token, page_size, memory_bytes // (bytes_per_token * page_size), context_length)


def element_bytes(kv_dtype: str, model_dtype: str) -> int:
    """Bytes of one KV element; `auto` follows the weights, and an unknown weight type counts as bfloat16."""
    return ELEMENT_BYTES.get(model_dtype if kv_dtype == "auto" else kv_dtype, 2)


def check_context(context_length: int, shape: KvShape, *, pages: int, page_size: int) -> None:
    """Refuse a context length that cannot be reached, with both numbers.

    Args:
        context_length: tokens asked for; 0 stands for the model's own maximum.
        shape: of the target model.
        pages: pages of the pool where they are fixed, else 0.
        page_size: tokens a page.

    Raises:
        UsageError: above what the model supports, or above what a fixed pool holds.
    """
    if context_length > shape.max_position_embeddings:
        raise UsageError(
            f"{context_length} is above the model's {shape.max_position_embeddings}",
            where="context_length",
            mend=f"use {shape.max_position_embeddings} or less",
        )
    wanted = context_length or shape.max_position_embeddings
    if pages and wanted > pages * page_size:
        raise UsageError(
            f"{wanted} needs {ceil(wanted / page_size)} pages of {page_size}, the pool has {pages} ({pages * page_size} tokens)",
            where="context_length",
            mend=f"use {pages * page_size} or less, or pages={ceil(wanted / page_size)}",
        )


def in_words(count: int) -> str:
    """Bytes in decimal units, three digits: `14.1 GB`, `345 kB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
