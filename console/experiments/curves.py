"""The curves of a stored run: its figures over context or output length, else the live series it sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.experiments.store import StoredRun
from console.experiments.svg import Point


@dataclass(frozen=True)
class Curve:
    """One measured curve with the names of its axes."""

    name: str
    unit_x: str
    unit_y: str
    points: tuple[Point, ...]
    line: str = ""  # the arm or kind, where a figure has several lines


_FIGURES = (
    ("step_ms", "Step time", "ms"),
    ("commit_length", "Commit length", "tokens a step"),
    ("tok_s", "Rate", "tok/s"),
)


def curves_of(run: StoredRun) -> tuple[Curve, ...]:
    """Step time, commit length and rate by level, a line an arm or kind, where there are two levels or more of any; the
    run's own series otherwise."""
    result = run.result or {}
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for level in result.get("levels") or result.get("groups") or ():
        lines.setdefault(str(level.get("group", "")), []).append(level)
    if max(map(len, lines.values()), default=0) < 2:
        return series_of(run.events)
    key, unit = ("level", "output tokens") if run.record.playbook == "output_sweep" else ("context", "context (tokens)")
    curves = (
        Curve(label, unit, unit_y, _points(levels, key, name), line)
        for name, label, unit_y in _FIGURES
        for line, levels in lines.items()
    )
    return tuple(curve for curve in curves if curve.points)


def series_of(events: Sequence[Mapping[str, Any]]) -> tuple[Curve, ...]:
    """The series that a run sent while it went on, each whole, in the order of their first points."""
    found: dict[str, Curve] = {}
    for event in events:
        if event.get("type") != "series":
            continue
        name = str(event.get("name"))
        old = found.get(name) or Curve(name, str(event.get("unit_x") or ""), str(event.get("unit_y") or ""), ())
        pairs = zip(event.get("x") or (), event.get("y") or (), strict=False)
        more = tuple(Point(x, y) for x, y in pairs if isinstance(x, int | float) and isinstance(y, int | float))
        found[name] = Curve(name, old.unit_x, old.unit_y, old.points + more)
    return tuple(found.values())


def _points(levels: Sequence[Mapping[str, Any]], key: str, name: str) -> tuple[Point, ...]:
    known = [level for level in levels if level.get(name) is not None and level.get(key) is not None]
    return tuple(
        Point(level[key], level[name], tuple(level[f"{name}_ci"]) if level.get(f"{name}_ci") else None)
        for level in known
    )
