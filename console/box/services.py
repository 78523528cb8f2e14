"""The service managers of a box behind one interface: systemd (system, user) and the console's own supervisor.

A verb asks and returns at once (`--no-block`), and `wait` polls: a wait that blocks over there would be lost with the
link. A run's identity is its InvocationID: a restart is proven by a new one, not by "active".
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from console.box.as_root import SUDO, refusal
from console.box.connection import Connection
from console.box.errors import BoxError
from console.box.journal import JournalSource
from console.box.layout import IDENTIFIER, Layout, layout_for
from console.box.service_properties import PROPERTIES, parse_show, service_state
from console.box.target import Scope
from console.box.values import Completed, ServiceState
from console.errors import ExitCode

Verb = Literal["start", "stop", "restart", "reset-failed"]
VERBS: tuple[Verb, ...] = get_args(Verb)
POLL_S = 0.2
SYSTEMCTL = "/usr/bin/systemctl"  # sudo compares whole argument vectors, so the path must be the one in sudoers


class ServiceError(BoxError):
    """The service manager refused, or the unit did not get where it should in time."""


class ServiceManager(ABC):
    """One unit under one manager: its argument lists, and the verbs over them."""

    scope: Scope

    def __init__(self, connection: Connection, layout: Layout) -> None:
        self.connection = connection
        self.layout = layout
        self.unit = layout.unit
        self.identifier = IDENTIFIER
        """SYSLOG_IDENTIFIER of the unit's lines; "" where the unit has none of its own."""

    @property
    def needs_sudo(self) -> bool:
        """Whether the unit is another's than the login's, so that verbs and files are reached by sudo alone."""
        return False

    @abstractmethod
    def verb_argv(self, verb: Verb) -> list[str]:
        """The command that asks for `verb` and returns at once. agent/apply.py is handed the same one."""

    @abstractmethod
    def state_argv(self) -> list[str]:
        """The command that prints the unit's properties as `Key=Value` lines."""

    @abstractmethod
    def detached_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        """`argv` as a job that outlives the connection. `name` is its own while it runs: a second start fails."""

    @abstractmethod
    def journal_source(self) -> JournalSource:
        """Where the unit's log lines are."""

    async def state(self) -> ServiceState:
        """The unit's state now. Raises ServiceError when the manager does not answer."""
        shown = await self.connection.run(self.state_argv())
        if shown.exit_status != 0:
            raise self._refused("tell its state", shown)
        return service_state(parse_show(shown.stdout.decode("utf-8", "replace")), unit=self.unit, scope=self.scope)

    async def start(self) -> None:
        """Ask for a start, whatever automatic restarts or earlier starts have used up: the operator wants it now."""
        await self._forgive()
        await self._ask("start")

    async def stop(self) -> None:
        """Ask for a stop."""
        await self._ask("stop")

    async def restart(self) -> None:
        """Ask for a restart, as `start` does."""
        await self._forgive()
        await self._ask("restart")

    async def wait(self, until: Callable[[ServiceState], bool], timeout_s: float) -> ServiceState:
        """Poll until `until(state)`; returns that state. Raises ServiceError, with the last state, after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            now = await self.state()
            if until(now):
                return now
            if time.monotonic() >= deadline:
                said = f" ({now.status_text})" if now.status_text else ""
                raise ServiceError(f"still {now.state}{said} after {timeout_s:g} s", where=self.unit)
            await asyncio.sleep(POLL_S)

    async def _forgive(self) -> None:
        """Forget failures and starts: the limit on starts counts an operator's own, too. A unit that is not loaded has
        nothing to forget, and the manager says so."""
        await self.connection.run(self.verb_argv("reset-failed"))

    async def _ask(self, verb: Verb) -> None:
        asked = await self.connection.run(self.verb_argv(verb))
        if asked.exit_status != 0:
            raise self._refused(verb, asked)

    def _refused(self, what: str, done: Completed) -> ServiceError:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        return ServiceError(
            f"the service manager would not {what}: {said[-1] if said else 'no reason given'}", where=self.unit
        )


class Systemd(ServiceManager):
    """A unit of the system's or of the user's systemd."""

    def __init__(self, connection: Connection, layout: Layout) -> None:
        super().__init__(connection, layout)
        self.scope = layout.scope

    def _systemctl(self) -> list[str]:
        return [SYSTEMCTL, "--user"] if self.scope == "user" else [SYSTEMCTL]

    @property
    def needs_sudo(self) -> bool:
        return self.scope == "system" and self.connection.uid != 0

    def verb_argv(self, verb: Verb) -> list[str]:
        return [*self._sudo(), *self._systemctl(), "--no-block", verb, self.unit]

    def _sudo(self) -> tuple[str, ...]:
        return SUDO if self.needs_sudo else ()

    def state_argv(self) -> list[str]:
        return ["env", "TZ=UTC", *self.show_argv(PROPERTIES)]

    def show_argv(self, properties: Sequence[str]) -> list[str]:
        """The command that prints these of the unit's properties."""
        return [*self._systemctl(), "show", self.unit, f"--property={','.join(properties)}"]

    def detached_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        """A transient unit: its name is the lock, and it needs no session to live on (user scope: needs linger)."""
        scope = ["--user"] if self.scope == "user" else []
        return [
            *self._sudo(),
            "systemd-run",
            *scope,
            "--quiet",
            "--collect",
            f"--unit={name}",
            "--property=Type=exec",
            *argv,
        ]

    def journal_source(self) -> JournalSource:
        return JournalSource(scope=self.scope, unit=self.unit, identifier=self.identifier)

    def _refused(self, what: str, done: Completed) -> ServiceError:
        said = refusal(done) if self.needs_sudo else None
        if said is not None:
            rules = ", ".join(" ".join(self.verb_argv(verb)[len(SUDO) :]) for verb in VERBS)
            user = self.connection.facts.user
            return ServiceError(
                f"{what} as root is refused: {said}",
                where=self.unit,
                mend=f"put this line in /etc/sudoers.d/ddtree there: {user} ALL=(root) NOPASSWD: {rules}",
                exit_code=ExitCode.PRECONDITION,
            )
        return super()._refused(what, done)


class Supervised(ServiceManager):
    """A service under agent/supervise.py, for boxes that have no systemd."""

    scope: Scope = "supervisor"

    def _supervise(self, *arguments: str) -> list[str]:
        return [self.layout.python, self.layout.agent("supervise.py"), "--folder", self.layout.supervised, *arguments]

    def verb_argv(self, verb: Verb) -> list[str]:
        return self._supervise(verb)

    def state_argv(self) -> list[str]:
        return self._supervise("status")

    def detached_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        """The agents detach by themselves when told to; `name` is kept unique by the lock they take."""
        return [*argv, "--detach"]

    def journal_source(self) -> JournalSource:
        return JournalSource(
            scope=self.scope, unit=self.unit, identifier=IDENTIFIER, supervise=tuple(self._supervise())
        )

    async def state(self) -> ServiceState:
        if not await self.connection.exists(f"{self.layout.supervised}/service.json"):
            return ServiceState("not-installed", self.unit, "supervisor")
        return await super().state()


def manager_for(connection: Connection, layout: Layout) -> ServiceManager:
    """The manager of an installation that lies as `layout` says."""
    return Supervised(connection, layout) if layout.scope == "supervisor" else Systemd(connection, layout)


async def pick_manager(connection: Connection, scope: Scope | None, unit: str) -> ServiceManager:
    """The manager to use for `unit`: the scope asked for, else where the unit is installed, else what fits the box.

    A box with systemd gets a system unit when the login is root and a user unit otherwise; one without gets the
    supervisor. Raises ServiceError (exit 4) when systemd is asked for and PID 1 is not systemd.
    """
    has_systemd = connection.facts.systemd_version is not None
    if scope is not None and scope != "supervisor" and not has_systemd:
        raise ServiceError(
            f"there is no systemd for a {scope} unit",
            where=connection.target.name,
            mend="use --scope supervisor",
            exit_code=ExitCode.PRECONDITION,
        )
    if scope is not None:
        return manager_for(connection, layout_for(scope, connection.home, unit))
    scopes: tuple[Scope, ...] = ("supervisor",)
    if has_systemd:
        scopes = ("system", "user", "supervisor") if connection.uid == 0 else ("user", "system", "supervisor")
    for candidate in scopes:
        manager = manager_for(connection, layout_for(candidate, connection.home, unit))
        if await _is_installed(manager):
            return manager
    return manager_for(connection, layout_for(scopes[0], connection.home, unit))


async def _is_installed(manager: ServiceManager) -> bool:
    try:
        return (await manager.state()).state not in ("not-installed", "unknown")
    except ServiceError:
        return False  # no user manager for this login, say: then the unit is not there either
