"""Log: the engine's journal, followed or held; filtered, searched, marked, exported."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from console.errors import OperatorError, UsageError
from console.tui.export import export_records
from console.tui.glyphs import shown
from console.tui.keys import LOG, bindings
from console.tui.log_buffer import compiled, parse_filter
from console.tui.screens.asking import perform
from console.tui.screens.record import RecordScreen
from console.tui.screens.screen import ConsoleScreen
from console.tui.session import Session
from console.tui.tones import ACCENT, BAD, GOOD, PLAIN, QUIET, WARN, within
from console.tui.view import View
from console.tui.widgets.empty_log import draw_empty_log
from console.tui.widgets.log_line import LEVELS
from console.tui.widgets.log_view import LogView
from console.tui.widgets.pane import Pane
from console.tui.words import count_of

SAID_FOR_S = 6.0
"""How long the status line tells what a key did; then it is the status again."""


EMPTY_FOR_S = 2.0
"""A log that is still empty after this long has a reason, and the box is asked for it."""


class LogScreen(ConsoleScreen):
    """The view holds the log; this screen has its keys, its status line, and one line to type in."""

    which = "log"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(LOG)]
    AUTO_FOCUS = "#log-view"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._level = 0  # place in LEVELS
        self._asking = ""  # what the line is typed for: filter, find or time
        self._fault: str | None = None
        self._received = -1
        self._asked = False  # why the log is empty
        self._said = ""
        self._said_timer: Timer | None = None

    def body(self) -> Iterable[Widget]:
        """Status, the log or why there is none, the line to type in."""
        yield Pane(self._draw_status, id="log-status")
        with Vertical(id="log-body"):
            yield LogView(self.session.log, self.session.glyphs, id="log-view")
            yield Pane(self._draw_empty, id="log-empty")
        yield Input(id="log-input", compact=True)

    def on_mount(self) -> None:
        """Nothing is being typed at first."""
        self._input.display = False
        super().on_mount()

    def bring_up_to_date(self, view: View) -> None:
        """Let the log grow, or show why it is empty."""
        if self.session.log.received != self._received:
            self._received = self.session.log.received
            self._view.advance()
        empty = len(self.session.log) == 0
        self._view.display = not empty
        live = view.link is not None and view.link.name == "LIVE"
        if empty and live and not self.session.log.received and not self._asked:
            self._asked = True
            self.set_timer(EMPTY_FOR_S, self._explain)
        self.query_one("#log-empty").display = empty

    def _explain(self) -> None:
        if not self.session.log.received:
            perform(self, self.session, self.session.explain_empty_log())

    def pane_to_zoom(self) -> Widget:
        """The log without its status line."""
        return self.query_one("#log-body")

    def action_pause(self) -> None:
        """Pause, or follow again."""
        if self._view.following:
            self._view.pause()
        else:
            self._view.action_follow()
        self.refresh_view()

    def action_filter(self) -> None:
        """Ask for a filter."""
        self._ask(
            "filter", self.session.log.filter.text, "filter: a pattern; !pattern hides what matches; blank shows all"
        )

    def action_find(self) -> None:
        """Ask for a search pattern."""
        pattern = self._view.pattern
        self._ask("find", pattern.pattern if pattern else "", "find: a pattern; then n and N go from match to match")

    def action_jump(self) -> None:
        """Ask for a time of day."""
        self._ask("time", "", "time: 12:04 or 12:04:30")

    def action_find_next(self, step: int) -> None:
        """Go to the next match."""
        pattern, place = self._view.pattern, self._cursor_place
        if pattern is None:
            self.action_find()
            return
        found = self.session.log.find(pattern, place + step, step) if len(self.session.log) else None
        if found is None:
            self._say(f"no line shown matches {pattern.pattern}")
            return
        went_round = found <= place if step > 0 else found >= place
        self._view.go_to(found)  # which makes it forget what was said
        self._say(f"went round: on from the {'oldest' if step > 0 else 'newest'} line" if went_round else "")

    def action_level(self) -> None:
        """Let through the next graver level, after the gravest all again."""
        self._level = (self._level + 1) % len(LEVELS)
        self._set_filter(self.session.log.filter.text)

    def action_mark(self) -> None:
        """Mark the line under the cursor, or take the mark away."""
        number = self._view.cursor_number
        if number is not None:
            self._view.marks ^= {number}
            self._view.pause()
            self._view.refresh()
            self.refresh_view()

    def action_next_mark(self) -> None:
        """Go to the next marked line, after the last to the first."""
        places = sorted(self.session.log.place_of(number) for number in self._view.marks)
        if not places:
            self._say("no line is marked: m marks one")
            return
        self._view.go_to(next((place for place in places if place > self._cursor_place), places[0]))
        self.refresh_view()

    def action_whole(self) -> None:
        """The whole record."""
        record = self._view.cursor
        if record is not None:
            self._view.pause()
            self.app.push_screen(RecordScreen(record, self.session.glyphs))

    def action_copy(self) -> None:
        """Copy the line under the cursor. Whether the terminal took it cannot be known."""
        record = self._view.cursor
        if record is not None:
            self.app.copy_to_clipboard(record.message)
            self._say("sent to the terminal's clipboard; where it has none, x writes a file")

    def action_export(self) -> None:
        """Write what is shown to a file."""
        log = self.session.log
        marked = {log.record(number).cursor for number in self._view.marks if number >= log.oldest}
        try:
            path = export_records(self.session.host, list(log.shown()), marked, self.session.wall_clock())
        except OperatorError as error:
            self.session.note("failure", str(error))
            self._say(str(error))
            return
        self.session.note("success", f"{count_of(len(log), 'record')} written to {path}")
        self._say(f"written to {path}")

    @on(Input.Submitted, "#log-input")
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            self._answer(event.value)
        except UsageError as error:
            self._fault = str(error)
            self.refresh_view()
            return
        self._close_input()

    def key_escape(self) -> None:
        """Leave the line as it was."""
        self._close_input()

    @on(LogView.Moved)
    def _moved(self, event: LogView.Moved) -> None:
        event.stop()
        self.refresh_view()

    def _answer(self, text: str) -> None:
        if self._asking == "filter":
            self._set_filter(text)
        elif self._asking == "find":
            self._view.pattern = compiled(text) if text else None
            self._view.refresh()
            if text:
                # Who looks for something at the end of a log wants to know when it last happened.
                at_end = self._cursor_place >= len(self.session.log) - 1
                self.action_find_next(-1 if at_end else 1)
        elif text:
            self._view.go_to(self._place_at(text))

    def _set_filter(self, text: str) -> None:
        self.session.log.set_filter(parse_filter(text, LEVELS[self._level][1]))
        self._view.rearrange()
        self.refresh_view()

    def _place_at(self, text: str) -> int:
        """The place of the first record shown at or after a time of day."""
        wanted = text.strip() if text.count(":") == 2 else f"{text.strip()}:00"
        try:
            moment = datetime.strptime(wanted, "%H:%M:%S").time()
        except ValueError as error:
            raise UsageError(f"{text!r} is no time of day", mend="write 12:04 or 12:04:30") from error
        for place, record in enumerate(self.session.log.shown()):
            if datetime.fromtimestamp(record.realtime_us / 1e6).time() >= moment:
                return place
        return len(self.session.log) - 1

    def _ask(self, what: str, value: str, placeholder: str) -> None:
        self._asking, self._fault = what, None
        self._input.placeholder = placeholder
        self._input.value = value
        self._input.display = True
        self._input.focus()

    def _close_input(self) -> None:
        self._asking, self._fault = "", None
        self._input.display = False
        self._view.focus()
        self.refresh_view()

    def _say(self, text: str) -> None:
        """Say something in the status line for a while."""
        self._said = text
        if self._said_timer is not None:
            self._said_timer.stop()
        self._said_timer = self.set_timer(SAID_FOR_S, self._say_nothing)
        self.refresh_view()

    def _say_nothing(self) -> None:
        self._said = ""
        self.refresh_view()

    def _draw_status(self, view: View, width: int, _height: int) -> list[Content]:
        log, glyphs = self.session.log, view.glyphs
        if self._fault is not None:
            return [Content.styled(f" {glyphs.no} {shown(self._fault, glyphs)}", BAD)]
        if self._view.following:
            parts = [Content.styled(" following", GOOD)]
        else:
            parts = [Content.assemble((" paused", f"bold {WARN}"), (f"  {self._view.new:,} new", PLAIN))]
        if self._said:
            return [Content.assemble(parts[0], "   ", (shown(self._said, glyphs), ACCENT))]
        if self._view.scrolled_out:
            parts.append(Content.styled("the line held has left the ring", WARN))
        kept = count_of(log.received - log.oldest, "record")
        narrowed = log.filter.text or self._level
        parts.append(Content.styled(f"{len(log):,} of {kept}" if narrowed else kept, QUIET))
        if log.filter.text:
            parts.append(Content.styled(f"filter {shown(log.filter.text, glyphs)}", WARN))
        if self._level:
            parts.append(Content.styled(f"{LEVELS[self._level][0]} and graver", WARN))
        if self._view.pattern is not None:
            parts.append(Content.styled(f"find {shown(self._view.pattern.pattern, glyphs)}", ACCENT))
        if not self._view.following:
            parts.append(Content.styled("space follows", QUIET))
        return [within(parts, width, "   ")]

    def _draw_empty(self, view: View, width: int, _height: int) -> list[Content]:
        log = self.session.log
        text = log.filter.text or LEVELS[self._level][0]
        trouble, found, kept = self.session.log_trouble, self.session.log_empty, log.received - log.oldest
        return draw_empty_log(view, trouble, found, width, kept=kept, filter_text=text)

    @property
    def _cursor_place(self) -> int:
        number = self._view.cursor_number
        return 0 if number is None else self.session.log.place_of(number)

    @property
    def _view(self) -> LogView:
        return self.query_one("#log-view", LogView)

    @property
    def _input(self) -> Input:
        return self.query_one("#log-input", Input)
