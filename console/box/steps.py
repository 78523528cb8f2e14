"""One step of an install or uninstall: a command that must work, told to the operator in a sentence when it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from console.box.connection import Connection
from console.box.errors import BoxError
from console.box.layout import IDENTIFIER, Layout
from console.box.service_properties import parse_show
from console.box.services import ServiceManager, Systemd
from console.errors import ExitCode

STEP_S = 180.0  # a virtual environment on a slow disk, a manager that reloads a thousand units


class InstallError(BoxError):
    """The box lacks something or refuses something; what was there before still works."""

    exit_code = ExitCode.PRECONDITION


@dataclass(frozen=True)
class Progress:
    """One step done. `changed` is false where everything was as it should be already."""

    step: str
    text: str
    changed: bool

    def to_json(self) -> dict[str, Any]:
        """The object a step is with `--json`."""
        return {"step": self.step, "text": self.text, "changed": self.changed}


async def must(connection: Connection, argv: Sequence[str], what: str, *, mend: str | None = None) -> bytes:
    """Standard output of a command that has to succeed. Raises InstallError "could not `what`: the command's words"."""
    done = await connection.run(argv, timeout_s=STEP_S)
    if done.exit_status != 0:
        said = last_line(done.stderr) or f"exit status {done.exit_status}"
        raise InstallError(f"could not {what}: {said}", where=connection.target.name, mend=mend)
    return done.stdout


async def must_be_ours(manager: ServiceManager) -> None:
    """Refuse to write over, or take away, a unit of that name that no install put there. Raises InstallError."""
    if not isinstance(manager, Systemd):
        return
    shown = await manager.connection.run(manager.show_argv(("LoadState", "SyslogIdentifier")))
    found = parse_show(shown.stdout.decode("utf-8", "replace"))
    if found.get("LoadState") == "loaded" and found.get("SyslogIdentifier") != IDENTIFIER:
        raise InstallError(
            f"{manager.unit} was not made by an install and is left alone",
            where=manager.connection.target.name,
            mend="name another unit for this host in hosts.toml",
        )


async def sweep_parts(connection: Connection, layout: Layout) -> None:
    """Remove what uploads that a broken link cut short have left. Folders that are not there yet are no matter."""
    own = [layout.releases, layout.config, layout.generations, layout.state]
    for folders, name in ((own, ".*.part"), ([layout.units], f".{layout.unit}.*.part")):
        there = [*folders, "-mindepth", "1", "-maxdepth", "1", "-name", name]
        await connection.run(["find", *there, "-exec", "rm", "-rf", "--", "{}", "+"])


async def make_folders(connection: Connection, *folders: str) -> None:
    """Folders that only the login may enter; each level is named, since `-p` gives the mode to the last one alone."""
    await must(connection, ["mkdir", "-p", "-m", "700", "--", *folders], f"make {folders[-1]}")


def last_line(output: bytes) -> str:
    """The last line that is not empty, or ""."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
