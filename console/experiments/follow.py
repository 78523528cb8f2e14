"""Follow a run's events from any byte offset to its end, over any number of lost links."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from console.box.connection import Connection
from console.box.errors import LinkError, NoSuchFile
from console.errors import ExitCode, OperatorError
from console.experiments.events import EventReader
from console.experiments.remote import RemoteRun

POLL_S = 0.2
STALL_S = 15.0  # three times the script's heartbeat
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Batch:
    """Whole lines as they stand in the file, and their events."""

    lines: bytes
    events: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Ending:
    """How a run ended, as the box tells it: exit.json, or `lost` where nothing is left that could write one."""

    state: Literal["ended", "lost"]
    exit: dict[str, Any] | None = None


async def follow(connection: Connection, run: RemoteRun, reader: EventReader) -> AsyncIterator[Batch | Ending]:
    """Batches from `reader.offset` on, the Ending last. A lost link is waited out; the file is read on from where it was.

    A stalled run (no event for three heartbeats) gives a `warn` event of our own, which has no number.
    Raises OperatorError when there is no such run, LinkError when the connection is closed for good.
    """
    heard_s = time.monotonic()
    stalled = False
    while True:
        try:
            data = await _read(connection, run, reader)
            ended = None if data else await _exit(connection, run)
            if ended is not None:  # written after the script's last byte: what is there now is all there will be
                data = await _read(connection, run, reader)
                if not data:
                    yield Ending("ended", ended)
                    return
        except LinkError:
            await connection.link.wait_up()
            reader.restart()
            heard_s = time.monotonic()
            continue
        if data:
            heard_s, stalled = time.monotonic(), False
            lines, events = reader.feed(data)
            if lines:
                yield Batch(lines, tuple(events))
            continue
        if time.monotonic() - heard_s > STALL_S:
            state = await _state(connection, run)
            if state == "lost":
                yield Ending("lost")
                return
            if not stalled and state == "running":
                stalled = True
                message = f"no event for {STALL_S:.0f} s, and the script is still there"
                yield Batch(b"", ({"type": "warn", "code": "stalled", "msg": message, "evidence": {}},))
            heard_s = time.monotonic()
        await asyncio.sleep(POLL_S)


async def _read(connection: Connection, run: RemoteRun, reader: EventReader) -> bytes:
    try:
        return await connection.read(run.path("events.jsonl"), reader.offset + reader.waiting_bytes, PIECE_BYTES)
    except NoSuchFile:
        if not await connection.exists(run.path("env.json")):
            raise OperatorError("no such run on the box", where=run.run_id, exit_code=ExitCode.USAGE) from None
        return b""


async def _exit(connection: Connection, run: RemoteRun) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(await connection.read(run.path("exit.json")))
    except NoSuchFile:
        return None
    return found


async def _state(connection: Connection, run: RemoteRun) -> str:
    try:
        asked = await connection.run(run.runner_argv("--status"))
    except LinkError:
        return "unknown"
    return str(json.loads(asked.stdout)["state"]) if asked.exit_status == 0 else "unknown"
