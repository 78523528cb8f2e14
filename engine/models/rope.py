"""Rope: the rotary embedding of a config.json, its frequencies and its amplitude, YaRN included."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from engine.errors import EngineError
from engine.models.fields import Fields
from kernels.rope import rope_frequencies, rope_tables


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: base `theta` and how its frequencies are scaled: "linear" by `factor`, Llama 3's bands, or YaRN.

    `amplitude` multiplies cos and sin (YaRN); `score_factor` multiplies attention scores (YaRN in DeepSeek's models).
    """

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    amplitude: float = 1.0
    score_factor: float = 1.0


AmplitudeRule = Literal["ratio", "plain"]
"""How YaRN's amplitude follows from the config: targets take the ratio of `mscale` and `mscale_all_dim` where both are
given; drafters were trained with the plain rule, which knows neither. One that is written down holds for both."""


def read_rope(config: Fields, *, amplitude_rule: AmplitudeRule = "ratio") -> Rope:
    """The rotary embedding of a config: `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

    Raises EngineError where both are there and say different things: which one is meant cannot be told.
    """
    newer, older = config.table("rope_parameters"), config.table("rope_scaling")
    if not (newer.raw and older.raw):
        return _read(config, newer if newer.raw else older, amplitude_rule)
    shared = {key: newer.raw[key] for key in ("rope_theta",) if newer.has(key) and not config.has(key)}
    rope = _read(config, newer, amplitude_rule)
    if rope != _read(config, Fields({**shared, **older.raw}, older.where, older.inside), amplitude_rule):
        mend = "keep the one that is meant"
        raise EngineError("config.json: rope_parameters and rope_scaling differ", where=config.where, mend=mend)
    return rope


def _read(config: Fields, scaling: Fields, amplitude_rule: AmplitudeRule) -> Rope:
    if scaling.has("full_attention"):  # one table for each kind of layer; this is the kind that is run here
        scaling = scaling.table("full_attention")
    place = scaling if scaling.has("rope_theta") else config
    theta = place.number("rope_theta", 10000.0, above=1.0)
    kind = scaling.text("rope_type") or scaling.text("type") or "default"
    for place in (scaling, config):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise EngineError("partial rotary embeddings are not supported", where=config.where)
    if kind == "default":
        return Rope(theta)
    needed = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ()}
    if kind not in needed:
        mend = "default, linear, llama3 and yarn are"
        raise EngineError(f"rope scaling '{kind}' is not supported", where=config.where, mend=mend)
    missing = [key for key in needed[kind] if not scaling.has(key)]
    if missing:
        raise EngineError(f"rope scaling '{kind}' lacks {', '.join(missing)}", where=config.where)
    if kind == "linear":
        return Rope(theta, "linear", factor=scaling.number("factor"))
    trained = _trained_positions(config, scaling)
    if kind == "llama3":
        if scaling.number("high_freq_factor") <= scaling.number("low_freq_factor"):
            raise scaling.wrong("high_freq_factor", "is not above low_freq_factor")
        return Rope(
            theta,
            "llama3",
            factor=scaling.number("factor"),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
            original_max_positions=trained,
        )
    return _yarn(config, scaling, theta, trained, amplitude_rule)


def _trained_positions(config: Fields, scaling: Fields) -> int:
    """The context before it was stretched. Beside the table it goes before the one in it, as in `transformers`."""
    key = "original_max_position_embeddings"
    for place in (config, scaling):
        if place.has(key):
            return place.whole(key)
    return config.whole("max_position_embeddings")


def _yarn(config: Fields, scaling: Fields, theta: float, trained: int, rule: AmplitudeRule) -> Rope:
    """YaRN; without a factor it is what stretches the trained context to `max_position_embeddings`."""
    factor = (
        scaling.number("factor", None) if scaling.has("factor") else config.whole("max_position_embeddings") / trained
    )
    mscale, all_dim = (scaling.number(key, 0.0, above=-1.0) for key in ("mscale", "mscale_all_dim"))
    if scaling.has("attention_factor"):
        amplitude = scaling.number("attention_factor")
    elif rule == "ratio" and mscale and all_dim:
        amplitude = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim)
    else:
        amplitude = yarn_magnitude(factor)
    return Rope(
        theta,
        "yarn",
        factor=factor,
        original_max_positions=trained,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", True),
        amplitude=amplitude,
        score_factor=yarn_magnitude(factor, all_dim) ** 2 if all_dim else 1.0,
    )


def stretched(rope: Rope, factor: float, trained: int) -> Rope:
    """An unscaled embedding stretched by YaRN from `trained` positions to `factor` times as many."""
    return Rope(rope.theta, "yarn", factor=factor, original_max_positions=trained, amplitude=yarn_magnitude(factor))


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """0.1 * weight * ln(factor) + 1: how much longer contexts raise the attention's temperature (YaRN, section 3.4)."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def frequencies(rope: Rope, dim: int) -> Tensor:
    """Radians a position turns each pair of `dim` dimensions, float32 [dim / 2]."""
    if rope.kind == "yarn":
        plain = rope_frequencies(dim, rope.theta)
        kept = 1.0 - yarn_ramp(rope, dim)
        return plain / rope.factor * (1.0 - kept) + plain * kept
    return rope_frequencies(
        dim,
        rope.theta,
        kind=rope.kind,
        factor=rope.factor,
        low_freq_factor=rope.low_freq_factor,
        high_freq_factor=rope.high_freq_factor,
        original_max_positions=rope.original_max_positions,
    )


def yarn_ramp(rope: Rope, dim: int) -> Tensor:
    """How far each pair is interpolated, float32 [dim / 2]: 0 keeps its frequency, 1 divides it by the factor."""
    low, high = yarn_range(rope, dim)
    pairs = torch.arange(dim // 2, dtype=torch.float32, device="cpu")
    return ((pairs - low) / ((high if high != low else high + 0.001) - low)).clamp(0.0, 1.0)


def yarn_range(rope: Rope, dim: int) -> tuple[float, float]:
    """Pairs below the first figure turn more than `beta_fast` times over the trained context, above the second less than
    `beta_slow` times."""

    def pair_of(turns: float) -> float:
        return dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dim - 1)


class RotaryTables(nn.Module):
    """cos and sin rows for given positions."""

    def __init__(self, rope: Rope, dim: int) -> None:
        super().__init__()
        self.frequencies = frequencies(rope, dim)
        self.amplitude = rope.amplitude

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions int64 [tokens] -> cos and signed sin, each [tokens, 1, dim]."""
        rates = self.frequencies.to(positions.device)
        if self.amplitude == 1.0:
            return rope_tables(positions, rates, dtype)
        cos, signed_sin = rope_tables(positions, rates, torch.float32)
        return (cos * self.amplitude).to(dtype), (signed_sin * self.amplitude).to(dtype)
