"""One run from the key press to the stored verdict: launch, follow, keep, judge. Re-attaching is the same without a launch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from console.box.connection import Connection
from console.box.errors import NoSuchFile
from console.errors import UsageError
from console.experiments import cancel as cancelling
from console.experiments.cancel import Cancelled
from console.experiments.client_side import ClientSideError, read_streams
from console.experiments.follow import Batch, Ending, follow
from console.experiments.golden import golden_for
from console.experiments.launch import Restarts, launch
from console.experiments.playbook import Playbook, judge_playbook
from console.experiments.put_back import put_back
from console.experiments.remote import EngineUnderTest, RemoteRun, new_run_id, remote_run
from console.experiments.result import result_event
from console.experiments.store import RunRecord, Store

Event = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Where experiments are made: one box under the name the operator knows, its engine, and the store on this machine."""

    connection: Connection
    host: str
    engine: EngineUnderTest
    store: Store
    python: str = "python3"  # on the box
    restarts: Restarts | None = None  # the settings transaction, for playbooks that restart
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


async def start(bench: Bench, playbook: Playbook, params: Mapping[str, Any], *, seed: int = 1) -> Event:
    """Start a run detached and keep its record. Gives `{"type": "run", "run_id", "playbook", "host", "how", "note", …}`.

    Raises what `launch` raises; then nothing of it is kept.
    """
    now = bench.clock()
    run_id = new_run_id(playbook.id, now)
    launched = await launch(
        bench.connection, playbook, params, bench.engine, run_id=run_id, python=bench.python, seed=seed,
        golden=golden_for(bench.store, playbook, bench.host), restarts=bench.restarts,
    )  # fmt: skip
    secret = {param.name for param in playbook.params if param.type == "secret"}
    record = RunRecord(
        id=run_id,
        playbook=playbook.id,
        version=playbook.version,
        script_sha=playbook.sha256,
        params={name: value for name, value in launched.values.items() if name not in secret},
        host=bench.host,
        unit=bench.engine.unit,
        started=_iso(now),
        python=bench.python,
        note=launched.note,
    )
    bench.store.begin(record, playbook.data)
    return _run_event(record, how=launched.how)


async def run(bench: Bench, playbook: Playbook, params: Mapping[str, Any], *, seed: int = 1) -> AsyncIterator[Event]:
    """Start a playbook and yield its events; the first says which run it is, the last is the result."""
    begun = await start(bench, playbook, params, seed=seed)
    yield begun
    async for event in _follow(bench, begun["run_id"]):
        yield event


async def attach(bench: Bench, run_id: str) -> AsyncIterator[Event]:
    """Events of a run from its start, then live, each once; ends as `run` does.

    A run that another console started is taken over. One whose result is known is told from the store alone.
    Raises UsageError where neither the store nor the box knows it.
    """
    record = await _known(bench, run_id)
    yield _run_event(record)
    stored = bench.store.show(run_id)
    for event in stored.events:
        yield event
    if stored.result is not None:
        yield stored.result
        return
    async for event in _follow(bench, run_id):
        yield event


async def cancel(bench: Bench, run_id: str) -> Cancelled:
    """Stop a run, and see that the engine runs nothing any more."""
    return await cancelling.cancel(bench.connection, remote_run(bench.connection, run_id, bench.python), bench.engine)


async def _follow(bench: Bench, run_id: str) -> AsyncIterator[Event]:
    """Live events from where the store ends, kept before they are told; the result last."""
    remote = remote_run(bench.connection, run_id, bench.python)
    _, reader = bench.store.resume(run_id)
    reading: asyncio.Task[Event | None] | None = None
    told = False
    try:
        async for found in follow(bench.connection, remote, reader):
            if not isinstance(found, Batch):
                restored = await put_back(bench.connection, remote)
                if restored is not None:
                    yield restored
                yield _finished(bench, run_id, found)
                continue
            bench.store.append(run_id, found.lines)
            for event in found.events:
                if event["type"] == "client" and reading is None:
                    reading = asyncio.create_task(_read_along(bench.connection, event))
                yield event
            if reading is not None and reading.done() and not told:
                told = True
                if (trouble := reading.result()) is not None:
                    yield trouble
    finally:
        if reading is not None:
            reading.cancel()


async def _read_along(connection: Connection, offered: Event) -> Event | None:
    """Be the client that a playbook asks for; a warning of our own where that does not work out."""
    try:
        await read_streams(connection, offered)
    except ClientSideError as error:
        return {"type": "warn", "code": "client_side", "msg": str(error), "evidence": {}}
    return None


def _finished(bench: Bench, run_id: str, ending: Ending) -> Event:
    events, reader = bench.store.resume(run_id)
    record = bench.store.show(run_id).record
    result = {**result_event(run_id, record.playbook, events, reader, ending), "ended": _iso(bench.clock())}
    bench.store.finish(run_id, result)
    return result


async def _known(bench: Bench, run_id: str) -> RunRecord:
    """The record of a run; one that another console started is made from what lies in its folder on the box."""
    if bench.store.has(run_id):
        return bench.store.show(run_id).record
    remote = remote_run(bench.connection, run_id, bench.python)
    try:
        script = await bench.connection.read(remote.path("script.py"))
        params = json.loads(await bench.connection.read(remote.path("params.json")))
    except NoSuchFile:
        raise UsageError("no such run, here or on the box", where=run_id, mend="ddtree runs lists them") from None
    playbook = judge_playbook(Path(f"{_playbook_of(run_id)}.py"), script)
    record = RunRecord(
        id=run_id,
        playbook=playbook.id,
        version=playbook.version,
        script_sha=playbook.sha256,
        params=params,
        host=bench.host,
        unit=bench.engine.unit,
        started=_iso(bench.clock()),
        python=bench.python,
        note="started from another console",
    )
    bench.store.begin(record, script)
    return record


def _playbook_of(run_id: str) -> str:
    """The playbook's id in a run's name: `20261129-184512-context_curve-3fa9`."""
    parts = run_id.split("-")
    return parts[2] if len(parts) == 4 else run_id


def _run_event(record: RunRecord, **more: Any) -> Event:
    return {
        "type": "run",
        "run_id": record.id,
        "playbook": record.playbook,
        "version": record.version,
        "host": record.host,
        "params": dict(record.params),
        "started": record.started,
        "note": record.note,
        **more,
    }


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


async def remote_runs(bench: Bench) -> tuple[RemoteRun, ...]:
    """Every run whose folder is on the box, oldest first, whoever started it."""
    folder = remote_run(bench.connection, "", bench.python).folder.rstrip("/")
    listed = await bench.connection.run(["find", folder, "-mindepth", "2", "-maxdepth", "2", "-name", "env.json"])
    names = sorted(line.split("/")[-2] for line in listed.stdout.decode("utf-8", "replace").splitlines())
    return tuple(remote_run(bench.connection, name, bench.python) for name in names)
