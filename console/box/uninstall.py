"""Take everything away again that an install put on a box, and leave no debris."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator

from console.box.connection import Connection
from console.box.layout import Layout
from console.box.services import ServiceManager
from console.box.steps import Progress, must, must_be_ours, sweep_parts
from console.box.unit_file import STOP_TIMEOUT_S, systemctl

GAVE_UP = ("failed", "start-limit-hit", "start-timeout")


async def uninstall(connection: Connection, manager: ServiceManager) -> AsyncIterator[Progress]:
    """Stop the engine, remove its unit and its files. Models in the cache stay, and that is said.

    Raises ServiceError when the engine does not stop; nothing is removed then.
    """
    layout = manager.layout
    await must_be_ours(manager)
    state = await manager.state()
    if state.state not in ("not-installed", "stopped", *GAVE_UP):
        await manager.stop()
        await manager.wait(lambda now: now.state in ("stopped", *GAVE_UP), STOP_TIMEOUT_S + 30)
        yield Progress("stop", f"{manager.unit} stopped", True)
    if layout.scope != "supervisor":
        yield await _remove_unit(connection, manager, installed=state.state != "not-installed")
    await sweep_parts(connection, layout)
    folders = [layout.share, layout.config, layout.state]
    present = [folder for folder in folders if await connection.exists(folder)]
    await must(connection, ["rm", "-rf", "--", *folders], "remove the files")
    await _remove_empty_folders(connection, layout)
    text = ", ".join(present) + " removed" if present else "no files were there"
    if await connection.exists(layout.cache):
        text += f"; downloads stay in {layout.cache}"
    yield Progress("files", text, bool(present))


async def _remove_unit(connection: Connection, manager: ServiceManager, *, installed: bool) -> Progress:
    layout = manager.layout
    if installed:
        await must(connection, [*systemctl(layout), "--quiet", "disable", layout.unit], "disable the unit")
        if (await manager.state()).state in GAVE_UP:  # or its failure would outlive it
            await must(connection, [*systemctl(layout), "reset-failed", layout.unit], "forget the failure")
    await must(connection, ["rm", "-f", "--", layout.unit_file], "remove the unit")
    await must(connection, [*systemctl(layout), "daemon-reload"], "reload the service manager")
    return Progress("unit", f"{layout.unit_file} removed" if installed else "no unit was there", installed)


async def _remove_empty_folders(connection: Connection, layout: Layout) -> None:
    """Parents that an install made and that hold nothing else; in a system's own folders only the empty cache."""
    tidy = ["rmdir", "--ignore-fail-on-non-empty"]
    if layout.scope == "system":
        if await connection.exists(layout.cache):
            await must(connection, [*tidy, "--", layout.cache], "remove the empty cache")
        return
    for path in (layout.share, layout.config, layout.state, layout.unit_file):
        parent = posixpath.relpath(posixpath.dirname(path), connection.home)
        if await connection.exists(f"{connection.home}/{parent}"):
            await must(connection, ["env", "-C", connection.home, *tidy, "-p", "--", parent], "remove empty folders")
