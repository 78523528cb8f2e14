"""A stored run as text for a terminal and as Markdown for a colleague."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from console.experiments.reading import environment_of
from console.experiments.store import StoredRun

_LEVELS = (
    ("", "group", 0),
    ("level", "level", 0),
    ("context", "context", 0),
    ("requests", "requests", 0),
    ("tok/s", "tok_s", 2),
    ("commit length", "commit_length", 3),
    ("step ms", "step_ms", 2),
    ("ttft s", "ttft_s", 2),
)
_WITH_INTERVAL = {"tok_s", "commit_length", "step_ms"}


def text_report(run: StoredRun) -> str:
    """Head, verdict, the table of levels, warnings: plain text, one screen wide."""
    lines = [*head_lines(run), ""]
    rows = level_table(run)
    if rows:
        lines += [*_aligned(rows), ""]
    lines += _verdict_lines(run)
    return "\n".join(lines).rstrip() + "\n"


def markdown_report(run: StoredRun) -> str:
    """The same as Markdown, with parameters and environment behind it."""
    verdict = _verdict(run)
    lines = [f"# {run.record.playbook} on {run.record.host}", ""]
    if verdict:
        lines += [f"**{verdict['class']}** — {verdict['headline']}", ""]
    lines += [f"- {line}" for line in head_lines(run)[1:]] + [""]
    rows = level_table(run)
    if rows:
        lines += [
            f"## {table_title(run)}",
            "",
            _bar(rows[0]),
            _bar(["---:" for _ in rows[0]]),
            *(_bar(row) for row in rows[1:]),
            "",
        ]
    if verdict and verdict.get("warnings"):
        lines += ["## Warnings", "", *(f"- `{one['code']}` {one['msg']}" for one in verdict["warnings"]), ""]
    lines += ["## Parameters", "", *(f"- `{name}` = `{value}`" for name, value in run.record.params.items()), ""]
    environment = environment_of(run.events)
    if environment:
        shown = ("engine", "version", "model", "drafter", "settings_sha", "gpu", "versions")
        lines += [
            "## Environment",
            "",
            *(f"- {name}: {environment[name]}" for name in shown if environment.get(name)),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def head_lines(run: StoredRun) -> list[str]:
    record, result = run.record, run.result or {}
    ended = f", ended {result['ended']}" if result.get("ended") else ""
    lines = [
        f"{record.playbook} {record.version} on {record.host}",
        f"run {record.id}",
        f"started {record.started}{ended}",
        f"status {result.get('status', 'running')}" + (f", exit {result['exit']}" if result else ""),
    ]
    return [*lines, *([str(result["message"])] if result.get("message") else [])]


def _verdict(run: StoredRun) -> Mapping[str, Any] | None:
    return (run.result or {}).get("verdict")


def _verdict_lines(run: StoredRun) -> list[str]:
    verdict = _verdict(run)
    if verdict is None:
        return ["no verdict"]
    lines = [f"{verdict['class']}: {verdict['headline']}"]
    lines += [f"warning {one['code']}: {one['msg']}" for one in verdict.get("warnings") or ()]
    return [*lines, *([f"next: {verdict['next']}"] if verdict.get("next") else [])]


def table_title(run: StoredRun) -> str:
    """What the rows of `level_table` are: `Levels`, `Arms`, `Kinds of text`."""
    groups = (run.result or {}).get("groups") or ()
    return {"arm": "Arms", "kind": "Kinds of text"}[groups[0]["by"]] if groups else "Levels"


def level_table(run: StoredRun) -> list[list[str]]:
    """Header and rows, a row a level, or a row a group and level; columns that no row has are left out."""
    result = run.result or {}
    levels: Sequence[Mapping[str, Any]] = result.get("levels") or result.get("groups") or ()
    columns = [column for column in _LEVELS if any(level.get(column[1]) is not None for level in levels)]
    if not columns:
        return []
    return [
        [title or str(levels[0]["by"]) for title, _, _ in columns],
        *([_cell(level, name, places) for _, name, places in columns] for level in levels),
    ]


def _cell(level: Mapping[str, Any], name: str, places: int) -> str:
    value = level.get(name)
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    text = f"{value:.{places}f}"
    interval = level.get(f"{name}_ci") if name in _WITH_INTERVAL else None
    return f"{text} [{interval[0]:.{places}f}, {interval[1]:.{places}f}]" if interval else text


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
