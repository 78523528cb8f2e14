"""Commit histogram: how many steps kept 1, 2, 3 … tokens, over the newest windows."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from console.telemetry.rates import Rates, rates_over
from console.tui.glyphs import Glyphs
from console.tui.tones import COMMIT, LABEL_WIDTH, PLAIN, QUIET, label, row
from console.tui.view import View
from console.tui.widgets.bars import column_chart, level
from console.tui.widgets.figures import PARTIAL, decode_windows
from console.tui.words import count_of

WINDOWS = 60
"""Windows summed, about a minute: fewer would dance."""


def commits_of(view: View) -> tuple[int, ...]:
    """`[i]` is the number of steps that kept i+1 tokens; trailing lengths that never came are left out."""
    rates = _rates(view)
    counts = list(rates.hist) if rates else []
    while counts and counts[-1] == 0:
        counts.pop()
    return tuple(counts)


def draw_commits(view: View, width: int, height: int) -> list[Content]:
    """Columns with their shares where there are rows for it, else one line `1 ▂ 2 ▅ 3 █`."""
    counts = commits_of(view)
    if not sum(counts):
        return []
    rates = _rates(view)
    partial = rates is not None and rates.partial
    if height >= 4:
        return _columns(counts, width, height, view.glyphs, partial=partial)
    return [_line(counts, width, view.glyphs, partial=partial)]


def _rates(view: View) -> Rates | None:
    return rates_over(decode_windows(view)[-WINDOWS:])


def _line(counts: Sequence[int], width: int, glyphs: Glyphs, *, partial: bool) -> Content:
    peak = max(counts)
    parts: list[str | tuple[str, str]] = []
    for index, count in enumerate(counts):
        parts += [(f"{index + 1} ", QUIET), (f"{level(count / peak, glyphs)} ", COMMIT)]
    total = f"{f'  {PARTIAL}' if partial else ''}  of {count_of(sum(counts), 'step')}"
    line = row("commits", *parts)
    return line.append_text(total, QUIET) if line.cell_length + len(total) <= width else line


def _columns(counts: Sequence[int], width: int, height: int, glyphs: Glyphs, *, partial: bool) -> list[Content]:
    heads = ("commits", PARTIAL if partial else "")
    room = width - LABEL_WIDTH
    column = max(2, min(5, (room + 1) // len(counts) - 1))
    shown = counts[: max(1, (room + 1) // (column + 1))]
    peak, steps = max(counts), sum(counts)
    chart = column_chart([count / peak for count in shown], height - 2, column, glyphs)
    numbers = " ".join(f"{index + 1:^{column}}" for index in range(len(shown)))
    shares = " ".join(_share(count / steps, column) for count in shown)
    return [
        *(
            Content.assemble(label(heads[index] if index < len(heads) else ""), (line, COMMIT))
            for index, line in enumerate(chart)
        ),
        row("tokens", (numbers, PLAIN)),
        row("% steps", (shares, QUIET)),
    ]


def _share(fraction: float, column: int) -> str:
    return f"{100 * fraction:^{column}.0f}" if fraction >= 0.005 or fraction == 0 else "<1".center(column)
