"""The kit on the path as a script would have it, and an engine for all tests that ask for one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from speaking_engine import PLAYBOOKS, serving

sys.path.insert(0, str(PLAYBOOKS))


@pytest.fixture(scope="session")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the engine answers."""
    with serving(tmp_path_factory.mktemp("engine")) as url:
        yield url
