"""Stop a run for certain: the script asked, then made to, and the engine seen to work for nobody any more."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from console.box.connection import Connection
from console.errors import OperatorError, UsageError
from console.experiments.put_back import RESTORE_S
from console.experiments.remote import EngineUnderTest, RemoteRun

CANCEL_S = 40.0  # the runner's own patience is 10 s, and a slow link takes its time
IDLE_S = 15.0
POLL_S = 0.2
TIMES = httpx.Timeout(5.0, connect=2.0)


@dataclass(frozen=True)
class Cancelled:
    """What exit.json says, and the requests the engine still runs (0 as far as this run goes; None: it does not say)."""

    exit: dict[str, Any]
    running: int | None


async def cancel(connection: Connection, run: RemoteRun, engine: EngineUnderTest) -> Cancelled:
    """Ask the run to stop and see to it; then wait until the engine shows no running request.

    Raises OperatorError when there is no such run, when it could not be ended, or when the engine goes on working.
    """
    if not await connection.exists(run.path("env.json")):
        raise UsageError("no such run on the box", where=run.run_id, mend="ddtree runs lists them")
    owes = await connection.exists(run.path("restore.json"))  # settings that have to come back first
    done = await connection.run(run.runner_argv("--cancel"), timeout_s=RESTORE_S if owes else CANCEL_S)
    ended = json.loads(done.stdout) if done.exit_status == 0 else None
    if not isinstance(ended, dict):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OperatorError(f"the run did not end: {said[-1] if said else 'no answer'}", where=run.run_id)
    return Cancelled(ended, await _idle(connection, run, engine))


async def _idle(connection: Connection, run: RemoteRun, engine: EngineUnderTest) -> int | None:
    """0 once nothing runs; None where the engine does not tell."""
    deadline = time.monotonic() + IDLE_S
    async with httpx.AsyncClient(trust_env=False, timeout=TIMES) as client:
        while True:
            running = await _running(client, connection, engine.port)
            if running is None or running == 0:
                return running
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"the run has ended, and the engine still shows {running} running",
                    where=run.run_id,
                    mend="another client may be asking it",
                )
            await asyncio.sleep(POLL_S)


async def _running(client: httpx.AsyncClient, connection: Connection, port: int) -> int | None:
    try:
        answer = await client.get(f"http://127.0.0.1:{await connection.forward(port)}/server_info")
        requests = answer.json().get("requests") if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return int(requests["running"]) if isinstance(requests, dict) and "running" in requests else None
