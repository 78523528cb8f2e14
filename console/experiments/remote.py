"""Where a run lies on the box, what it measures there, and how its folder is asked about: values and argument lists."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.box.connection import Connection


@dataclass(frozen=True)
class EngineUnderTest:
    """The engine that a run measures, as the console knows it before it starts."""

    port: int
    unit: str
    kind: str = "bundled"
    model: str | None = None
    max_context: int | None = None  # tokens
    block_size: int | None = None
    page_size: int | None = None
    api_key_file: str | None = None  # on the box; the key itself never passes through here

    @property
    def facts(self) -> dict[str, int | float]:
        """What a header's expressions may name."""
        known = {"max_context": self.max_context, "block_size": self.block_size, "page_size": self.page_size}
        return {f"engine.{name}": value for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class RemoteRun:
    """One run's folder on the box. `python` is the interpreter there that runs the runner and the script."""

    run_id: str
    folder: str
    python: str = "python3"

    def path(self, name: str) -> str:
        """A file of the folder."""
        return f"{self.folder}/{name}"

    def runner_argv(self, *words: str) -> list[str]:
        """`runner.py` on this folder."""
        return [self.python, "-I", "-B", self.path("runner.py"), self.folder, *words]


def new_run_id(playbook_id: str, now: datetime) -> str:
    """A name that sorts by time and can be a unit's: `20261129-184512-context_curve-3fa9`."""
    return f"{now:%Y%m%d-%H%M%S}-{playbook_id}-{secrets.token_hex(2)}"


def runs_folder(connection: Connection) -> str:
    """The folder of all runs of this login on the box (contracts.md section 8)."""
    return f"{connection.home}/.local/state/ddtree/runs"


def remote_run(connection: Connection, run_id: str, python: str = "python3") -> RemoteRun:
    """The run called `run_id` on this box, whether it is there or not."""
    return RemoteRun(run_id, f"{runs_folder(connection)}/{run_id}", python)


IDLE_WAIT_S = 20
"""A request that is on its way when a run starts gets this long to end; an engine at work for longer is busy."""


def environment(run_id: str, engine: EngineUnderTest, max_seconds: int, seed: int) -> Mapping[str, Any]:
    """`env.json`: what the script is told (measurement.md 4.4), strings all of them. No secret stands in it."""
    told = {
        "DDT_API": "1",
        "DDT_RUN_ID": run_id,
        "DDT_BASE_URL": f"http://127.0.0.1:{engine.port}",
        "DDT_MODEL": engine.model,
        "DDT_ENGINE": engine.kind,
        "DDT_UNIT": engine.unit,
        "DDT_PARAMS": "params.json",
        "DDT_SEED": str(seed),
        "DDT_MAX_SECONDS": str(max_seconds),
        "DDT_IDLE_WAIT_S": str(IDLE_WAIT_S),
        "DDT_API_KEY_FILE": engine.api_key_file,
    }
    return {name: value for name, value in told.items() if value}
