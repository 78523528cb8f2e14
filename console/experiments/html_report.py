"""A stored run as one HTML file for a colleague: no script, no link to anywhere, charts as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from console.experiments.curves import curves_of
from console.experiments.reading import environment_of, sample_rows
from console.experiments.report import head_lines, level_table, table_title
from console.experiments.store import StoredRun
from console.experiments.svg import Line, Point, line_chart

_FACTORS = ("total", "context", "acceptance", "kernel", "residual")
_GOOD = ("explained", "healthy", "equivalent", "faster", "lossless")
_BAD = ("step_regression", "acceptance_regression", "commit_collapsed", "inconsistent_data", "broken", "slower", "void")
_CURVE_POINTS = 60
_REQUESTS = {
    "kind": "kind",
    "level": "level",
    "arm": "arm",
    "P": "prompt tokens",
    "N": "decoded tokens",
    "steps": "steps",
    "commit": "commit length",
    "step_ms": "step, ms",
    "tok_s": "tok/s",
    "ttft_s": "first token, s",
    "cached": "cached tokens",
    "finish": "finish",
    "distinct2": "distinct pairs",
}
_ENVIRONMENT = (
    "engine",
    "version",
    "model",
    "drafter",
    "block_size",
    "gpu",
    "clocks",
    "versions",
    "settings",
    "settings_sha",
)

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d9dee6;--paper:#fff;--card:#f6f8fa;--good:#15803d;--bad:#b91c1c;--doubt:#a15c00;--c0:#2563b8;--c1:#c2570c;--c2:#15803d;--c3:#9333ea;--c4:#b91c1c;--c5:#0e7490}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#333c49;--paper:#12161c;--card:#1a2028;--good:#4ade80;--bad:#f87171;--doubt:#fbbf24;--c0:#7aa7e6;--c1:#e8a05c;--c2:#6ecb8b;--c3:#c4a3f5;--c4:#f28b82;--c5:#5cc4d4}}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;max-width:1100px;padding:24px 20px 60px}
h1{font-size:22px;margin:0 0 2px}h2{font-size:16px;margin:32px 0 8px}.soft{color:var(--soft)}code{font:13px ui-monospace,monospace}
.card{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--doubt);border-radius:6px;padding:14px 18px;margin:18px 0}
.card.good{border-left-color:var(--good)}.card.bad{border-left-color:var(--bad)}.card h2{margin:0 0 4px}.card p{margin:6px 0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:18px}
svg.chart,svg.bars{width:100%;height:auto;background:var(--card);border:1px solid var(--line);border-radius:6px}
svg.bars{max-width:680px;display:block;border:0;background:none}
@media(max-width:560px){svg text{font-size:14px!important}svg .title{font-size:15px!important}}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .title{font-size:13px;font-weight:600;fill:var(--ink)}svg .grid{stroke:var(--line)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:4px 10px;text-align:right;white-space:nowrap}th{color:var(--soft);font-weight:600}
td:first-child,th:first-child{text-align:left}dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;font-size:13px}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
"""


def html_report(run: StoredRun) -> str:
    """The whole page."""
    record, result = run.record, run.result or {}
    title = f"{record.playbook} on {record.host}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{"<br>".join(escape(line) for line in head_lines(run)[1:])}</p>',
        _card(result.get("verdict"), result),
        _charts(run),
        _section(table_title(run), _table(level_table(run))),
        _section("Requests", _table(_request_rows(run))),
        _section("Parameters", _facts(record.params)),
        _section("Environment", _facts({name: environment_of(run.events).get(name) for name in _ENVIRONMENT})),
        _section("Provenance", _facts(provenance(run))),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body></html>\n"
    )


def provenance(run: StoredRun) -> dict[str, Any]:
    """What it takes to believe a figure: the script, the texts, the conditions."""
    summary = (run.result or {}).get("summary") or {}
    return {
        "run": run.record.id,
        "script sha-256": run.record.script_sha,
        "prompt set": summary.get("prompts_sha"),
        "comparability key": run.conditions.key,
        "kept as": run.record.note,
    }


def _card(verdict: Mapping[str, Any] | None, result: Mapping[str, Any]) -> str:
    if verdict is None:
        return f'<div class="card"><h2>no verdict</h2><p>{escape(str(result.get("message") or "the run is not over"))}</p></div>'
    klass = str(verdict["class"])
    tone = "good" if klass in _GOOD else "bad" if klass.split(":")[0] in _BAD else ""
    parts = [
        f'<div class="card {tone}"><h2>{escape(klass.replace("_", " "))}</h2><p>{escape(str(verdict["headline"]))}</p>'
    ]
    parts.append(factor_bars(verdict.get("factors")))
    parts += [f'<p class="soft">⚠ {escape(str(one["msg"]))}</p>' for one in verdict.get("warnings") or ()]
    if verdict.get("next"):
        parts.append(f"<p><b>Next:</b> {escape(str(verdict['next']))}</p>")
    return "\n".join([*filter(None, parts), "</div>"])


def factor_bars(factors: Mapping[str, Any] | None) -> str:
    """Slowdown factors on a logarithmic axis around 1, with whiskers; "" where there are none."""
    rows = [(name, factors[name], factors.get(f"{name}_ci")) for name in _FACTORS if factors and factors.get(name)]
    rows = [row for row in rows if row[0] != "kernel" or (factors or {}).get("kernel_measured")]
    if not rows:
        return ""
    ends = [edge for _, value, ci in rows for edge in (value, *(ci or ()))]
    reach = max(0.1, *(abs(math.log(edge)) for edge in ends))

    def at(value: float) -> float:
        return 320 + 190 * math.log(value) / reach

    height = 22 * len(rows) + 14
    parts = [f'<svg class="bars" viewBox="0 0 640 {height}" role="img" aria-label="slowdown factors">']
    parts.append(f'<line class="grid" x1="320" x2="320" y1="4" y2="{height - 6}"/>')
    for number, (name, value, ci) in enumerate(rows):
        y = 8 + 22 * number
        left, width = min(at(1), at(value)), max(abs(at(value) - at(1)), 1.0)
        parts.append(f'<text x="10" y="{y + 12}">{name}</text>')
        parts.append(
            f'<rect x="{left:.1f}" y="{y + 2}" width="{width:.1f}" height="12" style="fill:var(--c0,#2563b8)" opacity="0.75"/>'
        )
        span = ""
        if ci:
            parts.append(f'<path stroke="currentColor" d="M{at(ci[0]):.1f} {y + 8}H{at(ci[1]):.1f}"/>')
            span = f" [{ci[0]:.2f}, {ci[1]:.2f}]"
        parts.append(f'<text x="630" y="{y + 12}" text-anchor="end">{value:.2f}×{span}</text>')
    return "\n".join([*parts, "</svg>"])


def _charts(run: StoredRun) -> str:
    """One chart a figure by level, with the fit of the step time; else one for each pair of units of the live series."""
    curves, fit = curves_of(run), (run.result or {}).get("fit")
    by_level = any(curve.name == "Step time" for curve in curves)
    charts = []
    for units in dict.fromkeys((curve.unit_x, curve.unit_y) for curve in curves):
        drawn = [curve for curve in curves if (curve.unit_x, curve.unit_y) == units]
        lines = [Line(curve.line or ("measured" if by_level else curve.name), curve.points) for curve in drawn]
        if fit and drawn[0].name == "Step time" and units[0].startswith("context"):
            lines.append(Line("fit", _curve(fit, drawn[0].points), modelled=True))
        title = f"{drawn[0].name}, {units[1]}" if by_level else ", ".join(curve.name for curve in drawn)
        charts.append(line_chart(title, lines, *units))
    return f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""


def _curve(fit: Mapping[str, Any], points: Sequence[Point]) -> list[Point]:
    low, high = min(point.x for point in points), max(point.x for point in points)
    at = [low + (high - low) * i / _CURVE_POINTS for i in range(_CURVE_POINTS + 1)]
    return [Point(x, _modelled_step(fit, x)) for x in at]


def _modelled_step(fit: Mapping[str, Any], x: float) -> float:
    if fit.get("knot") is None:
        return float(fit["a_ms"] + fit["b_ms_per_token"] * x + fit["q"] * x * x)
    return float(
        fit["a_ms"] + fit["b_ms_per_token"] * min(x, fit["knot"]) + fit["b2_ms_per_token"] * max(0.0, x - fit["knot"])
    )


def _request_rows(run: StoredRun) -> list[list[str]]:
    rows = [row for row in sample_rows(run.events) if row.get("N") or row.get("steps")]
    columns = [name for name in _REQUESTS if any(row.get(name) is not None for row in rows)]
    return (
        [[_REQUESTS[name] for name in columns], *([_shown(row.get(name)) for name in columns] for row in rows)]
        if columns
        else []
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}" if content else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _facts(facts: Mapping[str, Any]) -> str:
    known = {name: value for name, value in facts.items() if value not in (None, "", [], {})}
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(_shown(value))}</dd>" for name, value in known.items())
    return f"<dl>{rows}</dl>" if rows else ""


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items() if one not in (None, ""))
    return ", ".join(map(_shown, value)) if isinstance(value, list | tuple) else str(value)
