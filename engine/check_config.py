"""`python -m engine serve --config FILE --check-config`: whether a settings file could serve, without serving.

Reads configs only, no weights, and touches nothing that a running engine uses. The memory that counts is the machine's
whole, since what runs now gives its own back first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil

from engine.config import leaf_settings, load_config
from engine.drafter_config import read_drafter_config
from engine.runtime import resolve_dtype, settings_in_force, target_config
from engine.server.auth import read_api_key, require_key_off_loopback


def check_config(path: str | Path) -> dict[str, Any]:
    """The settings that would be in force under the file, leaf name -> value. Raises EngineError as a start would."""
    config = load_config(path)
    require_key_off_loopback(config.server.host, read_api_key(config.server.api_key_file))
    target = target_config(config)
    drafter = read_drafter_config(Path(config.model.drafter), target) if config.model.drafter else None
    dtype = resolve_dtype(config.model.dtype, target)
    force = settings_in_force(config, target, drafter, dtype, psutil.virtual_memory().total)
    return leaf_settings(force)
