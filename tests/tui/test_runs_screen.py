"""Runs: the list of everything kept, the run under the cursor, filter, pin, comparison, and following what goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from console.analysis.run_verdict import EXIT_OF_CLASS
from console.errors import ExitCode
from console.experiments.curves import Curve
from console.experiments.store import RunRecord, Store
from console.experiments.svg import Point
from console.tui.glyphs import ASCII, UNICODE, Glyphs
from console.tui.screens.export_run import ExportScreen
from console.tui.screens.playbooks import PlaybooksScreen
from console.tui.screens.runs import RunsScreen
from console.tui.screens.service import ServiceScreen
from console.tui.tones import BAD
from console.tui.widgets.overlay import draw_overlays, matched
from console.tui.widgets.run_list import columns_of, draw_run_row, matching
from console.tui.widgets.verdict_card import class_mark
from tests.tui.conftest import console_of, lines, opened, settled, text, until
from tests.tui.recorded import VERDICT, RecordedHost


def keep(
    folder: Path,
    run_id: str,
    started: str,
    *,
    host: str = "gpu-01",
    model: str = "smollm2",
    playbook: str = "context_curve",
    verdict: dict[str, Any] | None = VERDICT,
    over: bool = True,
    step_ms: float = 30.0,
) -> None:
    """Put a run into the store, as following one would."""
    record = RunRecord(
        run_id, playbook, "1.0.0", "ab" * 32, {"tokens": 64, "kind": "prose"}, host, "ddtree-engine.service", started
    )
    environment = {"engine": "bundled", "version": "0.1.0", "settings_sha": "cafe", "model": model, "block_size": 16}
    events: list[dict[str, Any]] = [
        {"type": "hello", "playbook": playbook, "version": "1.0.0", "params": {"tokens": 64, "kind": "prose"}},
        {"type": "env", "phase": "start", **environment, "gpu": []},
    ]
    for level in (64, 1024, 4096):
        for repeat in (0, 1, 2):
            request = {
                "P": level, "N": 63, "N_usage": 64, "steps": 21, "decode_s": 21 * (step_ms + level * 0.02 + repeat) / 1000,
                "ttft_s": 0.5, "level": level, "kind": "prose", "finish": "length", "ctx_mid": level + 31.5,
                "commit": 3.0, "engine_src": "speculation",
            }  # fmt: skip
            events.append({"type": "sample", "req": request, "rep": repeat})
    with Store(folder) as store:
        store.begin(record, b"print('kept')\n")
        numbered = ({"v": 1, "seq": seq, "t": 0.0, "m": 0.0, **event} for seq, event in enumerate(events))
        store.append(run_id, b"".join(json.dumps(event).encode() + b"\n" for event in numbered))
        if over:
            levels = [
                {**one, "context": one["level"], "step_ms": one["step_ms"] + step_ms - 30.0}
                for one in (verdict or {}).get("levels", [])
            ]
            end = {
                "type": "result",
                "run_id": run_id,
                "status": "done" if verdict else "lost",
                "exit": 0 if verdict else 1,
            }
            message = None if verdict else "the script and its runner are gone"
            result = {**end, "verdict": verdict, "levels": levels, "message": message, "ended": started[:-3] + "30Z"}
            store.finish(run_id, result)


@pytest.fixture
def kept(own_state: Path) -> Path:
    """A store with three runs on two hosts, the newest lost."""
    own_state.mkdir(parents=True)
    keep(own_state, "20261129-1000-context_curve-aa", "2026-11-29T10:00:00Z")
    keep(own_state, "20261129-1100-context_curve-bb", "2026-11-29T11:00:00Z", step_ms=60.0)
    keep(own_state, "20261129-1200-quick_probe-cc", "2026-11-29T12:00:00Z", host="gpu-02", playbook="quick_probe", verdict=None)  # fmt: skip
    return own_state


async def open_runs(pilot: Pilot[None], words: str = "context_curve") -> None:
    """The Runs screen, read."""
    await pilot.press("5")
    await until(pilot, lambda: isinstance(pilot.app.screen, RunsScreen) and words in text(pilot))


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)])
async def test_runs_stand_newest_first_with_host_and_verdict(
    host: RecordedHost, kept: Path, size: tuple[int, int]
) -> None:
    async with opened(host, size) as pilot:
        await open_runs(pilot)
        rows = lines(pilot)
        assert rows[1].split() == ["3", "runs"]
        assert "gpu-02  quick_probe    ✗ lost" in rows[2]
        assert "gpu-01  context_curve  ✓ explained" in rows[3]
        await pilot.press("enter")
        await until(pilot, lambda: "the script and its runner are gone" in text(pilot))


async def test_the_run_under_the_cursor_is_shown_with_levels_and_intervals(host: RecordedHost, kept: Path) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_runs(pilot)
        await pilot.press("down")
        await until(pilot, lambda: "0.95× [0.84, 1.09]" in text(pilot))
        assert "on gpu-01" in text(pilot)
        assert "done after 30 s" in text(pilot)
        assert "148.75 [138.75, 158.75]" in text(pilot)  # tok/s of the lowest level


async def test_the_filter_wants_every_word_and_says_how_many_are_hidden(host: RecordedHost, kept: Path) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_runs(pilot)
        await pilot.press("slash")
        pilot.app.screen.query_one(Input).value = "curve -bb"
        await pilot.press("enter")
        await until(pilot, lambda: "1 of 3 runs" in text(pilot))
        assert "filter curve -bb" in lines(pilot)[1]
        await until(pilot, lambda: "quick_probe" not in text(pilot))  # nor the report of the run that is hidden now
        await pilot.press("slash")
        pilot.app.screen.query_one(Input).value = "nothing-like-it"
        await pilot.press("enter")
        await until(pilot, lambda: "no run passes the filter" in text(pilot))


async def test_two_marked_runs_are_compared_the_later_against_the_earlier(host: RecordedHost, kept: Path) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_runs(pilot)
        assert "c compare" not in lines(pilot)[-1]
        await pilot.press("down", "space", "down", "space")
        await until(pilot, lambda: "2 marked: c compares them" in text(pilot))
        await pilot.press("c")
        await until(pilot, lambda: "Two runs against each other" in text(pilot) and "step time  " in text(pilot))
        rows = [row for row in text(pilot).splitlines() if "step time  " in row]
        assert float(rows[0].split()[2]) > 1.2  # 30 ms more a step on some 31 to 112 ms
        assert text(pilot).index("-aa on gpu-01") < text(pilot).index("-bb on gpu-01")
        await pilot.press("escape")
        await until(pilot, lambda: "quick_probe" in text(pilot))


async def test_what_is_not_comparable_is_refused_with_the_reason(host: RecordedHost, own_state: Path) -> None:
    own_state.mkdir(parents=True)
    keep(own_state, "a-run", "2026-11-29T10:00:00Z")
    keep(own_state, "b-run", "2026-11-29T11:00:00Z", playbook="quick_probe")
    async with opened(host, (120, 45)) as pilot:
        await open_runs(pilot)
        await pilot.press("space", "down", "space", "c")
        await until(pilot, lambda: "not comparable" in text(pilot))
        assert "quick_probe" in text(pilot)


async def test_a_pinned_run_is_golden_until_it_is_unpinned(host: RecordedHost, kept: Path) -> None:
    async with opened(host, (160, 45)) as pilot:
        await open_runs(pilot)
        await pilot.press("down", "g")
        await until(pilot, lambda: "✓ explained  golden" in text(pilot))
        with Store(kept) as store:
            assert [run.id[-2:] for run in store.runs() if run.pinned] == ["bb"]
        await pilot.press("g")
        await until(pilot, lambda: "golden  " not in text(pilot))


async def test_a_run_that_measured_nothing_cannot_be_golden_and_the_reason_stays(
    host: RecordedHost, kept: Path
) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_runs(pilot)
        await pilot.press("g")
        session = console_of(pilot).session
        await until(pilot, lambda: session.happenings.unread == 1)
        assert "nothing can be measured by it" in session.happenings.items[-1].text


@pytest.mark.parametrize(
    ("letter", "form", "begins"),
    [
        ("m", "md", "# context_curve on gpu-01"),
        ("h", "html", "<!DOCTYPE html>"),
        ("c", "csv", "i,arm,"),
        ("j", "json", "{"),
    ],
)
async def test_export_writes_the_form_asked_for_and_says_where(
    host: RecordedHost, kept: Path, letter: str, form: str, begins: str
) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_runs(pilot)
        await pilot.press("down", "x")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExportScreen) and "h  HTML" in text(pilot))
        await pilot.press(letter)
        path = kept / "exports" / f"20261129-1100-context_curve-bb.{form}"
        session = console_of(pilot).session
        await until(pilot, lambda: session.happenings.items and str(path) in session.happenings.items[-1].text)
        assert path.read_text(encoding="utf-8").startswith(begins)
        assert path.stat().st_mode & 0o077 == 0


async def test_export_is_left_without_a_file_by_escape(host: RecordedHost, kept: Path) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_runs(pilot)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExportScreen))
        await pilot.press("q", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunsScreen))
        assert not (kept / "exports").exists()


@pytest.mark.parametrize(("size", "charts"), [((80, 60), 1), ((200, 50), 3)])
async def test_a_comparison_lays_the_curves_of_both_over_each_other(
    host: RecordedHost, kept: Path, size: tuple[int, int], charts: int
) -> None:
    async with opened(host, size) as pilot:
        await open_runs(pilot)
        await pilot.press("down", "space", "down", "space", "c")
        await until(pilot, lambda: "○ before (dashed)   ● after" in text(pilot))
        titles = [row for row in lines(pilot) if "over context (tokens)" in row]
        assert titles[0].count("over context") == charts  # one below the other, or side by side
        assert "Step time, ms" in titles[0]
        await pilot.resize_terminal(60, 60)  # drawn anew for the width that there is now
        await until(pilot, lambda: all(len(row.rstrip()) <= 60 for row in lines(pilot)))
        assert "○ before (dashed)   ● after" in text(pilot)


async def test_what_a_kept_verdict_proposes_is_taken_to_the_form_of_its_own_host(
    host: RecordedHost, own_state: Path
) -> None:
    own_state.mkdir(parents=True)
    verdict = {**VERDICT, "changes": {"tree_budget": 8}}
    keep(own_state, "a-run", "2026-11-29T10:00:00Z", verdict=verdict, host="gpu-02")
    keep(own_state, "b-run", "2026-11-29T11:00:00Z", verdict=verdict)
    async with opened(host, (160, 45)) as pilot:
        await open_runs(pilot)
        await until(pilot, lambda: "a follow/apply" in lines(pilot)[-1])
        await pilot.press("down")
        await until(pilot, lambda: "a follow/apply" not in lines(pilot)[-1])  # that is another host's
        await pilot.press("up")
        await until(pilot, lambda: "a follow/apply" in lines(pilot)[-1])
        await pilot.press("a")
        await until(pilot, lambda: isinstance(pilot.app.screen, ServiceScreen) and "tree_budget  16 → 8" in text(pilot))
        assert host.calls == []


def spots(*pairs: tuple[float, float], ci: float = 0.0) -> Curve:
    points = tuple(Point(x, y, (y - ci, y + ci) if ci else None) for x, y in pairs)
    return Curve("Step time", "context (tokens)", "ms", points)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_two_curves_keep_their_places_and_are_told_apart_without_colour(glyphs: Glyphs) -> None:
    before, after = spots((0, 20), (100, 20)), spots((0, 40), (100, 80))
    rows = [line.plain for line in draw_overlays([(before, after)], 60, glyphs, rows=9)]
    plot = rows[3:12]
    assert [row[:10].strip() for row in plot] == ["80", *[""] * 7, "0"]
    here = {
        mark: [(row, cell) for row, line in enumerate(plot) for cell, one in enumerate(line) if one == mark]
        for mark in glyphs.dot + glyphs.ring
    }
    assert here[glyphs.dot] == [(0, 59), (4, 10)]  # 80 at the right end, 40 at the left
    assert here[glyphs.ring] == [(6, 10), (6, 59)]  # 20 throughout
    between = plot[6][11:59].replace(glyphs.dot, "")
    assert 0 < sum(one != " " for one in between) < 48  # dashed
    assert rows[12].split() == ["0", "100"]


def test_an_interval_is_an_upright_stroke_through_its_point() -> None:
    rows = [
        line.plain for line in draw_overlays([(spots((0, 50), (100, 50)), spots((50, 50), ci=40))], 60, UNICODE, rows=9)
    ]
    middle = {row for row, line in enumerate(rows[3:12]) if line[34:36].strip()}
    assert middle >= set(range(1, 8))


def test_only_curves_of_one_name_and_unit_are_laid_over_each_other() -> None:
    ours, theirs = spots((0, 1)), spots((0, 2))
    assert matched([ours], [theirs]) == [(ours, theirs)]
    assert matched([ours], [Curve("Step time", "output tokens", "ms", theirs.points)]) == []
    assert matched([Curve("Step time", "context (tokens)", "ms", ())], [theirs]) == []


async def test_a_run_that_goes_on_is_followed_again_from_its_first_event(host: RecordedHost, own_state: Path) -> None:
    own_state.mkdir(parents=True)
    keep(own_state, "rec-1", "2026-11-29T10:00:00Z", over=False)
    async with opened(host, (120, 45)) as pilot:
        await open_runs(pilot, "running")
        await until(pilot, lambda: "a follow" in lines(pilot)[-1])
        await pilot.press("a")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlaybooksScreen) and "✓ explained" in text(pilot))


async def test_without_a_run_the_screen_says_where_to_make_one(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_runs(pilot, "no run yet")
        assert "0 runs" in lines(pilot)[1]
        await pilot.press("enter", "space", "g", "x", "c")
        await settled(pilot)
        assert console_of(pilot).session.happenings.items == ()


def test_words_match_anywhere_in_the_line_and_small_letters_match_both_cases(kept: Path) -> None:
    with Store(kept) as store:
        runs = store.runs()
    assert [run.id[-2:] for run in matching(runs, "")] == ["cc", "bb", "aa"]
    assert [run.id[-2:] for run in matching(runs, "gpu-01 EXPLAINED")] == []
    assert [run.id[-2:] for run in matching(runs, "explained")] == ["bb", "aa"]
    assert [run.id[-2:] for run in matching(runs, "lost quick")] == ["cc"]


def test_rows_are_aligned_and_keep_to_their_width(kept: Path) -> None:
    with Store(kept) as store:
        runs = store.runs()
    columns = columns_of(runs)
    rows = [draw_run_row(run, columns, 90, UNICODE, marked={runs[0].id})[0].plain for run in runs]
    assert len({row.index("gpu-0") for row in rows}) == 1
    assert len({min(row.find(mark) for mark in "✓✗" if mark in row) for row in rows}) == 1
    assert [row[3] for row in rows] == ["●", " ", " "]


def test_a_class_that_fails_a_check_is_shown_as_bad_and_no_other() -> None:
    for klass, status in EXIT_OF_CLASS.items():
        assert (class_mark(klass, UNICODE)[1] == BAD) == (status is ExitCode.CHECK_SAYS_NO), klass
