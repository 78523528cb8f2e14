"""The log on screen: it paints the visible lines only, and holds on to a record, not to a row."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollDown, ScrollTo, ScrollUp
from textual.strip import Strip
from textual.visual import Visual

from console.box.values import Record
from console.tui.glyphs import Glyphs
from console.tui.log_buffer import LogBuffer
from console.tui.tones import ACCENT, KEY
from console.tui.widgets.log_line import log_line

_SIDEWAYS = 16
_WHEEL = 3


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
        self._rows_free = True  # below the last record

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
        """The buffer grew: follow it. Paused, nothing on screen changes, so nothing is painted, unless rows were free."""
        if self.following or self.scrolled_out or self._rows_free:
            self.rearrange()

    def rearrange(self) -> None:
        """Bring scroll bar and rows in line with the buffer, without moving what is held on to."""
        count, rows = len(self.buffer), self.size.height
        if self.following and count:
            self._cursor = self.buffer.number_at(count - 1)
            self._top = self._number_at(count - 1)
        place = min(self._top_place, max(0, count - rows))  # no free rows while there are records above
        self._top = self._number_at(place)
        self._rows_free = count - place < rows
        self.virtual_size = Size(self.size.width, count)
        self.scroll_to(y=place, animate=False, immediate=True, force=True)
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
        self.rearrange()
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
        self._top = self._number_at(min(max(self._top_place, place - rows + 1), place))
        self.rearrange()
        self.post_message(self.Moved())

    def scroll_rows(self, top: int) -> None:
        """Put place `top` into the first row; this pauses and takes the cursor along when it would leave the screen."""
        self.pause()
        rows = max(1, self.size.height)
        top = min(max(0, top), max(0, len(self.buffer) - rows))
        self._top = self._number_at(top)
        place = self._cursor_place()
        if place is not None:
            self._cursor = self._number_at(min(max(place, top), top + rows - 1))
        self.rearrange()
        self.post_message(self.Moved())

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """The wheel scrolls by rows."""
        self._take_over(event)
        self.scroll_rows(self._top_place - _WHEEL)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """The wheel scrolls by rows."""
        self._take_over(event)
        self.scroll_rows(self._top_place + _WHEEL)

    def on_scroll_up(self, event: ScrollUp) -> None:
        """A click above the scroll bar's handle."""
        self._take_over(event)
        self.scroll_rows(self._top_place - self.size.height)

    def on_scroll_down(self, event: ScrollDown) -> None:
        """A click below the scroll bar's handle."""
        self._take_over(event)
        self.scroll_rows(self._top_place + self.size.height)

    def on_scroll_to(self, event: ScrollTo) -> None:
        """The scroll bar's handle is dragged."""
        self._take_over(event)
        if event.y is not None:
            self.scroll_rows(round(event.y))

    def on_click(self, event: Click) -> None:
        """A click puts the cursor there."""
        self.go_to(self._top_place + event.y)

    def on_resize(self, event: Resize) -> None:
        """Keep to the newest record, or to the one held on to."""
        self.rearrange()

    def render_line(self, y: int) -> Strip:
        """One row, for Textual."""
        place = self._top_place + y
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

    def _take_over(self, event: Message) -> None:
        """Textual's own scrolling moves by rows, which slide; ours moves by records."""
        event.stop()
        event.prevent_default()

    @property
    def _top_place(self) -> int:
        return self.buffer.place_of(self._top)

    def _cursor_place(self) -> int | None:
        count = len(self.buffer)
        return min(self.buffer.place_of(self._cursor), count - 1) if count else None

    def _number_at(self, place: int) -> int:
        count = len(self.buffer)
        return self.buffer.number_at(min(place, count - 1)) if count else 0
