"""Hosts: one row a host; a dead one never blocks another, and enter drills in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol, cast

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget

from console.fleet import Glance
from console.tui.keys import HOSTS, bindings
from console.tui.screens.screen import ConsoleScreen
from console.tui.session import Session
from console.tui.tones import PLAIN, QUIET, within
from console.tui.view import View
from console.tui.widgets.host_list import HostLine, draw_host_heads, draw_host_row, names_width
from console.tui.widgets.listing import Listing
from console.tui.widgets.pane import Pane
from console.tui.words import count_of


class ManyHosts(Protocol):
    """What the App knows of hosts beside the one in front."""

    def host_lines(self) -> tuple[HostLine, ...]:
        """Every host, in the order in which it is listed."""
        ...

    def watch_hosts(self) -> None:
        """Begin to watch those that are watched."""
        ...

    def visit(self, name: str) -> None:
        """Bring a host to the front, connecting to it first where needed."""
        ...


class HostsScreen(ConsoleScreen):
    """The rows are drawn from glances of the fleet; hosts whose console is open give their live figures."""

    which = "hosts"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(HOSTS)]
    AUTO_FOCUS = "#hosts-list"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._lines: tuple[HostLine, ...] = ()

    def body(self) -> Iterable[Widget]:
        """What there is, then a row a host."""
        yield Pane(self._draw_status, id="hosts-status")
        yield Pane(self._draw_heads, id="hosts-heads")
        yield Listing(self._draw_row, self.session.glyphs, id="hosts-list")
        yield Pane(self._draw_hint, id="hosts-hint")

    def on_screen_resume(self) -> None:
        """Nobody is connected to before this screen is looked at."""
        self._hosts.watch_hosts()

    def bring_up_to_date(self, view: View) -> None:
        """Draw every row again; the cursor stays with its host, at first the one in front."""
        names = [line.glance.name for line in self._lines]
        here = names[self._listing.cursor] if names else self.session.host
        self._lines = self._hosts.host_lines()
        places = [place for place, line in enumerate(self._lines) if line.glance.name == here]
        self._listing.fill([True] * len(self._lines), places[0] if places else 0)

    def pane_to_zoom(self) -> Widget:
        """There is one list."""
        return self._listing

    def action_visit(self) -> None:
        """Drill in."""
        if self._lines:
            self._hosts.visit(self._lines[self._listing.cursor].glance.name)

    @on(Listing.Moved)
    def _moved(self, event: Listing.Moved) -> None:
        event.stop()
        self.refresh_view()

    def _draw_status(self, view: View, width: int, _height: int) -> list[Content]:
        glances = [line.glance for line in self._hosts.host_lines()]
        parts = [Content.styled(f" {count_of(len(glances), 'host')}", PLAIN)]
        for standing, words in (("up", "up"), ("down", "not answering"), ("listed", "not watched")):
            count = sum(_stands(glance, standing) for glance in glances)
            if count:
                parts.append(Content.styled(f"{count} {words}", QUIET))
        return [within(parts, width, "   ")]

    def _draw_heads(self, view: View, width: int, _height: int) -> list[Content]:
        return [draw_host_heads(names_width(self._hosts.host_lines()), width)]

    def _draw_row(self, item: int, width: int) -> list[Content]:
        here = item == self._listing.cursor
        return draw_host_row(self._lines[item], names_width(self._lines), width, self.session.glyphs, here=here)

    def _draw_hint(self, view: View, width: int, _height: int) -> list[Content]:
        if len(self._hosts.host_lines()) > 1:
            return []
        return [Content.styled(" Hosts of hosts.toml and aliases of the SSH config stand here beside it.", QUIET)]

    @property
    def _hosts(self) -> ManyHosts:
        return cast(ManyHosts, self.app)

    @property
    def _listing(self) -> Listing:
        return self.query_one("#hosts-list", Listing)


def _stands(glance: Glance, standing: str) -> bool:
    return glance.standing == standing
