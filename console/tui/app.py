"""The console's App: one host, four screens over one Session, and the way in and out of the terminal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Literal, cast

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.worker import Worker, WorkerState

from console.config import DEMO_NAME, host_names, places
from console.errors import ExitCode, OperatorError
from console.experiments.playbook import Playbook
from console.fleet import Fleet, Glance
from console.hosts_file import read_hosts
from console.operations import Operations
from console.tui.happenings import Weight
from console.tui.keys import ScreenName, palette_entries
from console.tui.screens.doctor import DoctorScreen
from console.tui.screens.events import EventsScreen
from console.tui.screens.help import HelpScreen
from console.tui.screens.hosts import HostsScreen
from console.tui.screens.log import LogScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.screens.pick import PickScreen
from console.tui.screens.playbooks import PlaybooksScreen
from console.tui.screens.running import run_after_questions
from console.tui.screens.runs import RunsScreen
from console.tui.screens.screen import ConsoleScreen
from console.tui.screens.service import ServiceScreen
from console.tui.session import Session
from console.tui.theme import CALM, TONES
from console.tui.view import View
from console.tui.widgets.host_list import HostLine

PAINT_EVERY_S = 0.1
"""At most ten pictures a second, however fast news come in: a terminal at the end of a slow link must keep up."""
TICK_S = 1.0
"""Ages are told in seconds."""
_SCREENS: dict[ScreenName, type[ConsoleScreen]] = {
    "hosts": HostsScreen,
    "overview": OverviewScreen,
    "service": ServiceScreen,
    "log": LogScreen,
    "playbooks": PlaybooksScreen,
    "runs": RunsScreen,
    "doctor": DoctorScreen,
}
_DOUBLES = ("Keys", "Maximize", "Minimize")
"""Textual's own commands for what `?` and `z` do here."""
_SEVERITY: dict[Weight, Literal["information", "warning", "error"]] = {
    "info": "information",
    "success": "information",
    "warning": "warning",
    "failure": "error",
}


def _mode(name: ScreenName, session: Session) -> str:
    """A screen of a host, as Textual knows it."""
    return f"{name} {session.host}"


async def run_console(operations: Operations, *, read_only: bool = False, ascii_only: bool = False) -> ExitCode:
    """Open the console on one connected host and return when the operator leaves; `operations` stays open."""
    fleet = known_fleet(read_only=read_only)
    app = ConsoleApp(operations, fleet, read_only=read_only, ascii_only=ascii_only)
    try:
        await app.run_async()
    finally:
        await fleet.close()
    return ExitCode(app.return_code or 0)


def known_fleet(*, read_only: bool) -> Fleet:
    """The hosts there are names for: the running demo and those of hosts.toml are watched, SSH aliases only listed."""
    from console.host import open_host  # brings in asyncssh

    where = places()
    written = read_hosts(where.hosts)
    names = host_names(where)
    watched = [name for name in names if name == DEMO_NAME or name in written]
    return Fleet(watched, [name for name in names if name not in watched], partial(open_host, read_only=read_only))


class ConsoleApp(App[None]):
    """Keeps a Session a host going and shows the one in front; what screens have in common is in `screens/screen.py`."""

    CSS_PATH = "theme.tcss"
    TITLE = "ddtree"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "quit", id="quit", priority=True)]

    def __init__(
        self, operations: Operations, fleet: Fleet, *, read_only: bool = False, ascii_only: bool = False
    ) -> None:
        super().__init__()
        self._fleet = fleet
        self._read_only = read_only
        self._ascii_only = ascii_only
        self._watching: set[str] = set()
        self._followed: set[str] = set()
        self.sessions: dict[str, Session] = {}
        self.session = self._new_session(operations)
        self._paint_timer: Timer | None = None
        self._painted_s = 0.0
        self._told: dict[str, int] = {}  # by host: happenings that have been shown as toasts
        self.animation_level = "none"
        self.register_theme(CALM)
        self.theme = CALM.name
        fleet.changed = self._changed

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own tones, for themes that do not know them."""
        return TONES

    async def on_mount(self) -> None:
        """Show the overview, follow the host, and leave the terminal as it was whatever ends the console."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        await self._bring_to_front(self.session)
        self.set_interval(TICK_S, self._paint)
        # Scripts are judged once; done beside the screen, the first visit to the playbooks does not stand still for it.
        self.run_worker(asyncio.to_thread(self.session.operations.playbooks), exit_on_error=False)

    def on_unmount(self) -> None:
        """Signals are the terminal's again."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)

    async def action_go(self, name: ScreenName) -> None:
        """To another screen; the one left keeps its place."""
        await self.switch_mode(_mode(name, self.session))

    def action_show_help(self) -> None:
        """Help of the screen in front."""
        here = self._console_screen
        if here is not None:
            self.push_screen(HelpScreen(here.which, self.session.view()))

    def action_show_events(self) -> None:
        """What happened; showing it is reading it."""
        if self._console_screen is not None:
            self.push_screen(EventsScreen(self.session.happenings, self.session.view()))
            self.session.read_all()

    def action_pick_playbook(self) -> None:
        """Offer the playbooks; the letter picks."""
        here = self._console_screen
        if here is not None:
            picker = PickScreen(self.session.operations.playbooks(), self.session.view())
            self.push_screen(picker, partial(self._picked, here))

    def _picked(self, here: ConsoleScreen, chosen: Playbook | None) -> None:
        if chosen is not None:
            run_after_questions(here, self.session, chosen)

    def action_reconnect(self) -> None:
        """Try the link at once."""
        self.session.operations.reconnect()

    async def action_propose(self) -> None:
        """Take the settings that the last verdict proposes to the Service form."""
        verdict = (self.session.run.verdict if self.session.run else None) or {}
        await self.action_go("service")
        cast(ServiceScreen, self.screen).take_changes({name: str(text) for name, text in verdict["changes"].items()})

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: every verb that works here, then Textual's own (theme, screenshot, quit)."""
        for title, text, where, action in palette_entries():
            yield SystemCommand(title, text, partial(self._do, where, action))
        for command in super().get_system_commands(screen):
            if command.title not in _DOUBLES:
                yield command

    async def _do(self, where: ScreenName | None, action: str) -> None:
        if where is not None:
            await self.action_go(where)
        await self.screen.run_action(action)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A worker that ends by an error has something to say: to the operator, and never nothing."""
        if event.state is not WorkerState.ERROR:
            return
        error = event.worker.error
        what = str(error) if isinstance(error, OperatorError) else f"unexpected {type(error).__name__}: {error}"
        session = self.sessions.get(event.worker.group, self.session)
        if event.worker.name == "journal":
            session.log_trouble = what
        session.note("failure", f"{event.worker.name}: {what}" if event.worker.name else what)

    def _changed(self) -> None:
        """Something is new: paint soon, and not more often than agreed."""
        if self._paint_timer is None and self.is_running:
            due_s = max(0.0, self._painted_s + PAINT_EVERY_S - self.session.clock())
            self._paint_timer = self.set_timer(due_s or 0.001, self._paint)

    def _paint(self) -> None:
        if self._paint_timer is not None:
            self._paint_timer.stop()
            self._paint_timer = None
        self._painted_s = self.session.clock()
        for session in self.sessions.values():
            self._tell(session)
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                screen.refresh_view()

    def _tell(self, session: Session) -> None:
        """Show what is new of a host; of one that is not in front, only what needs looking at."""
        items = session.happenings.items
        for item in items[self._told.get(session.host, 0) :]:
            if session is self.session:
                self.notify(item.text, severity=_SEVERITY[item.weight], markup=False)
            elif item.weight in ("warning", "failure"):
                self.notify(f"{session.host}: {item.text}", severity=_SEVERITY[item.weight], markup=False)
        self._told[session.host] = len(items)

    # --- several hosts

    def host_lines(self) -> tuple[HostLine, ...]:
        """Every host: those whose console is open as it shows them, the others as the fleet saw them last."""
        front = self.session
        glances = {name: Glance(name, "up", 0.0) for name in self.sessions if name not in self._fleet.glances}
        glances |= self._fleet.glances
        for name, session in self.sessions.items():
            link = session.snapshot.link if session.snapshot else None
            up = link is None or link.name in ("LIVE", "DEGRADED", "CONNECTING")
            since_s = link.since_s if link else front.clock()
            trouble = link.reason if link else None
            glances[name] = Glance(name, "up" if up else "down", since_s, session.snapshot, trouble)
        return tuple(
            HostLine(
                glance,
                View(name, front.clock(), front.wall_clock(), glance.snapshot, front.glyphs),
                visited=name in self.sessions,
            )
            for name, glance in sorted(glances.items(), key=lambda item: item[1].standing == "listed")
        )

    def watch_hosts(self) -> None:
        """Watch those that are not watched yet and have no console open."""
        for name in self._fleet.watched:
            if name not in self._watching and name not in self.sessions:
                self._watching.add(name)
                self.run_worker(self._fleet.watch(name), name=name, group=f"watch {name}", exit_on_error=False)

    def visit(self, name: str) -> None:
        """Bring a host to the front."""
        self.run_worker(self._visit(name), group="visit", exclusive=True, exit_on_error=False)

    async def _visit(self, name: str) -> None:
        session = self.sessions.get(name)
        if session is None:
            operations = await self._fleet.connect(name)
            self.workers.cancel_group(self, f"watch {name}")  # its console sees more than a glance
            session = self._new_session(operations)
        await self._bring_to_front(session)

    def _new_session(self, operations: Operations) -> Session:
        read_only = self._read_only or operations.read_only
        session = Session(operations, self._changed, read_only=read_only, ascii_only=self._ascii_only)
        self.sessions[session.host] = session
        for name, screen in _SCREENS.items():
            self.add_mode(_mode(name, session), partial(screen, session))
        return session

    async def _bring_to_front(self, session: Session) -> None:
        """Show its overview, and follow it from now on whatever is in front."""
        self.session = session
        await self.switch_mode(_mode("overview", session))
        if session.host not in self._followed:
            self._followed.add(session.host)
            for name, following in (
                ("figures", session.follow_snapshots),
                ("journal", session.follow_records),
                ("change", session.take_up_change),
            ):
                self.run_worker(following(), name=name, group=session.host, exit_on_error=False)

    def _on_signal(self) -> None:
        self.exit(return_code=ExitCode.INTERRUPTED)

    @property
    def _console_screen(self) -> ConsoleScreen | None:
        """The screen in front, or None while a dialog is open."""
        return (
            self.screen if isinstance(self.screen, ConsoleScreen) and not isinstance(self.screen, ModalScreen) else None
        )
