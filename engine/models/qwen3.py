"""The dense Qwen3 family: an RMS norm over each query and key head before the rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.models.config import ModelConfig, read_target_config

ARCHITECTURES = ("Qwen3ForCausalLM", "qwen3")


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """ModelConfig of a Qwen3 config.json. Qwen3 states its head size; unsaid, it is 128."""
    return read_target_config(raw, where=where, qk_norm=True, head_dim=128)
