"""The few tones of the screen, each a Textual style made of theme variables: one name for one meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.content import Content

from console.tui.glyphs import Glyphs

QUIET: Final = "$text-muted"
"""Labels, units, and what does not matter now."""
PLAIN: Final = "$foreground"
STRONG: Final = "bold $foreground"
ACCENT: Final = "$accent"
KEY: Final = "bold $accent"
GOOD: Final = "$success"
WARN: Final = "$warning"
BAD: Final = "bold $error"
RATE: Final = "$chart-rate"
COMMIT: Final = "$chart-commit"
STEP: Final = "$chart-step"
STAGES: Final = ("$stage-1", "$stage-2", "$stage-3", "$stage-4", "$stage-5", "$stage-6")

Piece = str | tuple[str, str] | Content
LABEL_WIDTH: Final = 10
"""Columns of the label that starts each row, so that everything to the right of it is aligned."""


def label(text: str) -> Content:
    """The quiet label at the start of a row, padded to the label column."""
    return Content.styled(f" {text}".ljust(LABEL_WIDTH), QUIET)


def row(name: str, *pieces: Piece) -> Content:
    """A row: its label, then `pieces`."""
    return Content.assemble(label(name), *pieces)


def within(parts: Sequence[Content], width: int, gap: str = "  ") -> Content:
    """Whole `parts` from the first on, `gap` between them, as many as `width` columns hold: none is cut in the middle."""
    line = Content("").join(parts[:1])
    for part in parts[1:]:
        longer = Content.assemble(line, gap, part)
        if longer.cell_length > width:
            break
        line = longer
    return line


def fitted(line: Content, width: int, glyphs: Glyphs) -> Content:
    """`line` cut to `width` columns, with an ellipsis when something was cut."""
    if line.cell_length <= width:
        return line
    return line.truncate(max(0, width - len(glyphs.ellipsis))).append(glyphs.ellipsis)
