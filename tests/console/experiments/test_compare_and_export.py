"""Two runs are compared only where that says something; a run leaves the console whole, in four formats; pins last."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import sqlite3
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from console.analysis.groups import groups_of
from console.cli import main
from console.errors import UsageError
from console.experiments.compare import compare, compared_text
from console.experiments.curves import curves_of
from console.experiments.export import bundle, csv_table, export
from console.experiments.follow import Ending
from console.experiments.report import level_table
from console.experiments.result import result_event
from console.experiments.store import RunRecord, Store, StoredRun
from console.experiments.svg import Line, Point, line_chart, ticks
from console.experiments.tables import MIGRATIONS

LEVELS = (64, 1000, 3000, 6000, 12000)
SETTINGS = {"mode": "ddtree", "tree_budget": 16, "page_size": 16, "port": 8765, "path": "/models/m"}


def request(kind: str, level: int, commit: float, step_ms: float, noise: random.Random) -> dict[str, Any]:
    steps = round(120 / commit)
    decode_s = steps * step_ms * math.exp(noise.gauss(0, 0.01)) / 1000
    n = round(steps * commit * math.exp(noise.gauss(0, 0.01)))
    return {
        "P": level, "N": n, "N_usage": n + 1, "steps": steps, "decode_s": decode_s, "client_decode_s": decode_s * 1.001,
        "ttft_s": 0.2, "level": level, "kind": kind, "finish": "length", "ctx_mid": level + n / 2, "cached": 0,
        "chunks": steps + 1, "distinct2": 0.9, "engine_src": "speculation",
    }  # fmt: skip


def a_run(
    store: Store, run_id: str, *, seed: int = 1, slope: float = 0.004, settings: dict[str, Any] | None = None,
    commits: dict[str, float] | None = None, params: dict[str, Any] | None = None, host: str = "gpu-01",
    from_level: float = math.inf, drafter: str = "/r/0.1.0-aa/d", version: str = "0.1.0", queue_s: float = 0.0, headline_host: str = "",
) -> StoredRun:  # fmt: skip
    """A finished context curve with those properties in the store."""
    noise = random.Random(seed)
    commits = commits or {"prose": 3.0, "code": 4.0}
    given = params or {"tokens": 120, "kind": "prose"}
    rows = [
        request(kind, level, commit, (30 + slope * level) * (1.6 if level >= from_level else 1.0), noise)
        for _ in range(3)
        for level in LEVELS
        for kind, commit in commits.items()
    ]
    events: list[dict[str, Any]] = [
        {"type": "hello", "playbook": "context_curve", "version": "1.0.0", "params": given},
        {"type": "env", "phase": "start", "engine": "bundled", "version": version, "model": "m", "drafter": drafter, "block_size": 16,
         "gpu": ["H200"], "settings": {**SETTINGS, **(settings or {})}, "settings_sha": "cafe"},
        *({"type": "sample", "req": {**row, "queue_s": queue_s}, "counts": True} for row in rows),
        {"type": "summary", "stats": {"prompts_sha": "beef"}},
        {"type": "end", "status": "done", "exit": 0},
    ]  # fmt: skip
    record = RunRecord(
        id=run_id, playbook="context_curve", version="1.0.0", script_sha="ab" * 32, params=given, host=host,
        unit="ddtree-engine.service", started=f"2026-11-29T18:00:{seed:02d}Z",
    )  # fmt: skip
    store.begin(record, b"# the script\n")
    numbered = ({"v": 1, "seq": seq, "t": 0.0, "m": 0.0, **event} for seq, event in enumerate(events))
    store.append(run_id, b"".join(json.dumps(event).encode() + b"\n" for event in numbered))
    kept, reader = store.resume(run_id)
    result = result_event(
        run_id, "context_curve", kept, reader, Ending("ended", {"code": 0, "signal": None, "reason": None})
    )
    store.finish(run_id, {**result, "ended": "2026-11-29T18:02:00Z"})
    return store.show(run_id)


def test_two_runs_of_the_same_are_equivalent(store: Store) -> None:
    found = compare(a_run(store, "a", seed=1), a_run(store, "b", seed=2))
    assert found.refused is None and found.differences == ()
    assert found.verdict.klass == "equivalent"
    assert found.found is not None and found.found.cells == 10
    assert found.found.rate.ratio == pytest.approx(found.found.commit.ratio / found.found.step.ratio)
    assert [one.code for one in found.verdict.warnings] == ["not_interleaved"]


def test_a_doubled_context_slope_is_a_step_regression_that_names_its_factor(store: Store) -> None:
    found = compare(a_run(store, "a"), a_run(store, "b", seed=2, slope=0.008, settings={"page_size": 64}))
    assert found.verdict.klass == "step_regression"
    assert str(found.differences[0]) == "page_size: 16 -> 64"
    assert "the factor under test: page_size: 16 -> 64" in compared_text(found)
    assert found.to_json()["factor"] == {"key": "page_size", "before": 16, "after": 64}
    worst = found.found.steps_by_level[0]  # type: ignore[union-attr]
    assert worst.name == "level 12000" and worst.factor == pytest.approx((30 + 96) / (30 + 48), rel=0.03)


def test_a_drop_on_one_text_kind_is_found_although_the_mean_hides_it(store: Store) -> None:
    commits = {"prose": 3.0, "code": 4.0, "chat": 3.0, "json": 4.0, "math": 3.0, "copy": 5.0}
    before = a_run(store, "a", commits=commits)
    after = a_run(store, "b", seed=2, commits={**commits, "copy": 4.2})
    found = compare(before, after)
    assert found.verdict.klass == "acceptance_regression"
    assert "commit length has regressed at kind copy (1.1" in found.verdict.headline


def test_a_step_that_jumps_above_one_context_is_found_there(store: Store) -> None:
    found = compare(a_run(store, "a"), a_run(store, "b", seed=2, from_level=12000))
    assert found.verdict.klass == "step_regression" and "level 12000 (1.6" in found.verdict.headline


def test_waiting_behind_another_client_is_contention_and_no_regression(store: Store) -> None:
    found = compare(a_run(store, "a"), a_run(store, "b", seed=2, queue_s=0.9))
    assert found.verdict.klass == "contention"


REFUSED = [
    ({"settings": {"page_size": 64, "tree_budget": 32}}, "2 conditions differ", "page_size: 16 -> 64"),
    ({"settings": {"page_size": 64}, "version": "0.2.0"}, "2 conditions differ", "version: 0.1.0 -> 0.2.0"),
    ({"settings": {"page_size": 64}, "drafter": "/r/0.1.0-aa/other"}, "2 conditions differ", "drafter: d -> other"),
    ({"params": {"tokens": 64, "kind": "prose"}}, "other work was measured", "tokens 120"),
    ({"params": {"tokens": 120, "kind": "code"}}, "other work was measured", "kind code"),
]


@pytest.mark.parametrize(("change", "says", "key"), REFUSED)
def test_what_did_not_measure_the_same_is_refused_with_the_key_that_differs(
    store: Store, change: dict[str, Any], says: str, key: str
) -> None:
    found = compare(a_run(store, "a"), a_run(store, "b", seed=2, **change))
    assert found.found is None and found.verdict.klass == "not_comparable"
    assert says in (found.refused or "") and key in (found.refused or "")


def test_where_the_engine_listens_is_no_difference_and_another_host_only_a_remark(store: Store) -> None:
    after = a_run(store, "b", seed=2, settings={"port": 9000}, host="gpu-02", drafter="/r/0.1.0-bb/d")
    found = compare(a_run(store, "a"), after)
    assert found.refused is None and found.differences == ()
    assert [str(one) for one in found.soft] == ["host: gpu-01 -> gpu-02"]


def test_a_run_that_counts_for_nothing_is_compared_with_nothing(store: Store) -> None:
    good = a_run(store, "a")
    store.begin(RunRecord("b", "context_curve", "1.0.0", "", {}, "gpu-01", "u", "2026-11-29T19:00:00Z"), b"")
    assert compare(good, store.show("b")).verdict.headline == "b is not over"


def test_a_run_leaves_in_every_format(store: Store) -> None:
    run = a_run(store, "a")
    assert export(run, "md").startswith("# context_curve on gpu-01")
    rows = list(csv.DictReader(io.StringIO(export(run, "csv"))))
    assert len(rows) == 30 and {row["kind"] for row in rows} == {"prose", "code"}
    levels = list(csv.DictReader(io.StringIO(csv_table(run, "levels"))))
    assert [float(row["level"]) for row in levels] == list(LEVELS)
    assert float(levels[0]["step_ms_ci_low"]) < float(levels[0]["step_ms"]) < float(levels[0]["step_ms_ci_high"])
    whole = json.loads(export(run, "json"))
    assert whole["schema"] == 1 and len(whole["events"]) == 34 and whole["conditions"]["key"] == run.conditions.key
    assert whole == json.loads(json.dumps(bundle(run)))


class Page(HTMLParser):
    """Counts tags, and collects text and everything that points outside."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.links: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "onload", "onclick")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_html_page_stands_alone_with_its_charts_and_names_what_is_modelled(store: Store) -> None:
    page = Page()
    page.feed(export(a_run(store, "a"), "html"))
    assert page.open == [] and page.links == [] and "script" not in page.tags
    assert page.tags["svg"] == 4  # three charts and the factor bars
    assert page.tags["circle"] == 15
    for words in ("fit (modelled)", "explained", "Step time, ms", "12,500", "comparability key", "tree_budget 16"):
        assert words in page.text


def test_what_a_box_says_cannot_become_markup_or_a_formula(store: Store) -> None:
    evil = '<script>alert(1)</script>"'
    run = a_run(
        store, "a", commits={f"=cmd|{evil}": 3.0}, settings={"mode": evil}, params={"tokens": 120, "kind": evil}
    )
    page = Page()
    page.feed(export(run, "html"))
    assert "script" not in page.tags and evil in page.text
    assert "'=cmd" in export(run, "csv")


def test_a_chart_spans_its_figures_and_one_without_figures_is_nothing() -> None:
    assert line_chart("empty", [Line("a", [])], "x", "y") == ""
    assert ticks(0, 12000) == [0, 2500, 5000, 7500, 10000, 12500]
    assert ticks(5, 5)[0] <= 5 <= ticks(5, 5)[-1]
    drawn = line_chart("one", [Line("a", [Point(1, 2, (1.5, 2.5)), Point(3, 4)])], "tok", "ms")
    assert drawn.count("<circle") == 2 and "a: 1 → 2 [1.5, 2.5]" in drawn


def test_the_newest_pin_under_the_same_conditions_counts_and_survives_a_rebuild(store: Store) -> None:
    a_run(store, "a", seed=1)
    a_run(store, "b", seed=2)
    a_run(store, "c", seed=3, settings={"page_size": 64})
    store.pin("a", "2026-11-29T20:00:00Z")
    store.pin("b", "2026-11-29T21:00:00Z")
    store.pin("c", "2026-11-29T20:30:00Z")
    assert {one.id for one in store.runs() if one.pinned} == {"b", "c"}
    for _ in range(2):
        golden = store.golden("context_curve", "gpu-01")
        assert golden is not None and golden.record.id == "b"
        store.rebuild()
    assert store.golden("context_curve", "gpu-02") is None
    store.unpin("b")
    assert store.golden("context_curve", "gpu-01").record.id == "c"  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="is not pinned"):
        store.unpin("b")


def test_a_run_is_shown_with_what_is_other_than_in_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Store(tmp_path / "ddtree") as store:
        first = a_run(store, "run-a", seed=1)
        a_run(store, "elsewhere", seed=2, host="gpu-02", settings={"page_size": 1})
        last = a_run(store, "run-b", seed=3, settings={"page_size": 64})
        assert store.before(first) is None
        assert store.before(last).record.id == "run-a"  # type: ignore[union-attr]
    assert main(["show", "run-b"]) == 0
    assert "changed since run-a: page_size: 16 -> 64" in capsys.readouterr().out
    assert main(["show", "run-a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == {"since": None, "differing": []}


def test_only_a_run_that_measured_can_be_golden(store: Store) -> None:
    store.begin(RunRecord("b", "context_curve", "1.0.0", "", {}, "gpu-01", "u", "2026-11-29T19:00:00Z"), b"")
    with pytest.raises(UsageError, match="nothing can be measured by it: still running"):
        store.pin("b", "2026-11-29T20:00:00Z")


def test_a_database_of_the_first_version_is_brought_up_and_read_anew(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        a_run(store, "a")
        key = store.runs()[0].comparable_key
        file = store.database_file
    file.unlink()
    with sqlite3.connect(file) as database:
        database.executescript(f"{MIGRATIONS[0]}; PRAGMA user_version = 1;")
        database.execute(
            "INSERT INTO run (id, playbook, params_json, host, started, status, comparable_key)"
            " VALUES ('a', 'context_curve', '{}', 'gpu-01', '2026-11-29T18:00:01Z', 'done', 'old')"
        )
    with Store(tmp_path) as store:
        (line,) = store.runs()
        assert line.comparable_key == key
        with sqlite3.connect(file) as database:
            assert database.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
            parts = database.execute("SELECT part FROM attribution ORDER BY part").fetchall()
    assert [part for (part,) in parts] == ["acceptance", "context", "kernel", "residual", "total"]


def test_the_verbs_speak_for_people_and_for_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Store(tmp_path / "ddtree") as store:
        a_run(store, "run-a", seed=1)
        a_run(store, "run-b", seed=2)
        a_run(store, "run-c", seed=3, settings={"page_size": 64, "tree_budget": 8})
    assert main(["compare", "run-a", "run-b"]) == 0
    assert "equivalent" in capsys.readouterr().out
    assert main(["compare", "run-a", "run-c", "--json"]) == 6
    said = json.loads(capsys.readouterr().out)
    assert [one["key"] for one in said["differing"]] == ["tree_budget", "page_size"]
    page = tmp_path / "run.html"
    assert main(["export", "run-a", "--format", "html", "--output", str(page)]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert main(["export", "run-a", "--format", "pdf"]) == 2
    assert main(["export", "run-a", "--output", str(tmp_path)]) == 2
    assert main(["pin", "run-a", "--json"]) == 0
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["runs"] if one["pinned"]] == ["run-a"]


def arms_run(store: Store) -> StoredRun:
    """A budget sweep of three arms at two levels, one of them without speculation."""
    rows = [
        {**request("prose", level, commit, step_ms, random.Random(7 + repeat)), "arm": arm}
        for repeat in range(3)
        for level in (100, 1000)
        for arm, commit, step_ms in (("off", 1.0, 20.0), ("tree 8", 2.0, 30.0), ("tree 16", 2.5, 40.0))
    ]
    rows = [{**row, "N": row["steps"]} if row["arm"] == "off" else row for row in rows]
    events: list[dict[str, Any]] = [
        {"type": "hello", "playbook": "budget_sweep", "version": "1.0.0", "params": {}},
        {"type": "env", "phase": "start", "engine": "bundled", "version": "0.1.0", "model": "m", "settings": SETTINGS},
        *({"type": "sample", "req": row, "counts": True} for row in rows),
        {"type": "end", "status": "done", "exit": 0},
    ]
    record = RunRecord(
        id="arms", playbook="budget_sweep", version="1.0.0", script_sha="ab" * 32, params={}, host="gpu-01",
        unit="ddtree-engine.service", started="2026-11-29T18:00:00Z",
    )  # fmt: skip
    store.begin(record, b"# the script\n")
    numbered = ({"v": 1, "seq": seq, "t": 0.0, "m": 0.0, **event} for seq, event in enumerate(events))
    store.append("arms", b"".join(json.dumps(event).encode() + b"\n" for event in numbered))
    kept, reader = store.resume("arms")
    ending = Ending("ended", {"code": 0, "signal": None, "reason": None})
    store.finish(
        "arms", {**result_event("arms", "budget_sweep", kept, reader, ending), "ended": "2026-11-29T18:02:00Z"}
    )
    return store.show("arms")


def test_a_run_of_arms_is_given_away_with_a_row_and_a_line_for_each(store: Store) -> None:
    run = arms_run(store)
    assert run.result is not None and run.result["levels"] == []
    table = level_table(run)
    assert [row[:2] for row in table] == [
        ["arm", "level"], ["off", "100"], ["off", "1000"], ["tree 8", "100"], ["tree 8", "1000"], ["tree 16", "100"], ["tree 16", "1000"],
    ]  # fmt: skip
    assert [(one.name, one.line) for one in curves_of(run)][:3] == [
        ("Step time", "off"),
        ("Step time", "tree 8"),
        ("Step time", "tree 16"),
    ]
    page = Page()
    page.feed(export(run, "html"))
    assert page.tags["svg"] == 3 and page.tags["polyline"] == 9 and page.tags["circle"] == 18
    assert "Arms" in page.text and "tree 16" in page.text
    assert "## Arms" in export(run, "md")
    rows = list(csv.DictReader(io.StringIO(csv_table(run, "levels"))))
    assert [row["group"] for row in rows] == [row[0] for row in table[1:]]


def test_without_speculation_a_step_commits_one_token_and_that_has_no_spread(store: Store) -> None:
    groups = {(one["group"], one["level"]): one for one in (arms_run(store).result or {})["groups"]}
    assert groups["off", 100.0]["commit_length_ci"] == [1.0, 1.0]
    low, high = groups["tree 8", 100.0]["commit_length_ci"]
    assert 1.0 <= low < groups["tree 8", 100.0]["commit_length"] < high


def test_one_wide_interval_does_not_flatten_the_curves() -> None:
    wide = line_chart("Step time, ms", [Line("a", [Point(0, 10, (1, 9000)), Point(1, 12, (11, 13))])], "context", "ms")
    assert ">25</text>" in wide and ">9,000</text>" not in wide
    assert "[1, 9000]" in wide  # the figure itself is told, under the pointer


def test_an_arm_asked_in_passing_does_not_stand_for_the_run() -> None:
    rows = [request(kind, 64, commit, 30.0, random.Random(3)) for kind, commit in (("prose", 2.0), ("code", 3.0)) * 2]
    off = {**rows[0], "arm": "off", "N": rows[0]["steps"]}
    found = groups_of([*rows, off])
    assert [(one["by"], one["group"], one["requests"]) for one in found] == [("kind", "prose", 2), ("kind", "code", 2)]
    assert groups_of(rows[:1]) == []


def test_a_comparison_repeats_what_either_run_said_of_its_box(store: Store) -> None:
    before, after = a_run(store, "a", seed=1), a_run(store, "b", seed=2)
    assert before.result is not None
    said = {"code": "busy_host", "msg": "the box was busy with other work: load 7.1 on 2 processors"}
    verdict = {**before.result["verdict"], "warnings": [said, {"code": "few_levels", "msg": "three levels"}]}
    busy = replace(before, result={**before.result, "verdict": verdict})
    assert [one.msg for one in compare(busy, after).verdict.warnings if one.code == "busy_host"] == [
        "in the run before: the box was busy with other work: load 7.1 on 2 processors"
    ]
    assert "few_levels" not in [one.code for one in compare(busy, after).verdict.warnings]
    assert "in the run after" in compared_text(compare(after, busy))
