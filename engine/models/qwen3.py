"""The dense Qwen3 family: an RMS norm over each query and key head before the rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.models.config import ModelConfig, language_model, read_target_config

ARCHITECTURES = ("Qwen3ForCausalLM", "qwen3")


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """ModelConfig of a Qwen3 config.json. Qwen3 states its head size; unsaid, it is 128."""
    text = language_model(raw)
    return read_target_config({**text, "head_dim": text.get("head_dim") or 128}, where=where, qk_norm=True)
