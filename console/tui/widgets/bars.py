"""Horizontal bars and small columns, the building stones of stage bars, pools and histograms."""

from __future__ import annotations

from collections.abc import Sequence

from console.tui.glyphs import Glyphs


def bar(fraction: float, columns: int, glyphs: Glyphs) -> str:
    """A bar `fraction` of `columns` long, to an eighth of a column, without padding; something above zero shows."""
    if columns <= 0 or fraction <= 0:
        return ""
    steps = len(glyphs.eighths) - 1
    units = max(1, round(min(1.0, fraction) * columns * steps))
    whole, rest = divmod(units, steps)
    return glyphs.bar * whole + (glyphs.eighths[rest] if rest else "")


def gauge(fraction: float, columns: int, glyphs: Glyphs) -> tuple[str, str]:
    """A bar and the track that fills it up to `columns`: how full something is."""
    filled = bar(fraction, columns, glyphs)
    return filled, glyphs.track * (columns - len(filled))


def level(fraction: float, glyphs: Glyphs) -> str:
    """One character as high as `fraction`; something above zero shows."""
    top = len(glyphs.levels) - 1
    return glyphs.levels[0 if fraction <= 0 else max(1, round(min(1.0, fraction) * top))]


def column_chart(fractions: Sequence[float], rows: int, width: int, glyphs: Glyphs) -> list[str]:
    """`rows` lines, top first: one column of `width` characters for each fraction, one blank between them."""
    top = len(glyphs.levels) - 1
    heights = [0 if fraction <= 0 else max(1, round(min(1.0, fraction) * rows * top)) for fraction in fractions]
    return [
        " ".join(glyphs.levels[min(top, max(0, height - row * top))] * width for height in heights)
        for row in range(rows - 1, -1, -1)
    ]
