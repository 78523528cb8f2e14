"""The engine with faults to order, installed and serving as the bundled one would be: for tests of what is around it."""

from __future__ import annotations

from pathlib import Path

from box_machine import Box

from console.box.connection import Connection
from console.box.install import InstallRequest, install
from console.box.layout import layout_for
from console.box.services import ServiceManager, manager_for
from console.box.target import DEFAULT_UNIT, Scope
from console.box.unit_file import systemctl
from console.deployment.bundled import first_settings_with

FAKE = Path("tests/console/agent/fake_engine.py")
TINY = Path("tests/data/tiny-ddtree")


def request_for(box: Box, port: int) -> InstallRequest:
    """The tiny model, and the interpreter that runs the tests."""
    return InstallRequest(
        compose=first_settings_with({"port": port, "context_length": 512}),
        who="ana@laptop",
        model=str(box.checkout / TINY / "target"),
        drafter=str(box.checkout / TINY / "drafter"),
        python=str(box.python),
    )


async def install_the_fake(box: Box, ops: Connection, port: int, scope: Scope = "user") -> ServiceManager:
    """A unit with the fake engine in the real one's place, serving on `port`."""
    manager = manager_for(ops, layout_for(scope, ops.home, DEFAULT_UNIT))
    async for _ in install(ops, manager, request_for(box, port)):
        pass
    layout = manager.layout
    unit = (await ops.read(layout.unit_file)).decode()
    real = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    fake = f"ExecStart={box.python} -S {box.checkout / FAKE} {layout.settings}"
    unit = unit.replace(real, fake).replace("WatchdogSec=", "#")  # it has no decode loop to feed it from
    await ops.upload(unit.encode(), layout.unit_file)
    await ops.run([*systemctl(layout), "daemon-reload"])
    await manager.start()
    state = await manager.wait(lambda now: now.state in ("serving", "failed", "start-limit-hit"), 20)
    assert state.state == "serving"
    return manager
