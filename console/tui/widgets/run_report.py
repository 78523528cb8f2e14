"""A run on screen: progress, the live table, a live chart, and the last words of its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.content import Content

from console.errors import ExitCode
from console.tui.glyphs import Glyphs, shown
from console.tui.runs import Curve, RunTable, RunView
from console.tui.tones import ACCENT, BAD, GOOD, PLAIN, QUIET, STEP, STRONG, WARN, Piece
from console.tui.widgets.bars import gauge
from console.tui.widgets.chart import area, nice_ceiling, values_per_cell
from console.tui.widgets.verdict_card import draw_verdict
from console.tui.words import duration

SILENT_AFTER_S = 15.0
"""A script sends a sign of life every 5 s; three missed in a row are told."""
_CHART_ROWS = 5


def draw_run(run: RunView, now_s: float, width: int, glyphs: Glyphs) -> list[Content]:
    """The whole report; the verdict comes first once it is there, since it is what the run was for."""
    lines = [_heading(run, glyphs), *_state(run, now_s, width, glyphs)]
    if run.verdict is not None:
        lines += [Content(""), *draw_verdict(run.verdict, width, glyphs)]
    if run.trouble:
        lines += [Content(""), Content.styled(f" {glyphs.no} {shown(run.trouble, glyphs)}", BAD)]
    for warning in run.warnings if run.verdict is None else ():
        lines.append(Content.styled(f" {glyphs.warn} {shown(warning, glyphs)}", WARN))
    for name, table in run.tables.items():
        lines += [Content(""), *draw_table(name, table, width, glyphs)]
    for name, curve in run.curves.items():
        lines += [Content(""), *draw_curve(name, curve, width, glyphs)]
    if run.log:
        lines.append(Content(""))
        lines += [Content.styled(f" {shown(message, glyphs)}", _log_tone(level)) for level, message in run.log[-6:]]
    return lines


def _heading(run: RunView, glyphs: Glyphs) -> Content:
    given = {name: value for name, value in run.params.items() if value not in (None, "", [], ())}
    params = "  ".join(f"{name} {_cell(value)}" for name, value in given.items())
    return Content.assemble((f" {run.title}", STRONG), (f"   {shown(params, glyphs)}", QUIET))


def _state(run: RunView, now_s: float, width: int, glyphs: Glyphs) -> list[Content]:
    if run.over:
        return [_ending(run, glyphs)]
    parts: list[Piece] = []
    if run.fraction is None:
        parts.append((" being put on the box" if run.status == "starting" else " started", QUIET))
    else:
        filled, track = gauge(run.fraction, max(10, min(40, width - 50)), glyphs)
        parts += [" ", (filled, ACCENT), (track, QUIET), (f" {100 * run.fraction:3.0f} %", PLAIN)]
        parts.append((f"  {run.done:g} of {run.total:g}", QUIET))
    if run.eta_s is not None:
        parts.append((f"  about {duration(run.eta_s)} left", PLAIN))
    parts.append((f"  running {duration(now_s - run.started_s)}", QUIET))
    lines = [Content.assemble(*parts)]
    if run.label:
        lines.append(Content.styled(f" {shown(run.label, glyphs)}", QUIET))
    silent_s = now_s - run.heard_s
    if silent_s > SILENT_AFTER_S:
        lines.append(Content.styled(f" {glyphs.warn} no sign of life for {duration(silent_s)}", f"bold {WARN}"))
    return lines


def _ending(run: RunView, glyphs: Glyphs) -> Content:
    took = duration(run.heard_s - run.started_s)
    if run.status == "lost":
        return Content.styled(f" {glyphs.no} not known how it ended, after {took}", BAD)
    result = run.result or {}
    status, code = str(result.get("status", "ended")), result.get("exit")
    mark, tone = _ending_mark(code, glyphs)
    identity = f"   run {run.run_id}" if run.run_id else ""
    return Content.assemble(
        (f" {mark} {status.replace('_', ' ')} after {took}", tone),
        ("" if code is None else f"   exit {code}", QUIET),
        (shown(identity, glyphs), QUIET),
    )


def _ending_mark(code: Any, glyphs: Glyphs) -> tuple[str, str]:
    """A run that answered no, or not surely, has worked all the same."""
    if code in (None, ExitCode.DONE):
        return glyphs.yes, GOOD
    if code in (ExitCode.CHECK_SAYS_NO, ExitCode.INCONCLUSIVE):
        return glyphs.warn, WARN
    return glyphs.no, BAD


def draw_table(name: str, table: RunTable, width: int, glyphs: Glyphs) -> list[Content]:
    """A live table, numbers to the right, units below the names, whole columns left out when they do not fit."""
    named = [_name_and_unit(column, table.units.get(column, "")) for column in table.columns]
    heads, units = [name for name, _ in named], [unit for _, unit in named]
    cells = [[_cell(row.get(column)) for column in table.columns] for row in table.rows]
    widths = [
        max(len(head), len(unit), *(len(row[i]) for row in cells), 1)
        for i, (head, unit) in enumerate(zip(heads, units, strict=True))
    ]
    kept, used = 0, 1
    while kept < len(widths) and used + widths[kept] + 2 <= width:
        used += widths[kept] + 2
        kept += 1
    lines = [Content.styled(" " + _joined(heads, widths, kept, glyphs), PLAIN)]
    if any(units):
        lines.append(Content.styled(" " + _joined(units, widths, kept, glyphs), QUIET))
    return lines + [Content.styled(" " + _joined(row, widths, kept, glyphs), PLAIN) for row in cells]


def _name_and_unit(column: str, unit: str) -> tuple[str, str]:
    """`step_ms` in ms is step, since its unit stands below; `tok_s` is the rate."""
    if column == "tok_s":
        return "rate", unit or "tok/s"
    return column.removesuffix(f"_{unit}").replace("_", " "), unit


def _joined(cells: Sequence[str], widths: Sequence[int], kept: int, glyphs: Glyphs) -> str:
    pairs = zip(cells[:kept], widths[:kept], strict=True)
    return "  ".join(shown(cell, glyphs).rjust(width) for cell, width in pairs)


def draw_curve(name: str, curve: Curve, width: int, glyphs: Glyphs) -> list[Content]:
    """A live series over its own x axis, straight between its points."""
    points = sorted(curve.points)
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return []
    columns = max(10, width - 12)
    values = _between(points, columns * values_per_cell(glyphs))
    ceiling = nice_ceiling(max(y for _, y in points))
    marks = [f"{ceiling:g}", *([""] * (_CHART_ROWS - 2)), "0"]
    title = f" {shown(name, glyphs)} {shown(curve.unit_y, glyphs)} over {shown(curve.unit_x, glyphs)}"
    first, last = f"{points[0][0]:g}", f"{points[-1][0]:g}"
    return [
        Content.styled(title, QUIET),
        *(
            Content.assemble((f"{mark:>9} ", QUIET), (line, STEP))
            for mark, line in zip(marks, area(values, _CHART_ROWS, ceiling, glyphs), strict=True)
        ),
        Content.styled(" " * 10 + first + last.rjust(columns - len(first)), QUIET),
    ]


def _between(points: Sequence[tuple[float, float]], count: int) -> list[float]:
    """`count` heights at equal steps from the first point to the last, linear between neighbours."""
    start, step = points[0][0], (points[-1][0] - points[0][0]) / (count - 1)
    heights, place = [], 0
    for index in range(count):
        x = start + index * step
        while place < len(points) - 2 and points[place + 1][0] < x:
            place += 1
        (x0, y0), (x1, y1) = points[place], points[place + 1]
        heights.append(y1 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return heights


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        return " ".join(_cell(part) for part in value)
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_cell(part)}" for key, part in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _log_tone(level: str) -> str:
    return {"error": BAD, "warning": WARN, "warn": WARN}.get(level, QUIET)
