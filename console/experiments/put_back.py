"""Settings that a restarting playbook could not put back itself: its runner does, and where that died too, the console asks."""

from __future__ import annotations

import json
from typing import Any

from console.box.connection import Connection
from console.experiments.remote import RemoteRun

RESTORE_S = 4000.0  # two starts of a large model, and the way back


async def put_back(connection: Connection, run: RemoteRun) -> dict[str, Any] | None:
    """See that the settings of before the run serve again; a `warn` event saying how it went, None where nothing was owed."""
    if not await connection.exists(run.path("restore.json")):
        return None
    done = await connection.run(run.runner_argv("--restore"), timeout_s=RESTORE_S)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    said = json.loads(lines[-1]) if done.exit_status == 0 and lines else {"status": "unknown"}
    words = {
        "confirmed": "the run left other settings behind; the old ones serve again",
        "nothing": "the settings of before the run are in force",
        "changed": "somebody has changed the settings since the run, so they were left alone",
    }.get(
        said["status"], f"the settings of before the run could not be put back ({said['status']}): ddtree history tells"
    )
    return {"type": "warn", "code": "restored", "msg": words, "evidence": said}
