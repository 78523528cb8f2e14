"""A run over real SSH on a real engine: uploaded, compiled there, detached, followed exactly once, judged, kept."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from loopback import LoopbackBox, TinyEngine
from sound_script import HEADER, changed

from console.box.connection import Connection
from console.box.target import Target
from console.errors import OperatorError, UsageError
from console.experiments.conduct import Bench, attach, cancel, remote_runs, run, start
from console.experiments.playbook import Playbook, built_in_folder, judge_playbook, read_playbook
from console.experiments.remote import remote_run
from console.experiments.report import markdown_report, text_report
from console.experiments.store import Store

QUICK = {"levels": [16, 40, 80, 160, 320], "tokens": 24, "reps": 2, "budget_seconds": 60}
COUNTER = """
import json, os, time
def emit(seq, kind, **more):
    print(json.dumps({"v": 1, "seq": seq, "t": time.time(), "m": time.monotonic(), "type": kind, **more}), flush=True)
emit(0, "hello", playbook="sound", version="1.0.0", params={}, plan={})
"""


def built_in(name: str) -> Playbook:
    return read_playbook(built_in_folder() / f"{name}.py")


def sound(body: str) -> Playbook:
    playbook = judge_playbook(Path("sound.py"), (HEADER + COUNTER + body).encode())
    assert playbook.faults == ()
    return playbook


async def gathered(events: AsyncIterator[dict[str, Any]], within_s: float = 60) -> list[dict[str, Any]]:
    async with asyncio.timeout(within_s):
        return [event async for event in events]


async def test_the_context_curve_runs_to_a_verdict_with_five_levels(
    bench: Bench, box: tuple[LoopbackBox, Target]
) -> None:
    events = await gathered(run(bench, built_in("context_curve"), QUICK))
    assert (events[0]["type"], events[0]["how"]) == ("run", "session")
    numbered = [event["seq"] for event in events if "seq" in event]
    assert numbered == list(range(len(numbered)))
    result = events[-1]
    assert (result["type"], result["status"], result["playbook"]) == ("result", "done", "context_curve")
    assert [level["level"] for level in result["levels"]] == QUICK["levels"]
    for level in result["levels"]:
        assert level["tok_s"] == pytest.approx(level["commit_length"] / level["step_ms"] * 1000, rel=1e-6)
        assert level["requests"] == 2
        low, high = level["step_ms_ci"]
        assert low < level["step_ms"] < high
    assert {"class", "headline", "factors", "warnings", "next"} <= result["verdict"].keys()
    assert result["fit"]["levels"] == 5
    samples = [event["req"] for event in events if event["type"] == "sample"]
    assert len(samples) == 10
    for sample in samples:
        assert (sample["P"], sample["N"], sample["N_usage"]) == (sample["level"], 23, 24)
        assert sample["engine_src"] == "speculation"
        assert sum((i + 1) * steps for i, steps in enumerate(sample["hist"])) == 23
        assert sum(sample["hist"]) == sample["steps"]

    stored = bench.store.show("last")
    assert stored.result is not None and stored.result["verdict"] == result["verdict"]
    assert [event["seq"] for event in stored.events] == numbered
    (line,) = bench.store.runs()
    assert (line.playbook, line.host, line.status, line.verdict_class) == (
        "context_curve",
        "loop",
        "done",
        result["verdict"]["class"],
    )
    assert "commit length" in text_report(stored)
    assert "| level |" in markdown_report(stored)


async def test_the_run_folder_is_private_and_holds_what_was_checked(
    bench: Bench, box: tuple[LoopbackBox, Target], connection: Connection
) -> None:
    playbook = built_in("quick_probe")
    events = await gathered(run(bench, playbook, {"reps": 1, "tokens": 16, "prompt": 16}))
    folder = box[0].home / ".local/state/ddtree/runs" / events[0]["run_id"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir() if path.name != "__pycache__"} == {0o600}
    assert (folder / "script.py").read_bytes() == playbook.data
    environment = json.loads((folder / "env.json").read_text())
    assert environment["DDT_BASE_URL"] == f"http://127.0.0.1:{bench.engine.port}"
    assert events[-1]["verdict"]["class"] in ("healthy", "commit_collapsed")
    assert [found.run_id for found in await remote_runs(bench)] == [events[0]["run_id"]]


async def test_every_event_comes_once_over_links_that_break(bench: Bench, box: tuple[LoopbackBox, Target]) -> None:
    script = "for n in range(1, 120):\n    emit(n, 'log', msg='x' * 2000)\n    time.sleep(0.01)\nemit(120, 'end', status='done', exit=0)\n"
    seqs = []
    async with asyncio.timeout(60):
        async for event in run(bench, sound(script), {}):
            if "seq" in event:
                seqs.append(event["seq"])
                if event["seq"] in (10, 40, 41, 90):
                    box[0].drop()
            last = event
    assert seqs == list(range(121))
    assert (last["status"], last["exit"], last["verdict"]) == ("done", 0, None)


async def test_attaching_tells_a_run_from_its_start_and_then_live(
    bench: Bench, tmp_path: Path, box: tuple[LoopbackBox, Target]
) -> None:
    wait = "n = 1\nwhile not os.path.exists('go'):\n    emit(n, 'log', msg='waiting')\n    n += 1\n    time.sleep(0.02)\nemit(n, 'end', status='done', exit=0)\n"
    begun = await start(bench, sound(wait), {})
    seen: list[int] = []
    live = attach(bench, begun["run_id"])
    async with asyncio.timeout(30):
        async for event in live:
            if "seq" in event:
                seen.append(event["seq"])
            if len(seen) == 10:
                break
    await live.aclose()  # type: ignore[attr-defined]
    (box[0].home / ".local/state/ddtree/runs" / begun["run_id"] / "go").touch()
    with Store(tmp_path / "another laptop") as other:
        taken_over = await gathered(attach(dataclasses.replace(bench, store=other), begun["run_id"]))
    again = await gathered(attach(bench, begun["run_id"]))
    for events in (taken_over, again):
        numbers = [event["seq"] for event in events if "seq" in event]
        assert numbers == list(range(len(numbers)))
        assert numbers[: len(seen)] == seen
        assert events[-1]["status"] == "done"
    assert await gathered(attach(bench, begun["run_id"])) == again  # now from the store alone


async def test_cancel_ends_the_request_under_way_and_leaves_the_engine_idle(bench: Bench, engine: TinyEngine) -> None:
    begun = await start(bench, built_in("quick_probe"), {"tokens": 1500, "prompt": 256, "reps": 50})
    following = attach(bench, begun["run_id"])
    events = []
    async with asyncio.timeout(60):
        async for event in following:
            events.append(event)
            if event["type"] == "progress":
                asked = asyncio.create_task(cancel(bench, begun["run_id"]))
                break
        events += [event async for event in following]
        cancelled = await asked
    assert (cancelled.exit["code"], cancelled.exit["reason"], cancelled.running) == (130, "cancelled", 0)
    assert engine.requests()["running"] == 0
    assert (events[-1]["status"], events[-1]["exit"], events[-1]["verdict"]) == ("cancelled", 130, None)
    assert events[-2]["type"] == "end"


async def test_a_second_run_on_the_engine_is_busy(bench: Bench, box: tuple[LoopbackBox, Target]) -> None:
    first = await start(bench, sound("while not os.path.exists('go'):\n    time.sleep(0.02)\n"), {})
    result = (await gathered(run(bench, sound("pass\n"), {})))[-1]
    assert (result["status"], result["exit"]) == ("busy", 75)
    assert first["run_id"] in result["message"]
    await cancel(bench, first["run_id"])


ENDINGS = [
    ("emit(1, 'end', status='done', exit=0)\n", "done", 0),
    ("emit(1, 'log', msg='and no end')\n", "truncated", 1),
    ("emit(2, 'end', status='done', exit=0)\n", "incomplete", 1),
    ("raise RuntimeError('no')\n", "truncated", 1),
    ("os.kill(os.getpid(), 9)\n", "killed", 137),
    ("emit(1, 'error', code='x', msg='why')\nemit(2, 'end', status='engine', exit=5)\nraise SystemExit(5)\n", "engine", 5),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "exit_status"), ENDINGS)
async def test_how_a_run_ended_is_read_from_its_own_last_words(
    bench: Bench, body: str, status: str, exit_status: int
) -> None:
    script = body.replace("os.kill", "getattr(os, 'ki' 'll')")
    playbook = judge_playbook(
        Path("sound.py"), (HEADER.replace("effects = []", 'effects = ["restarts_service"]') + COUNTER + script).encode()
    )

    async def restarts(planned: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        assert not planned  # it asks for no restart of ours, so it is not asked what it would change
        return {}

    result = (await gathered(run(dataclasses.replace(bench, restarts=restarts), playbook, {})))[-1]
    assert (result["status"], result["exit"]) == (status, exit_status)
    if status == "engine":
        assert result["message"] == "why"


async def test_a_run_whose_processes_are_gone_is_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.experiments.follow.STALL_S", 0.3)
    begun = await start(bench, sound("time.sleep(60)\n"), {})
    own = json.loads(await bench.connection.read(remote_run(bench.connection, begun["run_id"]).path("pid")))
    os.kill(own["runner"], signal.SIGKILL)
    result = (await gathered(attach(bench, begun["run_id"])))[-1]
    assert (result["status"], result["exit"]) == ("lost", 1)


async def test_a_script_that_falls_silent_is_said_to_be_stalled_once_and_may_go_on(
    bench: Bench, box: tuple[LoopbackBox, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.experiments.follow.STALL_S", 0.3)
    silent = "while not os.path.exists('go'):\n    time.sleep(0.02)\nemit(1, 'end', status='done', exit=0)\n"
    events = []
    async with asyncio.timeout(60):
        async for event in run(bench, sound(silent), {}):
            events.append(event)
            if event.get("code") == "stalled":
                await asyncio.sleep(1.0)  # three more silences: it is not said again
                (box[0].home / ".local/state/ddtree/runs" / events[0]["run_id"] / "go").touch()
    assert [event["type"] for event in events] == ["run", "hello", "warn", "end", "result"]
    assert (events[-1]["status"], "seq" in events[2]) == ("done", False)


async def test_nothing_is_uploaded_for_a_script_with_a_fault(bench: Bench, box: tuple[LoopbackBox, Target]) -> None:
    broken = judge_playbook(
        Path("sound.py"), (changed("# api = 1", "# api = 1") + 'print(f"{rate[\\"tok\\"]}")\n').encode()
    )
    with pytest.raises(UsageError, match=r"line \d+, col 15: f-string: a backslash") as refused:
        await start(bench, broken, {})
    assert refused.value.exit_code == 2
    assert '  print(f"{rate[' in str(refused.value)
    assert not (box[0].home / ".local").exists()
    assert box[0].commands[1:] == []  # the login's look at the box, and nothing else


async def test_the_boxs_own_python_has_the_last_word_on_syntax(bench: Bench, box: tuple[LoopbackBox, Target]) -> None:
    sly = dataclasses.replace(judge_playbook(Path("sound.py"), HEADER.encode()), data=b"x = 1\nmatch = (\n")
    with pytest.raises(UsageError):
        await start(bench, dataclasses.replace(sly, faults=()), {})
    assert not list(box[0].home.glob(".local/state/ddtree/runs/*"))


BAD_PARAMS = [
    ({"level": [16]}, "did you mean 'levels'"),
    ({"levels": "16,x"}, "'16,x' is not a list of integers"),
    ({"levels": [16, 40_000]}, "40000 is above the max"),
    ({"tokens": 8}, "8 is below the min 16"),
    ({"kind": "pros"}, "did you mean 'prose'"),
    ({"reps": "two"}, "'two' is not an integer"),
]


@pytest.mark.parametrize(("params", "says"), BAD_PARAMS)
async def test_bad_parameters_are_refused_before_anything_is_uploaded(
    bench: Bench, box: tuple[LoopbackBox, Target], params: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        await start(bench, built_in("context_curve"), params)
    assert says in str(refused.value)
    assert not (box[0].home / ".local").exists()


async def test_an_engine_that_does_not_answer_ends_the_run_with_what_is_missing(bench: Bench) -> None:
    nowhere = dataclasses.replace(bench, engine=dataclasses.replace(bench.engine, port=1))
    events = await gathered(run(nowhere, built_in("quick_probe"), {}))
    assert [event["type"] for event in events] == ["run", "hello", "error", "end", "result"]
    assert (events[-1]["status"], events[-1]["exit"]) == ("missing", 4)
    assert "nothing answers there" in events[-1]["message"]


async def test_a_run_that_nobody_knows_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match="no such run"):
        await gathered(attach(bench, "20260101-000000-sound-0000"))
    with pytest.raises(UsageError, match="no such run on the box; ddtree runs lists them"):
        await cancel(bench, "20260101-000000-sound-0000")


async def test_a_box_without_python_is_said_with_exit_status_four(bench: Bench) -> None:
    with pytest.raises(OperatorError, match="no Python answers as /nowhere/python3") as refused:
        await start(dataclasses.replace(bench, python="/nowhere/python3"), built_in("quick_probe"), {})
    assert refused.value.exit_code == 4
