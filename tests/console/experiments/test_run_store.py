"""The store keeps a run's lines as they came, and its database can be made anew from them at any time."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from console.errors import UsageError
from console.experiments.follow import Ending
from console.experiments.report import markdown_report, text_report
from console.experiments.result import result_event
from console.experiments.store import RunRecord, Store, StoreError
from console.experiments.tables import MIGRATIONS


def record(run_id: str, started: str = "2026-11-29T18:00:00Z", host: str = "gpu-01") -> RunRecord:
    return RunRecord(
        id=run_id, playbook="context_curve", version="1.0.0", script_sha="ab" * 32, params={"tokens": 64, "kind": "prose"},
        host=host, unit="ddtree-engine.service", started=started,
    )  # fmt: skip


def sample(level: int, n: int, steps: int, decode_s: float, **more: Any) -> dict[str, Any]:
    request = {
        "P": level, "N": n, "N_usage": n + 1, "steps": steps, "decode_s": decode_s, "ttft_s": 0.5, "level": level,
        "kind": "prose", "finish": "length", "ctx_mid": level + n / 2, "commit": n / steps, "engine_src": "speculation",
    }  # fmt: skip
    return {"type": "sample", "req": {**request, **more}}


def lines(*events: dict[str, Any]) -> bytes:
    numbered = ({"v": 1, "seq": seq, "t": 0.0, "m": 0.0, **event} for seq, event in enumerate(events))
    return b"".join(json.dumps(event).encode() + b"\n" for event in numbered)


def a_run() -> bytes:
    environment = {
        "engine": "bundled",
        "version": "0.1.0",
        "settings_sha": "cafe",
        "model": "m",
        "block_size": 16,
        "gpu": [],
    }
    return lines(
        {"type": "hello", "playbook": "context_curve", "version": "1.0.0", "params": {"tokens": 64, "kind": "prose"}},
        {"type": "env", "phase": "start", **environment},
        *(sample(level, 63, 21, 0.021 * (30 + level * 0.02), rep=rep) for level in (64, 512, 1024, 2048, 4096) for rep in (0, 1)),
        {"type": "series", "name": "step time", "x": [95.5, 543.5], "y": [31.9, 40.9]},
        {"type": "series", "name": "step time", "x": [1055.5], "y": [None]},
        {"type": "summary", "stats": {"prompts_sha": "beef"}},
        {"type": "end", "status": "done", "exit": 0, "rows": 0, "seq_total": 17},
    )  # fmt: skip


def finished(store: Store, run_id: str, **more: str) -> dict[str, Any]:
    store.begin(record(run_id, **more), b"# the script\n")
    data = a_run()
    store.append(run_id, data[:1000])
    store.append(run_id, data[1000:])
    events, reader = store.resume(run_id)
    result = result_event(
        run_id, "context_curve", events, reader, Ending("ended", {"code": 0, "signal": None, "reason": None})
    )
    store.finish(run_id, {**result, "ended": "2026-11-29T18:02:00Z"})
    return result


def dump(store: Store) -> list[str]:
    with sqlite3.connect(store.database_file) as database:
        return sorted(database.iterdump())


def test_a_finished_run_is_found_with_its_verdict_samples_and_points(store: Store) -> None:
    result = finished(store, "20261129-180000-context_curve-aaaa")
    assert result["verdict"]["class"] == "explained"
    assert result["fit"]["b_ms_per_token"] == pytest.approx(0.02, rel=0.05)
    (line,) = store.runs()
    assert (line.status, line.exit, line.verdict_class, line.ended) == ("done", 0, "explained", "2026-11-29T18:02:00Z")
    assert line.headline == result["verdict"]["headline"]
    with sqlite3.connect(store.database_file) as database:
        assert database.execute("SELECT count(*), sum(steps), max(level) FROM sample").fetchone() == (10, 210, 4096.0)
        assert database.execute("SELECT i, x, y FROM point ORDER BY i").fetchall() == [
            (0, 95.5, 31.9),
            (1, 543.5, 40.9),
            (2, 1055.5, None),
        ]
        assert database.execute("SELECT phase, settings_sha FROM env").fetchall() == [("start", "cafe")]
        assert database.execute("SELECT b FROM fit").fetchone()[0] == pytest.approx(result["fit"]["b_ms_per_token"])


def test_the_database_is_made_anew_from_the_event_files_and_comes_out_the_same(store: Store) -> None:
    finished(store, "20261129-180000-context_curve-aaaa")
    finished(store, "20261129-190000-context_curve-bbbb", started="2026-11-29T19:00:00Z")
    store.begin(record("20261129-200000-context_curve-cccc", started="2026-11-29T20:00:00Z"), b"")
    before, listed = dump(store), store.runs()
    assert store.rebuild() == 3
    assert store.runs() == listed
    assert dump(store) == before
    assert [line.status for line in listed] == ["running", "done", "done"]


def test_the_kept_lines_are_the_boxes_own_so_that_their_size_is_where_to_go_on(store: Store) -> None:
    store.begin(record("r-1"), b"")
    data = a_run()
    whole = data[: data.index(b'"seq": 4')]
    whole = whole[: whole.rindex(b"\n") + 1]
    store.append("r-1", whole)
    events, reader = store.resume("r-1")
    assert (reader.offset, reader.next_seq) == (len(whole), 4)
    assert [event["seq"] for event in events] == [0, 1, 2, 3]


def test_everything_is_private(store: Store) -> None:
    finished(store, "r-1")
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    assert store.runs_folder.stat().st_mode & 0o777 == 0o700


def test_a_run_is_found_by_a_beginning_that_only_it_has(store: Store) -> None:
    finished(store, "20261129-180000-context_curve-aaaa")
    finished(store, "20261129-190000-context_curve-bbbb", started="2026-11-29T19:00:00Z")
    assert store.show("20261129-18").record.id.endswith("aaaa")
    assert store.show("last").record.id.endswith("bbbb")
    with pytest.raises(UsageError, match="2 runs begin so"):
        store.show("20261129")
    with pytest.raises(UsageError, match="no such run"):
        store.show("2025")
    with pytest.raises(UsageError, match="no run has such a name"):
        store.resume("../../etc/passwd")


def test_runs_are_listed_newest_first_by_host_and_playbook(store: Store) -> None:
    finished(store, "a-1", started="2026-11-29T18:00:00Z")
    finished(store, "a-2", started="2026-11-29T19:00:00Z", host="gpu-02")
    assert [line.id for line in store.runs()] == ["a-2", "a-1"]
    assert [line.id for line in store.runs(host="gpu-01")] == ["a-1"]
    assert store.runs(playbook="quick_probe") == ()
    first, second = store.runs()
    assert first.comparable_key == second.comparable_key
    store.delete("a-1")
    assert [line.id for line in store.runs()] == ["a-2"]


def test_a_database_of_a_newer_console_is_refused_and_a_broken_one_too(tmp_path: Path) -> None:
    with Store(tmp_path / "newer") as store, sqlite3.connect(store.database_file) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreError, match=f"version {len(MIGRATIONS) + 1}, and this console knows {len(MIGRATIONS)}"):
        Store(tmp_path / "newer")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "runs.db").write_bytes(b"this is no database, and longer than a header of one hundred bytes " * 3)
    with pytest.raises(StoreError, match="made anew"):
        Store(broken)


def test_a_database_that_was_moved_away_is_made_anew_from_the_runs_beside_it(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        finished(store, "a-1")
        before, file = store.runs(), store.database_file
    file.rename(tmp_path / "moved")
    with Store(tmp_path) as store:
        assert store.runs() == before
        assert store.show("a-1").result is not None


def test_reports_show_levels_with_intervals_warnings_and_where_it_ran(store: Store) -> None:
    result = finished(store, "r-1")
    text, markdown = text_report(store.show("r-1")), markdown_report(store.show("r-1"))
    assert "context_curve 1.0.0 on gpu-01" in text
    assert result["verdict"]["headline"] in text
    (row,) = [line for line in text.splitlines() if line.strip().startswith("4096")]
    assert "3.000" in row
    assert "| level | context | requests |" in markdown
    assert "**explained**" in markdown
    assert "- `kind` = `prose`" in markdown
    assert "settings_sha: cafe" in markdown
