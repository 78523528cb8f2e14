"""The list of runs: when, where, what, and how each ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from textual.content import Content

from console.experiments.store import RunSummary
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import ACCENT, BAD, GOOD, KEY, PLAIN, QUIET, STRONG, WARN, Piece, within
from console.tui.widgets.verdict_card import class_mark
from console.tui.words import day_and_clock

LONGEST_NAME = 20


@dataclass(frozen=True)
class Columns:
    """Widths of the columns, the same in every row."""

    host: int
    playbook: int
    state: int


def columns_of(runs: Sequence[RunSummary]) -> Columns:
    """As wide as the widest entry, within reason."""
    return Columns(
        min(LONGEST_NAME, max((len(run.host) for run in runs), default=0)),
        min(LONGEST_NAME, max((len(run.playbook) for run in runs), default=0)),
        max((len(_state(run)) for run in runs), default=0),
    )


def matching(runs: Sequence[RunSummary], text: str) -> tuple[RunSummary, ...]:
    """The runs in whose line each word of `text` is found; small letters match both cases."""
    words = text.split()
    return tuple(run for run in runs if all(_found(word, _line(run)) for word in words))


def draw_run_row(
    run: RunSummary, columns: Columns, width: int, glyphs: Glyphs, *, here: bool = False, marked: Collection[str] = ()
) -> list[Content]:
    """`▸ * 29 Nov 18:02  gpu-01  context_curve  ✓ explained  golden  153.7 -> 32.7 tok/s …`, the headline where it fits."""
    mark, tone = _state_mark(run, glyphs)
    head: list[Piece] = [
        (f" {glyphs.pointer if here else ' '} ", KEY),
        (f"{glyphs.dot if run.id in marked else ' '} ", ACCENT),
        (f"{shown(day_and_clock(run.started), glyphs)}  ", QUIET),
        (f"{clipped(shown(run.host, glyphs), columns.host, glyphs)}  ", QUIET),
        (f"{clipped(shown(run.playbook, glyphs), columns.playbook, glyphs)}  ", STRONG if here else PLAIN),
        (f"{mark:<2}{shown(_state(run), glyphs):<{columns.state}}", tone),
    ]
    parts = [Content.assemble(*head)]
    if run.pinned:
        parts.append(Content.styled("golden", WARN))
    line = within(parts, width)
    if line.cell_length > width or len(parts) == 1:
        line = line.rstrip()  # the state is the last word: its padding must not be cut as if it were text
    room = width - line.cell_length - 2
    if run.headline and room >= 24:
        line = Content.assemble(line, "  ", (shown(run.headline, glyphs), QUIET))
    return [line]


def _state(run: RunSummary) -> str:
    return (run.verdict_class or run.status).replace("_", " ")


def _state_mark(run: RunSummary, glyphs: Glyphs) -> tuple[str, str]:
    if run.verdict_class is not None:
        return class_mark(run.verdict_class, glyphs)
    if run.status == "running":
        return glyphs.restart[0], ACCENT
    return (glyphs.yes, GOOD) if run.status == "done" else (glyphs.no, BAD)


def clipped(text: str, width: int, glyphs: Glyphs) -> str:
    """`text` in exactly `width` columns, with an ellipsis where it was cut."""
    return text[: width - len(glyphs.ellipsis)] + glyphs.ellipsis if len(text) > width else text.ljust(width)


def _line(run: RunSummary) -> str:
    golden = "golden" if run.pinned else ""
    parts = (run.id, run.started, run.host, run.playbook, run.status, _state(run), golden, run.headline or "")
    return " ".join(parts)


def _found(word: str, line: str) -> bool:
    return word in line if word != word.lower() else word in line.lower()
