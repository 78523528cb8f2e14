"""`python -m engine capacity`: KV bytes per token, the pool it makes, and what fits into this machine's memory."""

from __future__ import annotations

import argparse
from pathlib import Path

import psutil

from engine.drafter_config import read_drafter_config
from engine.options import config_from_options
from engine.runtime import kv_bytes_per_token, resolve_dtype, settings_in_force, target_config


def main(options: argparse.Namespace) -> dict[str, object]:
    """The figures, from the config files alone: no weight is read.

    Raises EngineError where the context does not fit the model or the pool.
    """
    config = config_from_options(options)
    target = target_config(config)
    drafter = read_drafter_config(Path(options.drafter), target) if options.drafter else None
    dtype = resolve_dtype(config.model.dtype, target)
    memory = psutil.virtual_memory().available
    force = settings_in_force(config, target, drafter, dtype, memory)
    token_bytes = kv_bytes_per_token(target, drafter, dtype)
    page_size = force.kv.page_size
    return {
        "dtype": force.model.dtype,
        "kv_bytes_per_token": token_bytes,
        "page_size": page_size,
        "pages": force.kv.pages,
        "pool_tokens": force.kv.pages * page_size,
        "pool_bytes": force.kv.pages * page_size * token_bytes,
        "context_length": force.context.context_length,
        "max_position_embeddings": target.max_position_embeddings,
        "memory_available_bytes": memory,
    }
