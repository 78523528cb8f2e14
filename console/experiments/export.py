"""A stored run in the formats that leave the console: Markdown, CSV, a JSON bundle, one HTML file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from console.experiments.html_report import html_report, provenance
from console.experiments.report import markdown_report
from console.experiments.rows import point_rows, sample_rows
from console.experiments.store import StoredRun

BUNDLE_SCHEMA = 1
FORMATS = ("md", "csv", "json", "html")
TABLES = ("samples", "levels", "points")


def export(run: StoredRun, format_name: str, table: str = "samples") -> str:
    """The run as text in one of FORMATS; `table` picks what a CSV holds."""
    if format_name == "md":
        return markdown_report(run)
    if format_name == "html":
        return html_report(run)
    if format_name == "json":
        return json.dumps(bundle(run), indent=1, ensure_ascii=False) + "\n"
    return csv_table(run, table)


def bundle(run: StoredRun) -> dict[str, Any]:
    """Everything kept of a run; `schema` counts up with every change of shape."""
    return {
        "schema": BUNDLE_SCHEMA,
        "run": asdict(run.record),
        "conditions": {"key": run.conditions.key, "hard": dict(run.conditions.hard), "soft": dict(run.conditions.soft)},
        "provenance": provenance(run),
        "result": run.result,
        "events": list(run.events),
    }


def csv_table(run: StoredRun, table: str) -> str:
    """One table with a header line; text that a spreadsheet would take for a formula is quoted out of its reach."""
    rows: Sequence[Mapping[str, Any]]
    if table == "samples":
        rows = list(sample_rows(run.events))
    elif table == "points":
        rows = list(point_rows(run.events))
    else:
        result = run.result or {}
        rows = [_flat(level) for level in result.get("levels") or result.get("groups") or ()]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def _flat(level: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in level.items():
        if name.endswith("_ci"):
            low, high = value or (None, None)
            flat |= {f"{name}_low": low, f"{name}_high": high}
        else:
            flat[name] = value
    return flat


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
