"""Playbooks that restart the service: settings change by the transaction, and the old ones come back whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from planted_causes import DATA, speaking_model
from test_run_end_to_end import built_in, gathered

from console.box.connection import connect
from console.box.layout import layout_for
from console.box.services import manager_for
from console.box.target import DEFAULT_UNIT
from console.config import Places, resolve
from console.demo import DemoRequest, demo_box
from console.deployment.bundled import BUNDLED
from console.deployment.reconfigure import read_base, restart_kit
from console.deployment.site import Limits, Site
from console.errors import OperatorError
from console.experiments.conduct import Bench, attach, cancel, run, start
from console.experiments.remote import EngineUnderTest, remote_run
from console.experiments.store import Store

PATIENCE_S = 300.0  # every start of the engine loads torch
OTHER_ARM_FIRST = 5  # with this seed the other page size is the first of the two arms
SMALL = {"blocks": 1, "requests": 1, "tokens": 16, "prompt": 16}
LONG = {**SMALL, "requests": 50, "tokens": 400, "page_size": 7}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Bench, Site]]:
    """A demo box with the tiny model under its supervisor, and a bench that may restart it."""
    where = Places(tmp_path / "hosts.toml", tmp_path / "known_hosts", tmp_path / "demo.json", tmp_path / "state", ())
    model = speaking_model(tmp_path / "model")
    request = DemoRequest(str(model), str(DATA / "drafter"), {"context_length": 512}, prompts=False)
    async with demo_box(request, lambda _: None, where), await connect(resolve("demo", where)) as connection:
        manager = manager_for(connection, layout_for("supervisor", connection.home, DEFAULT_UNIT))
        site = Site(connection, manager, limits=Limits(soak_s=0.2, dry_run=False))
        port = BUNDLED.endpoint(await read_base(site)).port
        under_test = EngineUnderTest(port=port, unit=DEFAULT_UNIT, max_context=512, page_size=16)
        with Store(tmp_path / "runs") as store:
            restarts = partial(restart_kit, site, "tester")
            bench = Bench(connection, "demo", under_test, store, manager.layout.python, restarts=restarts)
            yield bench, site


async def until_changed(bench: Bench, run_id: str) -> None:
    """Wait until the run has brought up the other page size."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in attach(bench, run_id):
            if event["type"] == "log" and "serving with page_size 7" in event["msg"]:
                return


async def test_both_page_sizes_are_measured_and_what_may_not_be_changed_is_left_alone(
    served: tuple[Bench, Site],
) -> None:
    bench, site = served
    before = await read_base(site)
    with pytest.raises(OperatorError, match="restarts the service, and nothing here may"):
        await start(
            Bench(bench.connection, bench.host, bench.engine, bench.store, bench.python),
            built_in("page_size_ab"),
            SMALL,
        )

    asked = {**SMALL, "setting": "reasoning_parser", "value": "qwen4"}
    result = (await gathered(run(bench, built_in("parser_ab"), asked), PATIENCE_S))[-1]
    assert (result["status"], result["exit"]) == ("missing", 4)
    assert result["message"].startswith("reasoning_parser: ") and "qwen3" in result["message"]
    touched = await bench.connection.run(["find", f"{site.state}/applies", "-name", "*parser_ab*"])
    assert touched.stdout == b""

    events = await gathered(run(bench, built_in("page_size_ab"), {**SMALL, "page_size": 7}), PATIENCE_S)
    result = events[-1]
    assert result["status"] == "done", result["message"]
    assert result["verdict"]["class"] == "inconclusive"  # one block explores
    assert "exploratory" in {one["code"] for one in result["verdict"]["warnings"]}
    samples = [event["req"] for event in events if event["type"] == "sample"]
    assert {one["arm"] for one in samples} == {"page 16", "page 7"}
    answers = {(one["pair"], one["out_sha"]) for one in samples if one.get("probe")}
    assert len(answers) == 3  # three questions, each answered alike under both page sizes
    assert await read_base(site) == before
    told = [event["msg"] for event in events if event["type"] == "log" and event["msg"].startswith("serving with")]
    assert {one.split(" after")[0] for one in told} == {"serving with the old settings", "serving with page_size 7"}
    assert not await bench.connection.exists(remote_run(bench.connection, result["run_id"]).path("restore.json"))


async def test_settings_come_back_from_a_cancel_a_killed_script_and_a_killed_runner(served: tuple[Bench, Site]) -> None:
    bench, site = served
    before = await read_base(site)
    begun = await start(bench, built_in("page_size_ab"), LONG, seed=OTHER_ARM_FIRST)
    await until_changed(bench, begun["run_id"])
    cancelled = await cancel(bench, begun["run_id"])
    assert cancelled.exit["reason"] == "cancelled"
    assert await read_base(site) == before

    for victims in (("pid",), ("runner", "pid")):
        begun = await start(bench, built_in("page_size_ab"), LONG, seed=OTHER_ARM_FIRST)
        remote = remote_run(bench.connection, begun["run_id"], bench.python)
        await until_changed(bench, begun["run_id"])
        own = json.loads(await bench.connection.read(remote.path("pid")))
        for name in victims:
            with contextlib.suppress(ProcessLookupError):  # no script outlives its runner
                os.kill(own[name], signal.SIGKILL)
        events = await gathered(attach(bench, begun["run_id"]), PATIENCE_S)
        assert events[-1]["status"] in ("killed", "lost")
        assert await read_base(site) == before
        restored = [event["msg"] for event in events if event.get("code") == "restored"]
        by_console = ["the run left other settings behind; the old ones serve again"]
        assert restored == (by_console if "runner" in victims else [])
