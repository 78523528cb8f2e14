"""Two measured curves on one pair of axes: the earlier run dashed with rings, the later solid with dots, so that they are
told apart without colour; intervals stand as upright strokes through their points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from textual.content import Content

from console.experiments.curves import Curve
from console.experiments.svg import Point, top_of
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import ACCENT, PLAIN, QUIET
from console.tui.widgets.chart import nice_ceiling

_MARGIN = 10
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille dots of a cell: [column][row from the top]
_SIDE_BY_SIDE = 56
"""Narrower than this no chart is drawn beside another."""


def draw_overlays(pairs: Sequence[tuple[Curve, Curve]], width: int, glyphs: Glyphs, *, rows: int = 8) -> list[Content]:
    """A chart for each pair (earlier, later), beside each other where there is room; a legend first."""
    if not pairs:
        return []
    legend = Content.assemble(
        (f" {glyphs.ring} ", QUIET), ("before (dashed)   ", QUIET), (f"{glyphs.dot} ", ACCENT), ("after", PLAIN)
    )
    abreast = max(1, min(len(pairs), width // _SIDE_BY_SIDE))
    each = width // abreast - (2 if abreast > 1 else 0)
    charts = [_chart(before, after, each, rows, glyphs) for before, after in pairs]
    lines = [legend]
    for first in range(0, len(charts), abreast):
        lines.append(Content(""))
        lines += _beside(charts[first : first + abreast], each)
    return lines


def matched(before: Sequence[Curve], after: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """The curves that both runs have, of the same name and units, with a point of either."""
    theirs = {_key(curve): curve for curve in after if curve.points}
    named = ((curve, theirs.get(_key(curve))) for curve in before if curve.points)
    return [(curve, other) for curve, other in named if other is not None]


def _key(curve: Curve) -> tuple[str, str, str, str]:
    return curve.name, curve.line, curve.unit_x, curve.unit_y


def _beside(blocks: Sequence[Sequence[Content]], each: int) -> Iterator[Content]:
    for parts in zip(*blocks, strict=True):
        yield Content("  ").join(part.pad_right(max(0, each - part.cell_length)) for part in parts)


def _chart(before: Curve, after: Curve, width: int, rows: int, glyphs: Glyphs) -> list[Content]:
    points = (*before.points, *after.points)
    left, right = min(point.x for point in points), max(point.x for point in points)
    ceiling = nice_ceiling(top_of(points))
    canvas = _Canvas(max(10, width - _MARGIN), rows, left, right, ceiling, glyphs)
    canvas.draw(before.points, later=False)
    canvas.draw(after.points, later=True)
    marks = [f"{ceiling:g}", *([""] * (rows - 2)), "0"]
    ends = f"{left:g}", f"{right:g}".rjust(canvas.columns - len(f"{left:g}"))
    name = f"{before.name} {before.line}".rstrip()
    title = f" {shown(name, glyphs)}, {shown(before.unit_y, glyphs)} over {shown(before.unit_x, glyphs)}"
    return [
        Content.styled(title[:width], PLAIN),
        *(
            Content.assemble((f"{mark:>{_MARGIN - 1}} ", QUIET), *cells)
            for mark, cells in zip(marks, canvas.rows_of_cells(), strict=True)
        ),
        Content.styled(" " * _MARGIN + "".join(ends), QUIET),
    ]


class _Canvas:
    """Cells, each with its dots, its mark, and whether the later run has drawn on it."""

    def __init__(self, columns: int, rows: int, left: float, right: float, ceiling: float, glyphs: Glyphs) -> None:
        self.columns, self._rows, self._glyphs = columns, rows, glyphs
        self._left, self._span, self._ceiling = left, (right - left) or 1.0, ceiling
        self._dots: dict[tuple[int, int], int] = {}
        self._marks: dict[tuple[int, int], str] = {}
        self._later: set[tuple[int, int]] = set()

    def draw(self, points: Sequence[Point], *, later: bool) -> None:
        """The line through the points, dashed for the earlier run, their intervals, and a mark on each point."""
        ordered = sorted(points, key=lambda point: point.x)
        for one, other in pairwise(ordered):
            (x0, y0), (x1, y1) = self._at(one.x, one.y), self._at(other.x, other.y)
            steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            for step in range(steps + 1):
                if later or step % 6 < 3:
                    self._dot(round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps), later)
        for point in ordered:
            if point.ci is not None:
                x, low = self._at(point.x, point.ci[0])
                for y in range(self._at(point.x, point.ci[1])[1], low + 1):
                    self._dot(x, y, later)
        for point in ordered:
            x, y = self._at(point.x, point.y)
            self._marks[y // 4, x // 2] = self._glyphs.dot if later else self._glyphs.ring
            (self._later.add if later else self._later.discard)((y // 4, x // 2))

    def rows_of_cells(self) -> Iterator[list[tuple[str, str]]]:
        """Each row as pieces of one tone."""
        for row in range(self._rows):
            yield [self._cell(row, column) for column in range(self.columns)]

    def _cell(self, row: int, column: int) -> tuple[str, str]:
        place = row, column
        tone = ACCENT if place in self._later else QUIET
        if place in self._marks:
            return self._marks[place], tone
        dots = self._dots.get(place, 0)
        if not dots:
            return " ", PLAIN
        if self._glyphs.ascii:
            return ("-" if place in self._later else "."), tone
        return chr(0x2800 + dots), tone

    def _at(self, x: float, y: float) -> tuple[int, int]:
        """The dot of a point, counted from the left and from the top."""
        share_x = (x - self._left) / self._span
        share_y = min(1.0, max(0.0, y / self._ceiling))
        return round(share_x * (self.columns * 2 - 1)), round((1.0 - share_y) * (self._rows * 4 - 1))

    def _dot(self, x: int, y: int, later: bool) -> None:
        place = y // 4, x // 2
        self._dots[place] = self._dots.get(place, 0) | _DOTS[x % 2][y % 4]
        if later:
            self._later.add(place)
