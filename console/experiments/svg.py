"""Line charts as SVG text, without a library: axes with round ticks, intervals as whiskers, one colour a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 40, 46
COLOURS = ("#2563b8", "#c2570c", "#15803d", "#9333ea", "#b91c1c", "#0e7490")
"""By a curve's place. A page may give its own, for a dark ground too, as the variables --c0 to --c5."""
_BESIDE = 5.0
_MOST_ABOVE = 2.0
"""How many times the highest point an interval may raise the scale."""


@dataclass(frozen=True)
class Point:
    """One figure; `ci` its interval, where there is one."""

    x: float
    y: float
    ci: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """One curve. `modelled` is drawn dashed and without marks: it was computed, not measured."""

    name: str
    points: Sequence[Point]
    modelled: bool = False


def line_chart(title: str, lines: Sequence[Line], unit_x: str, unit_y: str) -> str:
    """An `<svg>` element that scales with the page; "" where there is no point to draw."""
    lines = [line for line in lines if line.points]
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    x_axis = ticks(min(p.x for p in points), max(p.x for p in points))
    y_axis = ticks(min(0.0, *(p.y for p in points)), top_of(points))
    plot = _Plot(x_axis, y_axis)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>',
        *plot.grid(unit_x, "" if title.endswith(f", {unit_y}") else unit_y),
    ]
    for number, line in enumerate(lines):
        parts += plot.line(line, _colour(number), beside=_BESIDE * (number - (len(lines) - 1) / 2))
    if len(lines) > 1:
        parts += _legend(lines)
    return "\n".join([*parts, "</svg>"])


def top_of(points: Sequence[Point]) -> float:
    """Where the scale ends: at the highest interval, but for one so wide that the curves would lie flat below it."""
    highest = max(point.y for point in points)
    return max(highest, min(_MOST_ABOVE * highest, max(end for p in points for end in (p.y, *(p.ci or ())))))


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that span low to high, at most about twice `about` of them."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def number_text(value: float) -> str:
    """12000 as `12,000`, 0.25 as `0.25`."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:g}"


def _colour(number: int) -> str:
    place = number % len(COLOURS)
    return f"var(--c{place},{COLOURS[place]})"


class _Plot:
    """Where a pair of figures stands in the picture."""

    def __init__(self, x_axis: Sequence[float], y_axis: Sequence[float]) -> None:
        self.x_axis, self.y_axis = x_axis, y_axis

    def x(self, value: float) -> float:
        share = (value - self.x_axis[0]) / (self.x_axis[-1] - self.x_axis[0])
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_axis[0]) / (self.y_axis[-1] - self.y_axis[0])
        share = min(1.0, max(0.0, share))  # an interval that leaves the picture ends at its edge
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def grid(self, unit_x: str, unit_y: str) -> list[str]:
        parts = []
        for value in self.y_axis:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{number_text(value)}</text>')
        for value in self.x_axis:
            x = self.x(value)
            parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            text = number_text(value)
            parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text class="unit" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(unit_x)}</text>')
        parts.append(f'<text class="unit" x="8" y="{TOP - 8}">{escape(unit_y)}</text>')
        return parts

    def line(self, line: Line, colour: str, beside: float) -> list[str]:
        """The curve; its intervals stand `beside` their points, so that those of several curves are told apart."""
        ordered = sorted(line.points, key=lambda point: point.x)
        path = " ".join(f"{self.x(point.x)},{self.y(point.y)}" for point in ordered)
        dash = ' stroke-dasharray="5 4"' if line.modelled else ""
        parts = [f'<polyline style="fill:none;stroke:{colour}" stroke-width="1.6"{dash} points="{path}"/>']
        if line.modelled:
            return parts
        for point in ordered:
            x = self.x(point.x)
            if point.ci is not None:
                at, low, high = x + beside, self.y(point.ci[0]), self.y(point.ci[1])
                parts.append(
                    f'<path style="fill:none;stroke:{colour}" d="M{at} {low}V{high}M{at - 3} {low}h6M{at - 3} {high}h6"/>'
                )
            span = "" if point.ci is None else f" [{point.ci[0]:.4g}, {point.ci[1]:.4g}]"
            tip = escape(f"{line.name}: {number_text(point.x)} → {point.y:.4g}{span}")
            parts.append(
                f'<circle cx="{x}" cy="{self.y(point.y)}" r="3.2" style="fill:{colour}"><title>{tip}</title></circle>'
            )
        return parts


def _legend(lines: Sequence[Line]) -> list[str]:
    parts, x = [], float(WIDTH - RIGHT)
    for number, line in reversed(list(enumerate(lines))):
        name = f"{line.name} (modelled)" if line.modelled else line.name
        x -= 7.0 * len(name) + 30
        colour, dash = _colour(number), ' stroke-dasharray="5 4"' if line.modelled else ""
        parts.append(f'<line x1="{x}" x2="{x + 16}" y1="12" y2="12" style="stroke:{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text class="tick" x="{x + 20}" y="16">{escape(name)}</text>')
    return parts
