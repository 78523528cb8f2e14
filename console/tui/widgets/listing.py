"""A list with a cursor: each item is drawn by a function, as one line or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from console.tui.glyphs import Glyphs
from console.tui.tones import fitted

DrawItem = Callable[[int, int], list[Content]]
"""(item, columns) -> its lines."""


class Listing(ScrollView, can_focus=True):
    """Items under a cursor. `selectable` says where the cursor may stand; headings are not selectable."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"listing--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "Up", show=False),
        Binding("down,j", "step(1)", "Down", show=False),
        Binding("pageup", "step(-10)", "Page up", show=False),
        Binding("pagedown", "step(10)", "Page down", show=False),
        Binding("home", "step(-100000)", "First", show=False),
        Binding("end", "step(100000)", "Last", show=False),
    ]

    class Moved(Message):
        """The cursor is on another item."""

        def __init__(self, listing: Listing) -> None:
            super().__init__()
            self.listing = listing

        @property
        def control(self) -> Listing:
            """The list whose cursor moved."""
            return self.listing

    def __init__(self, draw: DrawItem, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self._draw = draw
        self._glyphs = glyphs
        self._selectable: list[bool] = []
        self._lines: list[tuple[int, Content]] = []  # (item, line)

    def fill(self, selectable: list[bool], cursor: int | None = None) -> None:
        """Draw all items again; the cursor stays where it is unless told otherwise."""
        self._selectable = selectable
        self.cursor = self._nearest(self.cursor if cursor is None else cursor)
        self._redraw()

    def action_step(self, items: int) -> None:
        """Move the cursor over selectable items."""
        places = [place for place, may in enumerate(self._selectable) if may]
        if not places:
            return
        wanted = min(max(places[0], self.cursor + items), places[-1])
        ahead = [place for place in places if (place >= wanted if items > 0 else place <= wanted)]
        self.move_to(ahead[0] if items > 0 else ahead[-1])

    def move_to(self, item: int) -> None:
        """Put the cursor on an item and bring it into view."""
        if item != self.cursor:
            self.cursor = item
            self._redraw()
            self.post_message(self.Moved(self))
        first = item
        while first > 0 and not self._selectable[first - 1]:
            first -= 1  # the heading belongs to what is below it
        rows = [row for row, (owner, _) in enumerate(self._lines) if first <= owner <= item]
        if rows:
            region = Region(0, rows[0], self.size.width, len(rows))
            self.scroll_to_region(region, animate=False, force=True, immediate=True)

    def on_click(self, event: Click) -> None:
        """A click moves the cursor."""
        row = event.y + round(self.scroll_offset.y)
        if row < len(self._lines) and self._selectable[self._lines[row][0]]:
            self.move_to(self._lines[row][0])

    def on_resize(self, event: Resize) -> None:
        """Lines depend on the width."""
        self._redraw()

    def on_focus(self) -> None:
        """The cursor is brighter with the focus."""
        self.refresh()

    def on_blur(self) -> None:
        """The cursor is quieter without the focus."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row, for Textual."""
        row = y + round(self.scroll_offset.y)
        if row >= len(self._lines):
            return Strip.blank(self.scrollable_content_region.width, self.rich_style)
        item, line = self._lines[row]
        style = self.visual_style
        if item == self.cursor and self._selectable[item]:
            style = style + self.get_visual_style("listing--cursor")
        return Visual.to_strips(self, line, self.scrollable_content_region.width, 1, style, pad=True)[0]

    def _redraw(self) -> None:
        width = self.scrollable_content_region.width
        self._lines = [
            (item, fitted(line, width, self._glyphs))
            for item in range(len(self._selectable))
            for line in self._draw(item, width)
        ]
        self.virtual_size = Size(width, len(self._lines))
        self.refresh()

    def _nearest(self, item: int) -> int:
        """The selectable item at or after `item`, else the last one before it."""
        places = [place for place, may in enumerate(self._selectable) if may]
        return next((place for place in places if place >= item), places[-1] if places else 0)
