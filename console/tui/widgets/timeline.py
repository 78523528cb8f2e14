"""Three charts on one time axis: rate, commit length and step time of the decode windows, with their spread in figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.content import Content

from console.telemetry.rates import Rates, rates_over
from console.telemetry.sample import Sample
from console.telemetry.series import spread
from console.tui.glyphs import Glyphs
from console.tui.tones import COMMIT, LABEL_WIDTH, QUIET, RATE, STEP, WARN, label
from console.tui.view import View
from console.tui.widgets.chart import TimeAxis, Window, area, axis_over, nice_ceiling, pooled, values_per_cell
from console.tui.widgets.figures import PARTIAL, decode_windows
from console.tui.words import duration, epoch_s, figure

_SCALE_WIDTH = 7
_SPREAD_WIDTH = 14
_LEAST_CHART = 20


@dataclass(frozen=True)
class Curve:
    """One chart: what it shows of a Sample, and how its figures are written."""

    name: str
    tone: str
    digits: int
    value: Callable[[Sample], float | None]
    over: Callable[[Rates], float]


CURVES = (
    Curve("tok/s", RATE, 1, lambda sample: sample.tok_s, lambda rates: rates.tok_s),
    Curve("commit", COMMIT, 2, lambda sample: sample.commit_length, lambda rates: rates.commit_length),
    Curve("step ms", STEP, 1, lambda sample: sample.step_ms, lambda rates: rates.step_ms),
)


def draw_timeline(view: View, width: int, height: int) -> list[Content]:
    """All charts above each other, the axis below when a row is left for it."""
    samples = decode_windows(view)
    windows = [_windows(curve, samples) for curve in CURVES]
    axis = axis_over([window for series in windows for window in series])
    if axis is None:
        return []
    rows = max(1, (height - 1) // len(CURVES)) if height > len(CURVES) else 1
    figures_width = _SPREAD_WIDTH if width >= LABEL_WIDTH + _SCALE_WIDTH + _LEAST_CHART + _SPREAD_WIDTH else 0
    columns = max(1, width - LABEL_WIDTH - _SCALE_WIDTH - figures_width - 1)
    shown = [sample for sample in samples if (epoch_s(sample.time) or 0.0) >= axis.start_s]
    rates = rates_over(shown)
    lines: list[Content] = []
    for curve, series in zip(CURVES, windows, strict=True):
        spread_lines = _spread_lines(curve, series, axis, rates, rows) if figures_width else [""] * rows
        lines += _chart(curve, series, axis, columns, spread_lines, view.glyphs)
    if height > rows * len(CURVES):
        lost = any(sample.partial for sample in shown[1:])  # what was lost before the first is not on the axis
        head = (f" {PARTIAL}" if lost else "").ljust(LABEL_WIDTH + _SCALE_WIDTH)
        lines.append(Content.assemble((head, WARN), (_axis_line(axis, columns), QUIET)))
    return lines


def _windows(curve: Curve, samples: Sequence[Sample]) -> list[Window]:
    """Each sample holds over the time its steps took, which ended when it was logged."""
    out = []
    for sample in samples:
        end_s, value = epoch_s(sample.time), curve.value(sample)
        if end_s is None or value is None:
            continue
        wall_s = (sample.step_ms or 0.0) * (sample.steps or 0) / 1000.0
        out.append(Window(end_s - max(wall_s, 0.1), end_s, value))
    return out


def _chart(
    curve: Curve,
    series: Sequence[Window],
    axis: TimeAxis,
    columns: int,
    spread_lines: Sequence[str],
    glyphs: Glyphs,
) -> list[Content]:
    """One curve over as many rows as there are `spread_lines`, which stand to the right of it."""
    rows = len(spread_lines)
    values = pooled(series, axis, columns * values_per_cell(glyphs))
    ceiling = nice_ceiling(max((value for value in values if value is not None), default=0.0))
    scale = [f"{ceiling:g}", *([""] * (rows - 2)), "0"] if rows > 1 else [f"{ceiling:g}"]
    return [
        Content.assemble(
            label(curve.name if index == 0 else ""),
            (f"{mark:>{_SCALE_WIDTH - 1}} ", QUIET),
            (line.ljust(columns), curve.tone),
            (f" {text}" if text else "", QUIET),
        )
        for index, (line, mark, text) in enumerate(
            zip(area(values, rows, ceiling, glyphs), scale, spread_lines, strict=True)
        )
    ]


def _spread_lines(curve: Curve, series: Sequence[Window], axis: TimeAxis, rates: Rates | None, rows: int) -> list[str]:
    """Least, mean and 95th percentile of the windows on the axis, as many as there are rows for.

    The mean is the span's own ratio of sums; that of the windows' figures stands in where an engine logs no sums.
    """
    of_span = spread(window.value for window in series if window.end_s >= axis.start_s)
    if of_span is None:
        return [""] * rows
    mean = of_span.mean if rates is None else curve.over(rates)
    named = {"min": of_span.low, "mean": mean, "p95": of_span.p95}
    wanted = ("mean",) if rows == 1 else ("mean", "p95") if rows == 2 else ("min", "mean", "p95")
    lines = [f"{name:<5}{figure(named[name], curve.digits):>7}" for name in wanted]
    return lines + [""] * (rows - len(lines))


def _axis_line(axis: TimeAxis, columns: int) -> str:
    """`-2m00s      -1m00s      now`, spread over the columns."""
    left, middle, right = f"-{duration(axis.span_s)}", f"-{duration(axis.span_s / 2)}", "now"
    if columns < len(left) + len(middle) + len(right) + 4:
        return left + right.rjust(columns - len(left))
    centre = columns // 2
    line = left.ljust(centre) + middle
    return line + right.rjust(columns - len(line))
