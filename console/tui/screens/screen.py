"""What every screen of the console shares: the top line, the key line, zoom, and one sentence when there is no room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from console.tui.keys import EVERYWHERE, HELP, KEYS, Key, ScreenName, bindings
from console.tui.session import Session
from console.tui.view import View
from console.tui.widgets.key_bar import key_line
from console.tui.widgets.pane import Pane
from console.tui.widgets.top_line import draw_top_line

LEAST_WIDTH, LEAST_HEIGHT = 60, 15
_WIDTHS = [(0, "-too-narrow"), (LEAST_WIDTH, "-narrow"), (100, "-normal"), (120, "-wide")]
_HEIGHTS = [(0, "-too-low"), (LEAST_HEIGHT, "-low"), (24, "-middle"), (34, "-tall"), (40, "-high")]


class ConsoleScreen(Screen[None]):
    """One of the numbered screens: `which` it is, its `body`, and in `bring_up_to_date` what changes with the Session."""

    HORIZONTAL_BREAKPOINTS = _WIDTHS
    VERTICAL_BREAKPOINTS = _HEIGHTS
    ALLOW_IN_MAXIMIZED_VIEW = ".line"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings((HELP, *EVERYWHERE))]
    which: ClassVar[ScreenName]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.set_class(session.ascii_only, "-ascii")

    def compose(self) -> ComposeResult:
        """Top line, body, key line; and the sentence that takes their place when there is no room."""
        yield Pane(draw_top_line, id="top-line", classes="line")
        yield from self.body()
        yield Pane(self._draw_keys, id="key-line", classes="line")
        yield Static(
            f"The console needs {LEAST_WIDTH} columns and {LEAST_HEIGHT} rows. ctrl+q quits.",
            id="too-small",
            markup=False,
        )

    def body(self) -> Iterable[Widget]:
        """The widgets between the two lines."""
        raise NotImplementedError

    def bring_up_to_date(self, view: View) -> None:
        """Show what the screen's own widgets take from the Session; panes are shown before this."""

    def keys(self) -> tuple[Key, ...]:
        """The keys that do something here and now."""
        mine = (*KEYS[self.which], *EVERYWHERE)
        allowed = (key for key in mine if key.footer and not (key.changes and self.session.read_only))
        return tuple(key for key in allowed if self.check_action(key.action.partition("(")[0], ()))

    def on_screen_resume(self) -> None:
        """Show the present, not the moment at which the screen was left."""
        self.refresh_view()

    def on_mount(self) -> None:
        """The first picture."""
        self.refresh_view()

    def refresh_view(self) -> None:
        """Bring every widget up to date; each repaints only if its picture differs."""
        if not self.is_mounted:
            return
        view = self.session.view()
        self.set_class(view.stale_s is not None, "-stale")
        for pane in self.query(Pane):
            pane.show(view)
        self.bring_up_to_date(view)

    def pane_to_zoom(self) -> Widget:
        """What zoom lets fill the screen here and now."""
        raise NotImplementedError

    def action_zoom(self) -> None:
        """One pane fills the screen, or the others come back."""
        self.maximized = None if self.maximized is not None else self.pane_to_zoom()

    def _draw_keys(self, view: View, width: int, _height: int) -> list[Content]:
        return [key_line(HELP, self.keys(), self.which, width, view.unread)]
