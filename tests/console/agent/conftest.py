"""The installation that a transaction works on, with its engine serving."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from installation import Installation


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    made.start()
    yield made
    subprocess.run(made.verb("stop", "--wait", "20"), capture_output=True)
