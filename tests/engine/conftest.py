"""The tiny target and drafter of tests/data/tiny-ddtree, loaded as the engine loads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, config_from_toml
from engine.runtime import Runtime, load_runtime

TINY = Path(__file__).parents[1] / "data" / "tiny-ddtree"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Matrices this small only lose by being shared out among threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    """Holds target/, drafter/ and expected.json."""
    return TINY


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What the DDTree authors' program produced from the tiny models."""
    found: dict[str, Any] = json.loads((TINY / "expected.json").read_text())
    return found


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., EngineConfig]:
    """An EngineConfig for the tiny models: `tiny_config(page_size=7, context_length=64, pages=0, drafter=True, prefixes=True)`.

    Without `prefixes` no page is kept for a later prompt: what a test computes, it computes itself.
    """

    def make(
        *,
        page_size: int = 16,
        context_length: int = 320,
        pages: int = 0,
        drafter: bool = True,
        prefixes: bool = False,
        running: int = 1,
    ) -> EngineConfig:
        drafter_line = f'drafter = "{TINY / "drafter"}"' if drafter else ""
        return config_from_toml(
            f'[model]\npath = "{TINY / "target"}"\n{drafter_line}\ndtype = "float32"\n'
            f"[context]\ncontext_length = {context_length}\n[kv]\npage_size = {page_size}\npages = {pages}\n"
            f"prefix_cache = {str(prefixes).lower()}\n[server]\nmax_running_requests = {running}\n"
        )

    return make


@pytest.fixture(scope="session")
def tiny(tiny_config: Callable[..., EngineConfig]) -> Callable[..., Runtime]:
    """A loaded runtime for the same arguments; equal arguments share one."""

    @cache
    def load(**arguments: Any) -> Runtime:
        return load_runtime(tiny_config(**arguments))

    return load
