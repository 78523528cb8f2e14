"""Stage bars: where the milliseconds of a step go, in the order in which the stages run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from console.telemetry.rates import Rates, rates_over
from console.tui.glyphs import Glyphs
from console.tui.tones import LABEL_WIDTH, PLAIN, QUIET, STAGES, label, row
from console.tui.view import View
from console.tui.widgets.bars import bar
from console.tui.widgets.figures import NOW_WINDOWS, PARTIAL, decode_windows
from console.tui.words import figure

ORDER = ("draft", "build", "verify", "walk", "commit", "host")
_UNIT = "ms a step"
_GAP = "  "


@dataclass(frozen=True)
class Stage:
    """One stage of a decode round: its milliseconds a step and its share of the whole step."""

    name: str
    ms: float
    share: float
    tone: str


def stages_of(view: View) -> list[Stage]:
    """The stages of the newest windows, known ones in running order, any others after them."""
    rates = _rates(view)
    if rates is None or not rates.stages_ms:
        return []
    names = [name for name in ORDER if name in rates.stages_ms]
    names += [name for name in rates.stages_ms if name not in ORDER]
    whole = sum(rates.stages_ms.values()) or 1.0
    return [
        Stage(name, rates.stages_ms[name], rates.stages_ms[name] / whole, STAGES[index % len(STAGES)])
        for index, name in enumerate(names)
    ]


def draw_stages(view: View, width: int, height: int) -> list[Content]:
    """One stage a row where there is room for it; else all of them in one or two rows."""
    stages = stages_of(view)
    if not stages:
        return []
    rates = _rates(view)
    partial = rates is not None and rates.partial
    if height >= len(stages):
        return _list(stages, width, view.glyphs, partial=partial)
    return _flow(stages, width, max(1, height), view.glyphs, f"{_UNIT}, {PARTIAL}" if partial else _UNIT)


def _rates(view: View) -> Rates | None:
    return rates_over(decode_windows(view)[-NOW_WINDOWS:])


def _list(stages: Sequence[Stage], width: int, glyphs: Glyphs, *, partial: bool) -> list[Content]:
    heads = ("stages", "ms/step", PARTIAL if partial else "")
    name_width = max(len(stage.name) for stage in stages) + 1
    columns = max(1, width - LABEL_WIDTH - name_width - len("  1,000.0  100 % "))
    return [
        Content.assemble(
            label(heads[index] if index < len(heads) else ""),
            (stage.name.ljust(name_width), QUIET),
            (bar(stage.share, columns, glyphs).ljust(columns), stage.tone),
            (f"{figure(stage.ms):>9}", PLAIN),
            (f"{100 * stage.share:>5.0f} %", QUIET),
        )
        for index, stage in enumerate(stages)
    ]


def _flow(stages: Sequence[Stage], width: int, rows: int, glyphs: Glyphs, unit: str) -> list[Content]:
    """The longest bars, on one scale, with which all stages still fit into `rows`."""
    room = width - LABEL_WIDTH
    lines: list[list[Content]] = []
    for columns in range(room, 0, -1):
        lines = _wrapped([_item(stage, columns, glyphs) for stage in stages], room)
        if len(lines) <= rows and sum(part.cell_length for part in lines[-1]) + len(unit) <= room:
            break
    return [
        row("stages" if index == 0 else "", *line, *([(unit, QUIET)] if index == len(lines) - 1 else [])).rstrip()
        for index, line in enumerate(lines)
    ]


def _item(stage: Stage, columns: int, glyphs: Glyphs) -> Content:
    drawn = bar(stage.share, columns, glyphs)
    return Content.assemble((f"{stage.name} ", QUIET), (drawn, stage.tone), (f" {figure(stage.ms)}{_GAP}", PLAIN))


def _wrapped(items: Sequence[Content], room: int) -> list[list[Content]]:
    lines: list[list[Content]] = [[]]
    used = 0
    for item in items:
        if used and used + item.cell_length - len(_GAP) > room:
            lines.append([])
            used = 0
        lines[-1].append(item)
        used += item.cell_length
    return lines
