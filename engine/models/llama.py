"""The Llama family: no query or key norm, biases only where the config says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import EngineError
from engine.models.config import ModelConfig, language_model, read_target_config

ARCHITECTURES = ("LlamaForCausalLM", "llama")


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """ModelConfig of a Llama config.json. Llama has no sliding window; a folder that names one is another model."""
    config, text = read_target_config(raw, where=where, qk_norm=False), language_model(raw, where)
    if text.has("sliding_window") and not text.has("use_sliding_window"):
        window = text.whole("sliding_window")
        if window < config.max_position_embeddings:
            raise EngineError(
                f"sliding-window attention in the target is not supported (of {window} tokens)", where=where
            )
    return config
