"""From a checked playbook to a script that runs on the box: upload, compile there, start detached."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.box.connection import Connection
from console.box.values import Completed
from console.errors import ExitCode, OperatorError, UsageError
from console.experiments.detach import Detachment, choose_detachment, in_session
from console.experiments.params import resolve_params
from console.experiments.playbook import Playbook, judge_playbook, kit_files
from console.experiments.remote import EngineUnderTest, RemoteRun, environment, remote_run
from console.experiments.script.fault import Fault, Source
from console.experiments.script.versions import OLDEST, Version

AGENTS = Path(__file__).resolve().parent.parent / "agent"
Restarts = Callable[[Sequence[Mapping[str, Any]]], Awaitable[Mapping[str, Any]]]
"""What a playbook needs to restart the service with each of these changes of settings, and to put the old ones back."""
START_S = 15.0
POLL_S = 0.1
VERSION_PROGRAM = "import sys; print('%d.%d' % sys.version_info[:2])"
COMPILE_PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
try:
    with open(sys.argv[1], "rb") as file:
        compile(file.read(), "script.py", "exec", dont_inherit=True)
except SyntaxError as error:
    print(json.dumps({"line": error.lineno or 1, "column": error.offset or 1, "message": error.msg}))
"""


class LaunchError(OperatorError):
    """A run could not be started; nothing of it runs."""


@dataclass(frozen=True)
class Launched:
    """A run that has begun on the box, in which keeping, and what to know about that."""

    run: RemoteRun
    how: str
    values: Mapping[str, Any]
    note: str | None = None


async def launch(
    connection: Connection,
    playbook: Playbook,
    params: Mapping[str, Any],
    engine: EngineUnderTest,
    *,
    run_id: str,
    python: str = "python3",
    seed: int = 1,
    golden: Mapping[str, Any] | None = None,
    restarts: Restarts | None = None,
) -> Launched:
    """Start `playbook` on the box, detached. Nothing is uploaded unless header, syntax and parameters are sound.

    Raises UsageError (exit 2) for faults of the script or its parameters, here or for the box's Python, LaunchError for
    a box that lacks something or where the run did not begin, and what Connection raises.
    """
    refuse_faults(playbook)
    restarting = playbook.restarts(engine.kind)
    if restarting and restarts is None:
        raise LaunchError(
            "restarts the service, and nothing here may", where=playbook.id, exit_code=ExitCode.PRECONDITION
        )
    if engine.kind not in playbook.engines:
        raise UsageError(f"measures {', '.join(playbook.engines)}, and the box serves {engine.kind}", where=playbook.id)
    values = resolve_params(playbook.params, params, engine.facts, where=playbook.id)
    target = await _python_version(connection, python)
    refuse_faults(judge_playbook(playbook.path, playbook.data, target=target))
    run = remote_run(connection, run_id, python)
    await connection.upload_tree(_files(playbook, values, run, engine, seed, golden), run.folder)
    try:
        await _compile_there(connection, run, playbook)
        if restarting and restarts is not None:
            kit = await restarts(await _planned_changes(connection, run, playbook))
            await connection.upload(_json(kit), run.path("restarts.json"))
    except OperatorError:
        await connection.run(["rm", "-rf", "--", run.folder])
        raise
    detachment = await choose_detachment(connection, run_id, run.runner_argv(), playbook.max_seconds)
    detachment = await _start(connection, run, detachment)
    await _begun(connection, run)
    return Launched(run, detachment.how, values, detachment.note)


def refuse_faults(playbook: Playbook) -> None:
    """Raise UsageError with the first fault, its source line and a caret, unless there is none."""
    if playbook.faults:
        raise _fault_error(playbook, playbook.faults[0], len(playbook.faults) - 1)


def _fault_error(playbook: Playbook, fault: Fault, more: int = 0) -> UsageError:
    others = f" (and {more} more)" if more else ""
    shown = f"\n  {fault.source}\n  {fault.caret}" if fault.source.strip() else ""
    return UsageError(f"{fault}{others}{shown}", where=str(playbook.path))


def _files(
    playbook: Playbook,
    values: Mapping[str, Any],
    run: RemoteRun,
    engine: EngineUnderTest,
    seed: int,
    golden: Mapping[str, Any] | None,
) -> dict[str, bytes]:
    secret = {param.name for param in playbook.params if param.type == "secret"}
    plain = {name: value for name, value in values.items() if name not in secret}
    hidden = {name: value for name, value in values.items() if name in secret}
    files = {
        **kit_files(),
        "script.py": playbook.data,
        "runner.py": (AGENTS / "runner.py").read_bytes(),
        "params.json": _json(plain),
    }
    told = {}
    if golden is not None:
        files["golden.json"], told["DDT_GOLDEN"] = _json(golden), "golden.json"
    if playbook.restarts(engine.kind):
        told["DDT_RESTARTS"] = "restarts.json"  # made once the script has said what it is going to change
        files["apply.py"] = (AGENTS / "apply.py").read_bytes()
    files["env.json"] = _json({**environment(run.run_id, engine, playbook.max_seconds, seed), **told})
    return {**files, "secrets.json": _json(hidden)} if any(hidden.values()) else files


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode("utf-8")


async def _python_version(connection: Connection, python: str) -> Version:
    asked = await connection.run([python, "-I", "-c", VERSION_PROGRAM])
    text = asked.stdout.decode("utf-8", "replace").strip()
    parts = text.split(".")
    if asked.exit_status != 0 or len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise LaunchError(
            f"no Python answers as {python}", where=connection.target.name, mend="install python3 there",
            exit_code=ExitCode.PRECONDITION,
        )  # fmt: skip
    version = int(parts[0]), int(parts[1])
    if version < OLDEST:
        raise LaunchError(
            f"{python} is Python {text}; playbooks need {OLDEST[0]}.{OLDEST[1]}", where=connection.target.name,
            exit_code=ExitCode.PRECONDITION,
        )  # fmt: skip
    return version


async def _compile_there(connection: Connection, run: RemoteRun, playbook: Playbook) -> None:
    """The box's own Python has the last word on syntax."""
    done = await connection.run([run.python, "-I", "-c", COMPILE_PROGRAM, run.path("script.py")])
    if done.exit_status != 0:
        raise LaunchError(f"the compile check did not run: {_last_line(done)}", where=connection.target.name)
    if done.stdout.strip():
        found = json.loads(done.stdout)
        source = Source(playbook.data.decode("utf-8"))
        message = f"{found['message']} (says the box's own Python)"
        raise _fault_error(playbook, source.fault(found["line"], found["column"], message))


async def _planned_changes(connection: Connection, run: RemoteRun, playbook: Playbook) -> Sequence[Mapping[str, Any]]:
    """The changes of settings that the script is going to make, out of its own plan; none for one that asks for no restart
    of ours, which need not know `--describe`."""
    if "unit.restart" not in (*playbook.needs, *playbook.wants):
        return ()
    argv = ["env", f"DDT_PARAMS={run.path('params.json')}", run.python, "-I", "-B", run.path("script.py"), "--describe"]
    asked = await connection.run(argv)
    try:
        planned = json.loads(asked.stdout)["plan"].get("changes", [])
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"does not say which settings it will change ({_last_line(asked)})",
            where=playbook.id,
            mend='have --describe print {"plan": {"changes": […]}}, as kit.py does',
        ) from error
    return [dict(changes) for changes in planned]


async def _start(connection: Connection, run: RemoteRun, detachment: Detachment) -> Detachment:
    """Start it; where systemd will not have it, in a session of its own."""
    started = await connection.run(detachment.argv, timeout_s=START_S)
    if started.exit_status == 0:
        return detachment
    if detachment.how != "session":
        fallback = in_session(run.runner_argv(), f"systemd-run would not start it ({_last_line(started)})")
        return await _start(connection, run, fallback)
    raise LaunchError(f"the run did not start: {_last_line(started)}", where=connection.target.name)


async def _begun(connection: Connection, run: RemoteRun) -> None:
    """Wait for the runner's first sign: a process, or an end before it had one."""
    for _ in range(int(START_S / POLL_S)):
        if await connection.exists(run.path("pid")) or await connection.exists(run.path("exit.json")):
            return
        await asyncio.sleep(POLL_S)
    raise LaunchError(f"no sign of life within {START_S:g} s", where=run.folder, mend="look at stderr.log there")


def _last_line(done: Completed) -> str:
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {done.exit_status}"
