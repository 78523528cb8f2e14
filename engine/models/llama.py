"""The Llama family: no query or key norm, biases only where the config says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.models.config import ModelConfig, read_target_config

ARCHITECTURES = ("LlamaForCausalLM", "llama")


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """ModelConfig of a Llama config.json."""
    return read_target_config(raw, where=where, qk_norm=False)
