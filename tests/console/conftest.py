"""The `ddtree` command as an operator meets it: a process with a home of its own, its two outputs and its status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Ddtree = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ddtree(tmp_path: Path) -> Ddtree:
    """Run `ddtree` with the given words, in an empty home, without a terminal."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "SSH_"))}
    environ = {**kept, "HOME": str(home)}

    def run(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "console.cli", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**environ, **(env or {})},
            check=False,
        )

    return run
