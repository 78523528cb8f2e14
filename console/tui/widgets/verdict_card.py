"""The verdict card: class, one sentence, factors as bars with their intervals, warnings, and what to do next."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from textual.content import Content

from console.tui.glyphs import Glyphs, shown
from console.tui.tones import ACCENT, BAD, GOOD, PLAIN, QUIET, STRONG, WARN, Piece

_FINE = ("explained", "healthy", "no_regression", "equivalent", "faster", "small", "lossless", "near_tie")
_GRAVE = (
    "slower", "broken", "engine_stalled", "contention", "throttled", "network", "step_regression",
    "acceptance_regression", "commit_collapsed", "inconsistent_data",
)  # fmt: skip
_PARTS = ("total", "context", "acceptance", "kernel", "residual")
_NAME_WIDTH = 12
_NUMBER_WIDTH = 22


def draw_verdict(verdict: Mapping[str, Any], width: int, glyphs: Glyphs) -> list[Content]:
    """The whole card, as many lines as it takes."""
    klass = shown(str(verdict.get("class", "no class")), glyphs)
    mark, tone = class_mark(klass, glyphs)
    lines = [Content.assemble((f" {mark} {klass.replace('_', ' ')}", f"bold {tone}"))]
    lines += _wrapped(str(verdict.get("headline", "")), width, glyphs, STRONG)
    bars = _factor_bars(verdict.get("factors"), width, glyphs)
    if bars:
        lines += [Content(""), *bars]
    warnings = [_sentence(warning) for warning in verdict.get("warnings") or ()]
    if warnings:
        lines.append(Content(""))
        for warning in warnings:
            lines += _wrapped(f"{glyphs.warn} {warning}", width, glyphs, WARN)
    following = verdict.get("next")
    if following:
        lines += [Content(""), *_wrapped(f"next {glyphs.arrow} {following}", width, glyphs, ACCENT)]
    return lines


def class_mark(klass: str, glyphs: Glyphs) -> tuple[str, str]:
    """The mark and the tone of a class: it is well, it is not, or it cannot be told."""
    if klass in _FINE:
        return glyphs.yes, GOOD
    if klass in _GRAVE or klass.startswith("void"):
        return glyphs.no, BAD
    return glyphs.warn, WARN


def _wrapped(text: str, width: int, glyphs: Glyphs, tone: str) -> list[Content]:
    lines = textwrap.wrap(shown(text, glyphs), max(20, width - 2)) or []
    return [Content.assemble((f" {line}", tone)) for line in lines]


def _sentence(warning: Any) -> str:
    if isinstance(warning, Mapping):
        return str(warning.get("text") or warning.get("message") or warning.get("msg") or warning.get("code"))
    return str(warning)


def _factor_bars(factors: Any, width: int, glyphs: Glyphs) -> list[Content]:
    """Factors multiply, so the axis is logarithmic and 1× (no change) is marked on it."""
    if not isinstance(factors, Mapping):
        return []
    rows = [(name, _number(factors.get(name)), _interval(factors.get(f"{name}_ci"))) for name in _PARTS]
    known = [(name, value, interval) for name, value, interval in rows if value is not None and value > 0]
    # A kernel factor of exactly one says that only one machine was looked at.
    known = [row for row in known if row[0] != "kernel" or abs(row[1] - 1.0) > 1e-9]
    if not known:
        return []
    columns = max(10, width - _NAME_WIDTH - _NUMBER_WIDTH - 2)
    ends = [value for _, value, _ in known] + [end for _, _, interval in known if interval for end in interval]
    low, high = min(1.0, *ends), max(1.0, *ends)
    if high / low < 1.05:
        low, high = low / 1.05, high * 1.05
    scale = _Scale(math.log(low), math.log(high), columns)
    return [_factor_row(name, value, interval, scale, glyphs) for name, value, interval in known]


class _Scale:
    """Where a factor stands on the logarithmic axis of the card."""

    def __init__(self, low: float, high: float, columns: int) -> None:
        self.low, self.high, self.columns = low, high, columns

    def column(self, factor: float) -> int:
        share = (math.log(factor) - self.low) / (self.high - self.low)
        return round(share * (self.columns - 1))


def _factor_row(
    name: str, value: float, interval: tuple[float, float] | None, scale: _Scale, glyphs: Glyphs
) -> Content:
    cells = [" "] * scale.columns
    one, end = scale.column(1.0), scale.column(value)
    for column in range(min(one, end), max(one, end) + 1):
        cells[column] = glyphs.bar
    if interval is not None:
        low, high = scale.column(interval[0]), scale.column(interval[1])
        for column in range(low, high + 1):
            cells[column] = glyphs.whisker
        cells[low], cells[high] = glyphs.whisker_low, glyphs.whisker_high
    if cells[one] == " " or one == end:
        cells[one] = glyphs.divider
    tone = STRONG if name == "total" else WARN if name == "residual" else ACCENT
    numbers: list[Piece] = [(f" {value:.2f}{glyphs.times}", PLAIN)]
    if interval is not None:
        numbers.append((f" [{interval[0]:.2f}, {interval[1]:.2f}]", QUIET))
    return Content.assemble((f" {name:<{_NAME_WIDTH - 1}}", QUIET), ("".join(cells), tone), *numbers)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _interval(value: Any) -> tuple[float, float] | None:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    low, high = _number(value[0]), _number(value[1])
    return None if low is None or high is None or low <= 0 or high < low else (low, high)
