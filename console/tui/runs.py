"""A playbook's run as the screen knows it: a value that each event of the protocol takes one step further."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

LOG_LINES = 200

RunStatus = Literal["starting", "running", "ended", "lost"]


@dataclass(frozen=True)
class RunTable:
    """A live table: its columns, in order, and its rows as they came."""

    columns: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Curve:
    """A live series of points."""

    points: tuple[tuple[float, float], ...] = ()
    unit_x: str = ""
    unit_y: str = ""


@dataclass(frozen=True)
class RunView:
    """What is known of one run. `result` is the last event, with status, exit code and verdict, once it has come."""

    title: str
    params: Mapping[str, Any]
    started_s: float  # the console's monotonic clock
    heard_s: float
    status: RunStatus = "starting"
    run_id: str | None = None
    done: float = 0.0
    total: float = 0.0
    label: str = ""
    eta_s: float | None = None
    tables: Mapping[str, RunTable] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    log: tuple[tuple[str, str], ...] = ()  # (level, message)
    warnings: tuple[str, ...] = ()
    trouble: str | None = None
    verdict: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.status in ("ended", "lost")

    @property
    def fraction(self) -> float | None:
        """How far it is, 0 to 1; None while it has not said."""
        return min(1.0, self.done / self.total) if self.total > 0 else None


def begun(title: str, params: Mapping[str, Any], now_s: float) -> RunView:
    """A run that has been asked for and has not answered yet."""
    return RunView(title, params, started_s=now_s, heard_s=now_s)


def replayed(
    title: str,
    params: Mapping[str, Any],
    events: Iterable[Mapping[str, Any]],
    result: Mapping[str, Any] | None,
    took_s: float,
) -> RunView:
    """A run that was kept, from its events and its result; it began at 0 and was last heard of after `took_s`."""
    run = begun(title, params, 0.0)
    for event in events:
        run = advanced(run, event, took_s)
    return run if result is None else advanced(run, result, took_s)


def advanced(run: RunView, event: Mapping[str, Any], now_s: float) -> RunView:
    """`run` after `event`. Events of a type not known here change nothing but the time of the last sign of life."""
    run = replace(run, heard_s=now_s, status="running" if run.status == "starting" else run.status)
    run_id = event.get("run_id")
    if isinstance(run_id, str):
        run = replace(run, run_id=run_id)
    step = _STEPS.get(str(event.get("type")))
    return step(run, event) if step else run


def lost(run: RunView, why: str, now_s: float) -> RunView:
    """`run` after its events ended without a result."""
    return replace(run, status="lost", trouble=why, heard_s=now_s)


def _progress(run: RunView, event: Mapping[str, Any]) -> RunView:
    return replace(
        run,
        done=_number(event.get("done")) or 0.0,
        total=_number(event.get("total")) or 0.0,
        label=str(event.get("label", "")),
        eta_s=_number(event.get("eta_s")),
    )


def _log(run: RunView, event: Mapping[str, Any]) -> RunView:
    line = (str(event.get("level", "info")), str(event.get("msg", "")))
    return replace(run, log=(*run.log, line)[-LOG_LINES:])


def _table(run: RunView, event: Mapping[str, Any]) -> RunView:
    columns = [column for column in event.get("columns", ()) if isinstance(column, Mapping)]
    names = tuple(str(column.get("name")) for column in columns)
    units = {str(column.get("name")): str(column["unit"]) for column in columns if column.get("unit")}
    table = replace(_table_of(run, event), columns=names, units=units)
    return replace(run, tables={**run.tables, _name(event): table})


def _row(run: RunView, event: Mapping[str, Any]) -> RunView:
    data = event.get("data")
    if not isinstance(data, Mapping):
        return run
    table = _table_of(run, event, key="table")
    columns = table.columns or tuple(str(name) for name in data)
    table = replace(table, columns=columns, rows=(*table.rows, dict(data)))
    return replace(run, tables={**run.tables, _name(event, key="table"): table})


def _series(run: RunView, event: Mapping[str, Any]) -> RunView:
    xs, ys = event.get("x"), event.get("y")
    if not isinstance(xs, Sequence) or not isinstance(ys, Sequence):
        return run
    pairs = [(_number(x), _number(y)) for x, y in zip(xs, ys, strict=False)]
    points = tuple((x, y) for x, y in pairs if x is not None and y is not None)
    old = run.curves.get(_name(event), Curve())
    curve = Curve(old.points + points, str(event.get("unit_x", old.unit_x)), str(event.get("unit_y", old.unit_y)))
    return replace(run, curves={**run.curves, _name(event): curve})


def _warn(run: RunView, event: Mapping[str, Any]) -> RunView:
    return replace(run, warnings=(*run.warnings, str(event.get("msg") or event.get("code"))))


def _error(run: RunView, event: Mapping[str, Any]) -> RunView:
    return replace(run, trouble=str(event.get("msg") or event.get("code")))


def _verdict(run: RunView, event: Mapping[str, Any]) -> RunView:
    return replace(run, verdict=dict(event))


def _result(run: RunView, event: Mapping[str, Any]) -> RunView:
    verdict = event.get("verdict")
    return replace(
        run,
        status="ended",
        result=dict(event),
        verdict=verdict if isinstance(verdict, Mapping) else run.verdict,
        trouble=run.trouble or (None if verdict else event.get("message")),
    )


_STEPS = {
    "progress": _progress,
    "log": _log,
    "table": _table,
    "row": _row,
    "series": _series,
    "warn": _warn,
    "error": _error,
    "verdict": _verdict,
    "result": _result,
}


def _name(event: Mapping[str, Any], key: str = "name") -> str:
    return str(event.get(key, ""))


def _table_of(run: RunView, event: Mapping[str, Any], key: str = "name") -> RunTable:
    return run.tables.get(_name(event, key), RunTable())


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
