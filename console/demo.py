"""A box without a box: an SSH server on loopback, the engine installed on it as on any box, serving, with some prompts.

It is reached, installed, watched and reconfigured by the same code as a real one. Everything it starts ends with it.
"""

from __future__ import annotations

import asyncio
import getpass
import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.box.connection import Connection, connect
from console.box.install import InstallRequest, install
from console.box.layout import layout_for
from console.box.release import requirements, unmet
from console.box.services import ServiceManager, manager_for
from console.box.steps import Progress
from console.box.target import DEFAULT_UNIT
from console.box.values import ServiceState
from console.config import DEMO_NAME, Places, places, resolve
from console.demo_file import DemoBox, read_demo, remove_demo, write_demo
from console.demo_prompts import run_goes_on, send_prompts
from console.demo_server import DemoServer
from console.deployment.bundled import first_settings_with
from console.deployment.reconfigure import operator
from console.errors import ExitCode, OperatorError
from console.private_file import write_private

START_S = 300.0
STOP_S = 30.0


class DemoError(OperatorError):
    """The demo cannot run here."""

    exit_code = ExitCode.PRECONDITION


@dataclass(frozen=True)
class DemoRequest:
    """What to serve. Without a model: the bundled one, fetched once to the user's cache, and the drafter shipped for it.

    `settings` are leaf names of engine.toml; `prompts` says whether the demo sends some of its own.
    """

    model: str | None = None
    drafter: str | None = None
    settings: Mapping[str, Any] | None = None
    prompts: bool = True


@asynccontextmanager
async def demo_box(
    request: DemoRequest | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
    where: Places | None = None,
) -> AsyncIterator[DemoBox]:
    """A box that HOST `demo` leads to while the context is open, its engine serving.

    Raises DemoError (exit 4) where it cannot be: not Linux, a demo runs already, the engine's packages are missing,
    or the engine does not come up.
    """
    request, where = request or DemoRequest(), where or places()
    _check_here(where)
    home = where.state / "demo" / "home"
    _clear(home)
    server = DemoServer(home, getpass.getuser())
    await server.listen()
    try:
        demo = _publish(server, where)
        on_progress(f"an SSH server on 127.0.0.1:{server.port} stands for the box")
        async with await connect(resolve(DEMO_NAME, where)) as connection:
            manager = manager_for(connection, layout_for("supervisor", connection.home, DEFAULT_UNIT))
            port = _free_port()
            await _install(connection, manager, request, port, on_progress)
            await _start(manager, on_progress)
            prompting = send_prompts(port, run_goes_on(Path(manager.layout.runs))) if request.prompts else None
            sending = asyncio.create_task(prompting) if prompting is not None else None
            try:
                yield demo
            finally:
                if sending is not None:
                    sending.cancel()
                    await asyncio.wait([sending])
                on_progress("ending the engine")
                await _stop(manager)
    finally:
        remove_demo(where.demo, os.getpid())
        await server.close()
        _clear(home)


def _check_here(where: Places) -> None:
    if sys.platform != "linux":
        raise DemoError("the demo needs Linux", mend="install the engine on a Linux box: ddtree install HOST")
    running = read_demo(where.demo)
    if running is not None:
        raise DemoError(
            f"a demo is running already, as process {running.pid}",
            mend="every verb works on it as HOST demo (ddtree status demo, ddtree run demo quick_probe), and `ddtree demo`"
            f" without options opens the console on it; ctrl+c in its terminal, or kill {running.pid}, ends it",
        )
    missing = unmet(requirements(), {name: _version(name) for name in requirements()})
    if missing:
        raise DemoError(
            f"the demo runs the engine on this machine, and {sys.executable} lacks {', '.join(sorted(missing))}",
            mend='pip install "ddtree-console[engine]"',
        )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _clear(home: Path) -> None:
    """Settings and state are new with every demo; releases stay, so that the next one starts fast."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    layout = layout_for("supervisor", str(home), DEFAULT_UNIT)
    for folder in (layout.config, layout.state):
        shutil.rmtree(folder, ignore_errors=True)


def _publish(server: DemoServer, where: Places) -> DemoBox:
    """Write the keys and the file that HOST `demo` is resolved by."""
    folder = where.state / "demo"
    key, known_hosts = folder / "key", folder / "known_hosts"
    write_private(key, server.client_key.export_private_key().decode())
    write_private(known_hosts, f"[127.0.0.1]:{server.port} {server.host_key.export_public_key().decode()}")
    demo = DemoBox("127.0.0.1", server.port, server.user, key, known_hosts, os.getpid())
    write_demo(where.demo, demo)
    return demo


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _install(
    connection: Connection, manager: ServiceManager, request: DemoRequest, port: int, on_progress: Callable[[str], None]
) -> None:
    asked = InstallRequest(
        compose=first_settings_with({"port": port, "lookup": "auto", **(request.settings or {})}),
        who=operator(),
        model=request.model,
        drafter=request.drafter,
        python=sys.executable,
        bound_to=os.getpid(),
    )
    async for step in install(connection, manager, asked):
        on_progress(_words(step))


def _words(step: Progress) -> str:
    return f"{step.step}: {step.text}"


async def _start(manager: ServiceManager, on_progress: Callable[[str], None]) -> None:
    """Start the engine and wait until it serves, telling each phase once."""
    told: list[str] = []

    def settled(now: ServiceState) -> bool:
        if now.status_text and now.status_text not in told:
            told.append(now.status_text)
            on_progress(f"engine: {now.status_text}")
        return now.state in ("serving", "failed", "start-limit-hit", "start-timeout", "restarting")

    await manager.start()
    state = await manager.wait(settled, START_S)
    if state.state != "serving":
        raise DemoError(
            f"the engine did not come up: {state.state} ({state.result})", mend="ddtree logs demo tells why"
        )


async def _stop(manager: ServiceManager) -> None:
    if (await manager.state()).state == "not-installed":  # `ddtree uninstall demo` took it away, stopped
        return
    await manager.stop()
    await manager.wait(lambda now: now.state in ("stopped", "failed"), STOP_S)
