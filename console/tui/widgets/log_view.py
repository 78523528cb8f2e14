"""The log on screen: it paints the visible lines only, and holds on to a record, not to a row."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from console.box.values import Record
from console.tui.glyphs import Glyphs
from console.tui.log_buffer import LogBuffer
from console.tui.tones import ACCENT, KEY
from console.tui.widgets.log_line import log_line

_SIDEWAYS = 16


class LogView(ScrollView, can_focus=True):
    """Shows a LogBuffer. Following, the newest record is at the bottom; paused, what is on screen stays where it is."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"log-view--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "Line up", show=False),
        Binding("down,j", "step(1)", "Line down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "oldest", "Oldest", show=False),
        Binding("end,G", "follow", "Newest, and follow", show=False),
        Binding("left", "sideways(-1)", "Left", show=False),
        Binding("right", "sideways(1)", "Right", show=False),
    ]

    class Moved(Message):
        """The cursor moved, or following began or ended."""

    def __init__(self, buffer: LogBuffer, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.buffer = buffer
        self.glyphs = glyphs
        self.following = True
        self.marks: set[int] = set()  # record numbers
        self.pattern: re.Pattern[str] | None = None  # what search looks for, shown wherever it stands
        self._cursor = 0  # record number
        self._top = 0  # number of the record in the first row
        self._paused_at = 0  # `received` when the pause began
        self._columns_hidden = 0
        self._placing = False  # the view itself moves, not the operator

    @property
    def cursor(self) -> Record | None:
        """The record under the cursor, or None when there is none to stand on."""
        place = self._cursor_place()
        return None if place is None else self.buffer.record(self.buffer.number_at(place))

    @property
    def cursor_number(self) -> int | None:
        """The number of the record under the cursor."""
        place = self._cursor_place()
        return None if place is None else self.buffer.number_at(place)

    @property
    def new(self) -> int:
        """Records shown that came since the pause began."""
        return 0 if self.following else len(self.buffer) - self.buffer.place_of(self._paused_at)

    @property
    def scrolled_out(self) -> bool:
        """Whether the record that was held on to has left the ring."""
        return not self.following and self._cursor < self.buffer.oldest

    def advance(self) -> None:
        """The buffer grew, or its filter changed: show it, without moving what is held on to."""
        count, rows = len(self.buffer), self.size.height
        place = max(0, count - rows) if self.following else self.buffer.place_of(self._top)
        if self.following and count:
            self._cursor = self.buffer.number_at(count - 1)
        self._placing = True
        self.virtual_size = Size(self.size.width, count)
        self.scroll_to(y=place, animate=False, immediate=True, force=True)
        self._placing = False
        self._top = self._number_at(place)
        self.refresh()

    def pause(self) -> None:
        """Hold on to what is on screen; records keep coming in below."""
        if self.following:
            self.following = False
            self._paused_at = self.buffer.received
            self.post_message(self.Moved())
            self.refresh()

    def action_follow(self) -> None:
        """Go to the newest record and stay with it."""
        self.following = True
        self.advance()
        self.post_message(self.Moved())

    def action_step(self, rows: int) -> None:
        """Move the cursor."""
        place = self._cursor_place()
        if place is not None:
            self.go_to(place + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        self.action_step(pages * max(1, self.size.height - 1))

    def action_oldest(self) -> None:
        """Go to the oldest record kept."""
        self.go_to(0)

    def action_sideways(self, direction: int) -> None:
        """Show more of the ends, or the beginnings, of long lines."""
        self._columns_hidden = max(0, self._columns_hidden + direction * _SIDEWAYS)
        self.refresh()

    def go_to(self, place: int) -> None:
        """Put the cursor on a place among the records shown; this pauses."""
        count, rows = len(self.buffer), max(1, self.size.height)
        if not count:
            return
        self.pause()
        place = min(max(0, place), count - 1)
        self._cursor = self.buffer.number_at(place)
        top = self.buffer.place_of(self._top)
        top = min(max(top, place - rows + 1), place)
        self._top = self._number_at(top)
        self.advance()
        self.post_message(self.Moved())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Wheel and scroll bar pause too, and take the cursor along when it would leave the screen."""
        super().watch_scroll_y(old_value, new_value)
        if self._placing or round(old_value) == round(new_value):
            return
        self.pause()
        top, rows = round(new_value), max(1, self.size.height)
        self._top = self._number_at(top)
        place = self._cursor_place()
        if place is not None:
            self._cursor = self._number_at(min(max(place, top), top + rows - 1))
        self.post_message(self.Moved())

    def on_resize(self, event: Resize) -> None:
        """Keep to the newest record, or to the one held on to."""
        self.advance()

    def render_line(self, y: int) -> Strip:
        """One row, for Textual."""
        place = round(self.scroll_offset.y) + y
        if place >= len(self.buffer):
            return Strip.blank(self.size.width, self.rich_style)
        number = self.buffer.number_at(place)
        gutter = self.glyphs.dot[0] if number in self.marks else " "
        line = Content.assemble((gutter, KEY), self._line(self.buffer.record(number)))
        style = self.visual_style
        if not self.following and place == self._cursor_place():
            line = Content.assemble((self.glyphs.pointer[0], ACCENT), line[1:])
            style = style + self.get_visual_style("log-view--cursor")
        strips = Visual.to_strips(self, line, self.size.width, 1, style, pad=True)
        return strips[0]

    def _line(self, record: Record) -> Content:
        line = log_line(record, self.glyphs)
        if self.pattern is not None:
            line = line.highlight_regex(self.pattern, style="reverse")
        return line[self._columns_hidden :] if self._columns_hidden else line

    def _cursor_place(self) -> int | None:
        count = len(self.buffer)
        return min(self.buffer.place_of(self._cursor), count - 1) if count else None

    def _number_at(self, place: int) -> int:
        count = len(self.buffer)
        return self.buffer.number_at(min(place, count - 1)) if count else 0
