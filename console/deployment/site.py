"""Site: one engine on one box, to be looked at and changed: the link, its service manager, its kind, its places."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from console.box.as_root import AsRoot, Files
from console.box.connection import Connection
from console.box.errors import NoSuchFile
from console.box.services import ServiceManager
from console.box.unit_file import STOP_TIMEOUT_S
from console.deployment.base import Deployment
from console.deployment.bundled import BUNDLED
from console.errors import ExitCode, OperatorError

NO_FILE = "/none"
"""Settings file of a unit whose arguments stand in the unit itself: it can be watched, started and stopped, not changed."""
AGENT = Path(__file__).parents[1] / "agent" / "apply.py"


class ChangeError(OperatorError):
    """The settings cannot be read or changed."""

    exit_code = ExitCode.PRECONDITION


@dataclass(frozen=True)
class Limits:
    """How long the box gives each part of the gate, in seconds."""

    stop_s: float = STOP_TIMEOUT_S + 30.0
    start_s: float = 1800.0  # big models load for many minutes; the engine tells which phase it is in
    ready_s: float = 30.0
    soak_s: float = 2.0
    drain_s: float = 600.0
    dry_run: bool = True
    """Have the engine itself read the new settings first."""

    @property
    def whole_s(self) -> float:
        """Longer than any transaction can take, the way back included."""
        return 2 * (self.stop_s + self.start_s + self.ready_s + self.soak_s) + self.drain_s + 600.0


@dataclass(frozen=True)
class Site:
    """One engine to reconfigure: the link, its service manager, and what kind of engine it is.

    `settings_file` and `python` are the box's own for an engine that the console did not install.
    """

    connection: Connection
    manager: ServiceManager
    deployment: Deployment = BUNDLED
    limits: Limits = field(default_factory=Limits)
    settings_file: str = ""
    own_python: str = ""

    @cached_property
    def files(self) -> Files:
        """Reads, writes and runs what belongs to the installation: as root where that is whose it is."""
        return AsRoot(self.connection) if self.manager.needs_sudo else self.connection

    @property
    def settings(self) -> str:
        """The settings file on the box."""
        return self.settings_file or self.manager.layout.settings

    @property
    def generations(self) -> str:
        """The folder of its numbered generations."""
        layout = self.manager.layout
        return f"{layout.config}/{self._stem}/generations" if self.settings_file else layout.generations

    @property
    def state(self) -> str:
        """The folder of its audit, and of the change that is under way."""
        layout = self.manager.layout
        return f"{layout.state}/{self._stem}" if self.settings_file else layout.state

    @property
    def python(self) -> str:
        """The interpreter for the agent programs."""
        return self.own_python or self.manager.layout.python

    @property
    def applies(self) -> str:
        """The folder of requests and their reports on the box."""
        return f"{self.state}/applies"

    @property
    def _stem(self) -> str:
        return self.manager.unit.removesuffix(".service")


async def read_base(site: Site) -> str:
    """The settings file on the box. Raises ChangeError (exit 4) where nothing is installed."""
    if site.settings == NO_FILE:
        raise ChangeError(
            f"the engine's arguments stand in {site.manager.unit} itself",
            where=site.connection.target.name,
            mend="move them into an EnvironmentFile, as docs/hosts.md shows",
        )
    try:
        return (await site.files.read(site.settings)).decode()
    except NoSuchFile as error:
        raise ChangeError(
            f"no settings at {site.settings}",
            where=site.connection.target.name,
            mend=f"install the engine first: ddtree install {site.connection.target.name}",
        ) from error


def failed(what: str, stderr: bytes, exit_status: int | None, where: str) -> ChangeError:
    """What a command on the box said when it did not do as it should."""
    said = stderr.decode("utf-8", "replace").strip().splitlines()
    return ChangeError(f"{what}: {said[-1] if said else f'exit status {exit_status}'}", where=where)
