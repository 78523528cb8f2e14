"""The night key over real SSH on a real engine: pinned, asked again, and the way to the client stamped on both sides."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from test_run_end_to_end import built_in, gathered

from console.errors import UsageError
from console.experiments.client_side import ClientSideError, read_streams
from console.experiments.conduct import Bench, run

SMALL = {"tokens": 32, "short": 32, "long": 256, "reps": 2, "wait": 5, "budget_seconds": 60}


async def diagnosed(bench: Bench, **more: Any) -> dict[str, Any]:
    return (await gathered(run(bench, built_in("diagnose"), {**SMALL, **more})))[-1]


async def test_the_engine_is_held_against_its_pinned_run(drawn: Bench) -> None:
    first = await diagnosed(drawn)
    assert first["status"] == "done", first["message"]
    assert "pin it" in first["verdict"]["next"]  # at once, or on a quiet box
    drawn.store.pin(first["run_id"], "2026-11-30T20:00:00Z")
    second = await diagnosed(drawn)
    assert second["verdict"]["golden"] == first["run_id"]
    # On a shared machine steps may have grown slower for real; nothing else is named that was not planted.
    assert second["verdict"]["class"] in ("healthy", "inconclusive", "step_regression", "unexplained", "contention")
    samples = [event["req"] for event in drawn.store.show(second["run_id"]).events if event["type"] == "sample"]
    cells = {(one["kind"], one["level"]) for one in samples if one.get("steps") and not one.get("probe")}
    assert len(cells) == 8 and {level for kind, level in cells if kind == "prose"} == {32, 85, 256}
    probes = {(one["pair"], one["arm"]): one["out_sha"] for one in samples if one.get("probe")}
    assert len(probes) == 4 and probes[0, "off"] == probes[0, "now"]
    streams = [one for one in samples if one.get("client_s")]
    assert len(streams) == 3
    for stream in streams:
        assert len(stream["client_s"]) == len(stream["box_s"]) > 4
        assert stream["client_s"] == sorted(stream["client_s"])


async def test_a_golden_run_of_other_settings_is_named_and_not_compared(drawn: Bench) -> None:
    first = await diagnosed(drawn, wait=0)
    folder = drawn.store.runs_folder / first["run_id"] / "events.jsonl"
    lines = (
        folder.read_text().replace('"tree_budget":16', '"tree_budget":64').replace('"page_size":16', '"page_size":1')
    )
    folder.write_text(lines)
    drawn.store.pin(first["run_id"], "2026-11-30T20:00:00Z")
    second = await diagnosed(drawn, wait=0)
    assert second["verdict"]["class"] == "not_comparable"
    assert "page_size: 1 -> 16" in second["verdict"]["headline"]
    assert "tree_budget: 64 -> 16" in second["verdict"]["headline"]
    assert second["exit"] == 6


async def test_client_and_box_stamp_the_same_chunks(drawn: Bench) -> None:
    result = (
        await gathered(run(drawn, built_in("client_vs_box"), {"streams": 3, "tokens": 64, "budget_seconds": 20}))
    )[-1]
    assert result["status"] == "done", result["message"]
    way = result["verdict"]["way"]
    assert 0.5 < way["slope"] < 2.0 and way["jitter_ms"] >= 0
    assert result["verdict"]["class"] in ("explained", "network", "inconclusive")


async def test_without_a_console_that_follows_the_way_is_not_measured(
    drawn: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stay_away(*_: object) -> int:
        return 0

    monkeypatch.setattr("console.experiments.conduct.read_streams", stay_away)
    result = (await gathered(run(drawn, built_in("client_vs_box"), {"wait": 1})))[-1]
    assert (result["status"], result["exit"], result["verdict"]) == ("missing", 4, None)
    assert "no console followed within 1 s" in result["message"]


async def test_streams_that_cannot_be_read_are_one_clear_line(drawn: Bench) -> None:
    with pytest.raises(ClientSideError, match="stream 1 could not be read"):
        await read_streams(drawn.connection, {"port": drawn.engine.port, "path": "/nothing", "streams": 2, "tokens": 8})


async def test_another_host_has_another_golden_run(drawn: Bench) -> None:
    first = await diagnosed(drawn, wait=0)
    drawn.store.pin(first["run_id"], "2026-11-30T20:00:00Z")
    elsewhere = dataclasses.replace(drawn, host="gpu-09")
    assert "golden" not in (await diagnosed(elsewhere, wait=0))["verdict"]
    with pytest.raises(UsageError):
        drawn.store.pin("2099", "2026-11-30T20:00:00Z")
