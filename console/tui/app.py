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

from console.errors import ExitCode, OperatorError
from console.experiments.playbook import Playbook
from console.operations import Operations
from console.tui.happenings import Weight
from console.tui.keys import ScreenName, palette_entries
from console.tui.screens.doctor import DoctorScreen
from console.tui.screens.events import EventsScreen
from console.tui.screens.help import HelpScreen
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

PAINT_EVERY_S = 0.1
"""At most ten pictures a second, however fast news come in: a terminal at the end of a slow link must keep up."""
TICK_S = 1.0
"""Ages are told in seconds."""
_SCREENS: dict[ScreenName, type[ConsoleScreen]] = {
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


async def run_console(operations: Operations, *, read_only: bool = False, ascii_only: bool = False) -> ExitCode:
    """Open the console on one connected host and return when the operator leaves; `operations` stays open."""
    app = ConsoleApp(operations, read_only=read_only, ascii_only=ascii_only)
    await app.run_async()
    return ExitCode(app.return_code or 0)


class ConsoleApp(App[None]):
    """Keeps the Session going and shows it; what screens have in common beyond that is in `screens/screen.py`."""

    CSS_PATH = "theme.tcss"
    TITLE = "ddtree"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "quit", id="quit", priority=True)]

    def __init__(self, operations: Operations, *, read_only: bool = False, ascii_only: bool = False) -> None:
        super().__init__()
        self.session = Session(operations, self._changed, read_only=read_only, ascii_only=ascii_only)
        self._paint_timer: Timer | None = None
        self._painted_s = 0.0
        self._told = 0  # happenings that have been shown as toasts
        self.animation_level = "none"
        self.register_theme(CALM)
        self.theme = CALM.name
        for name, screen in _SCREENS.items():
            self.add_mode(name, partial(screen, self.session))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own tones, for themes that do not know them."""
        return TONES

    async def on_mount(self) -> None:
        """Show the overview, follow the host, and leave the terminal as it was whatever ends the console."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        await self.switch_mode("overview")
        self.run_worker(self.session.follow_snapshots(), name="figures", group="follow", exit_on_error=False)
        self.run_worker(self.session.follow_records(), name="journal", group="follow", exit_on_error=False)
        self.set_interval(TICK_S, self._paint)

    def on_unmount(self) -> None:
        """Signals are the terminal's again."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)

    async def action_go(self, name: ScreenName) -> None:
        """To another screen; the one left keeps its place."""
        await self.switch_mode(name)

    def action_show_help(self) -> None:
        """Help of the screen in front."""
        here = self._console_screen
        if here is not None:
            self.push_screen(HelpScreen(here.which, self.session.view()))

    def action_show_events(self) -> None:
        """What happened; showing it is reading it."""
        if self._console_screen is not None:
            self.push_screen(EventsScreen(self.session.happenings, self.session.glyphs))
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
        await self.switch_mode("service")
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
            await self.switch_mode(where)
        await self.screen.run_action(action)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A worker that ends by an error has something to say: to the operator, and never nothing."""
        if event.state is not WorkerState.ERROR:
            return
        error = event.worker.error
        what = str(error) if isinstance(error, OperatorError) else f"unexpected {type(error).__name__}: {error}"
        if event.worker.name == "journal":
            self.session.log_trouble = what
        self.session.note("failure", f"{event.worker.name}: {what}" if event.worker.name else what)

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
        for item in self.session.happenings.items[self._told :]:
            self.notify(item.text, severity=_SEVERITY[item.weight], markup=False)
        self._told = len(self.session.happenings.items)
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                screen.refresh_view()

    def _on_signal(self) -> None:
        self.exit(return_code=ExitCode.INTERRUPTED)

    @property
    def _console_screen(self) -> ConsoleScreen | None:
        """The screen in front, or None while a dialog is open."""
        return (
            self.screen if isinstance(self.screen, ConsoleScreen) and not isinstance(self.screen, ModalScreen) else None
        )
