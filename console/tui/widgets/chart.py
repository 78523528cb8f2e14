"""Charts in characters: values on a time axis, pooled by maximum so that no spike is lost, drawn as a filled area."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from console.tui.glyphs import Glyphs

SPANS_S = (30.0, 60.0, 120.0, 180.0, 300.0, 480.0, 720.0, 1200.0, 1800.0, 3600.0, 14400.0, 86400.0)
"""Lengths of the time axis: the shortest that holds all windows is taken, so that a young chart is not empty."""

_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)  # braille dots of a cell's left column, from the bottom up
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)


@dataclass(frozen=True)
class Window:
    """One measured value, which holds from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    value: float


@dataclass(frozen=True)
class TimeAxis:
    """The stretch of time that all charts of a screen share. Seconds since the epoch."""

    start_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        """Seconds from left to right."""
        return self.end_s - self.start_s


def axis_over(windows: Sequence[Window]) -> TimeAxis | None:
    """The shortest of the standard axes that ends with the newest window and holds the oldest; None without windows."""
    if not windows:
        return None
    end_s = max(window.end_s for window in windows)
    needed_s = end_s - min(window.start_s for window in windows)
    span_s = next((span for span in SPANS_S if span >= needed_s), SPANS_S[-1])
    return TimeAxis(end_s - span_s, end_s)


def pooled(windows: Sequence[Window], axis: TimeAxis, columns: int) -> list[float | None]:
    """The greatest value in force within each column's share of the axis; None where nothing was measured."""
    out: list[float | None] = [None] * columns
    if not columns:
        return out
    per_column_s = axis.span_s / columns
    for window in windows:
        first = math.floor((window.start_s - axis.start_s) / per_column_s)
        # The end is exclusive, or a window would reach into the column that begins where it ends.
        last = math.ceil((window.end_s - axis.start_s) / per_column_s) - 1
        for column in range(max(0, first), min(columns - 1, max(first, last)) + 1):
            before = out[column]
            out[column] = window.value if before is None else max(before, window.value)
    return out


def nice_ceiling(value: float) -> float:
    """The least of 1, 2, 2.5, 4, 5, 8 × 10^n that is not below `value`: the top of a scale."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0) if step * power >= value * 0.999999)


def area(values: Sequence[float | None], rows: int, ceiling: float, glyphs: Glyphs) -> list[str]:
    """`rows` lines, top first, of the area under `values` on a scale of 0 to `ceiling`.

    A braille cell takes two values and has four levels; in ASCII a cell takes one value and has three. A value above
    zero always leaves a mark; a gap leaves none.
    """
    return _ascii_area(values, rows, ceiling) if glyphs.ascii else _braille_area(values, rows, ceiling)


def values_per_cell(glyphs: Glyphs) -> int:
    """How many values `area` puts beside each other into one column of the terminal."""
    return 1 if glyphs.ascii else 2


def _braille_area(values: Sequence[float | None], rows: int, ceiling: float) -> list[str]:
    heights = [_height(value, rows * 4, ceiling) for value in values]
    heights += [0] * (len(heights) % 2)
    lines = []
    for row in range(rows - 1, -1, -1):
        cells = []
        for left, right in zip(heights[::2], heights[1::2], strict=True):
            dots = sum(_LEFT_DOTS[: min(4, max(0, left - row * 4))])
            dots += sum(_RIGHT_DOTS[: min(4, max(0, right - row * 4))])
            cells.append(chr(0x2800 + dots) if dots else " ")
        lines.append("".join(cells))
    return lines


def _ascii_area(values: Sequence[float | None], rows: int, ceiling: float) -> list[str]:
    heights = [_height(value, rows * 3, ceiling) for value in values]
    return ["".join(" .:#"[min(3, max(0, height - row * 3))] for height in heights) for row in range(rows - 1, -1, -1)]


def _height(value: float | None, levels: int, ceiling: float) -> int:
    if value is None or not math.isfinite(value) or value <= 0:
        return 0
    return max(1, min(levels, round(levels * value / ceiling)))
