"""Pane: a widget whose picture is a pure function of a View and of its own size, repainted only when it differs."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.widget import Widget

from console.tui.tones import fitted
from console.tui.view import View

Draw = Callable[[View, int, int], list[Content]]
"""(view, columns, rows) -> at most `rows` lines, none wider than `columns`; `rows` is 0 where the height is free."""


class Pane(Widget):
    """Shows what `draw` makes of the newest View. With `tall=False` it is as high as its lines, else as CSS says."""

    def __init__(
        self,
        draw: Draw,
        *,
        id: str | None = None,  # the name Textual's own widgets give it
        classes: str | None = None,
        tall: bool = False,
        zoomable: bool = False,
    ) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._draw = draw
        self._tall = tall
        self._view: View | None = None
        self._picture = Content("")
        self._wanted = 0  # rows
        self.can_focus = zoomable

    def show(self, view: View) -> None:
        """Draw `view`; nothing is repainted when the picture is the one on screen."""
        self._view = view
        width, height = self.content_size
        if width == 0:
            return
        wanted = height if self._tall else self._rows_wanted(view, width)
        # Less room than wanted: the style sheet has a say too, and the picture is drawn for the rows there are.
        picture = self._drawn(view, width, min(wanted, height) if height else wanted)
        grown, self._wanted = wanted != self._wanted, wanted
        if not picture.is_same(self._picture):
            self._picture = picture
            self.refresh(layout=grown and not self._tall)
        elif grown and not self._tall:
            self.refresh(layout=True)

    def render(self) -> Content:
        """The picture, for Textual."""
        return self._picture

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Rows wanted where CSS leaves the height open."""
        if self._tall or self._view is None:
            return super().get_content_height(container, viewport, width)
        return self._rows_wanted(self._view, width)

    def on_resize(self, event: Resize) -> None:
        """Draw again at the new size."""
        if self._view is not None:
            self.show(self._view)

    def _rows_wanted(self, view: View, width: int) -> int:
        return len(self._draw(view, width, 0))

    def _drawn(self, view: View, width: int, height: int) -> Content:
        lines = self._draw(view, width, height)[: height or None]
        return Content("\n").join(fitted(line, width, view.glyphs) for line in lines)
