"""A kept run, whole, and two runs held against each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.content import Content

from console.experiments.curves import curves_of
from console.experiments.report import level_table, table_title
from console.experiments.store import StoredRun
from console.tui.glyphs import Glyphs, shown
from console.tui.runs import RunTable, RunView, replayed
from console.tui.tones import PLAIN, QUIET, STRONG
from console.tui.widgets.overlay import draw_overlays, matched
from console.tui.widgets.run_report import draw_run
from console.tui.widgets.verdict_card import draw_verdict
from console.tui.words import day_and_clock, epoch_s

if TYPE_CHECKING:
    from console.analysis.effects import Effect
    from console.experiments.compare import Compared
    from console.experiments.conditions import Difference


def draw_stored(stored: StoredRun, width: int, glyphs: Glyphs) -> list[Content]:
    """Whose run it is, its verdict, its levels with their intervals, its curves."""
    record = stored.record
    where = f" on {record.host}, {day_and_clock(record.started)}   playbook {record.version}"
    notes = [where, *([f" {record.note}"] if record.note else [])]
    view = _view_of(stored)
    first, *rest = draw_run(view, view.heard_s, width, glyphs)
    return [first, *(Content.styled(shown(note, glyphs), QUIET) for note in notes), *rest]


def _view_of(stored: StoredRun) -> RunView:
    record, result = stored.record, stored.result
    started_s, ended_s = epoch_s(record.started), epoch_s(result.get("ended")) if result else _last_heard_s(stored)
    took_s = ended_s - started_s if started_s is not None and ended_s is not None else 0.0
    view = replayed(record.playbook, record.params, stored.events, result, took_s)
    if view.run_id is None:
        view = replace(view, run_id=record.id)
    table = level_table(stored)
    if not table:
        return view
    heads, *rows = table
    levels = RunTable(tuple(heads), rows=tuple(dict(zip(heads, cells, strict=True)) for cells in rows))
    return replace(view, tables={table_title(stored).lower(): levels})


def _last_heard_s(stored: StoredRun) -> float | None:
    """When the last event that is kept was written; a run that goes on is shown as of then."""
    last = stored.events[-1].get("t") if stored.events else None
    return float(last) if isinstance(last, int | float) and last > 0 else None


def draw_compared(compared: Compared, width: int, glyphs: Glyphs) -> list[Content]:
    """The verdict, each effect with its interval, the curves of both on one pair of axes, and what else was different."""
    before, after = compared.before.record, compared.after.record
    lines = [
        Content.styled(" Two runs against each other", STRONG),
        _named("before", f"{before.id} on {before.host}, {day_and_clock(before.started)}", glyphs),
        _named("after", f"{after.id} on {after.host}, {day_and_clock(after.started)}", glyphs),
        Content(""),
        *draw_verdict(compared.verdict.to_json(), width, glyphs),
    ]
    if compared.found is not None:
        found = compared.found
        lines += [Content(""), Content.styled(f" {'after / before':<16}{'ratio':>7}   95 %", QUIET)]
        effects = (("rate", found.rate), ("commit length", found.commit), ("step time", found.step))
        lines += [_effect(name, effect) for name, effect in effects]
        cells = f"over {found.cells} combinations of text kind and context that are in both"
        lines.append(Content.styled(f" {cells}", QUIET))
        pairs = matched(curves_of(compared.before), curves_of(compared.after))
        lines += [Content(""), *draw_overlays(pairs, width, glyphs)] if pairs else []
    lines += _differences(" what forbids it", compared.differences if compared.refused else (), width, glyphs)
    lines += _differences(" the factor under test", () if compared.refused else compared.differences, width, glyphs)
    return lines + _differences(" what else is different", compared.soft, width, glyphs)


def _differences(title: str, differences: Sequence[Difference], width: int, glyphs: Glyphs) -> list[Content]:
    if not differences:
        return []
    texts = [str(one) for one in differences]
    return [Content(""), Content.styled(title, QUIET), *_wrapped(texts, width, glyphs)]


def _effect(name: str, effect: Effect) -> Content:
    interval = "" if effect.ci is None else f"   [{effect.ci[0]:.3f}, {effect.ci[1]:.3f}]"
    return Content.assemble((f" {name:<16}", PLAIN), (f"{effect.ratio:>7.3f}", STRONG), (interval, QUIET))


def _named(name: str, text: str, glyphs: Glyphs) -> Content:
    return Content.assemble((f" {name:<8}", QUIET), (shown(text, glyphs), PLAIN))


def _wrapped(texts: Sequence[str], width: int, glyphs: Glyphs) -> list[Content]:
    lines = [line for text in texts for line in textwrap.wrap(shown(text, glyphs), max(20, width - 4))]
    return [Content.styled(f"   {line}", PLAIN) for line in lines]
