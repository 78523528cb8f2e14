"""Playbooks that restart the service: settings change by the transaction, and the old ones come back whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

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


async def test_both_page_sizes_are_measured_and_the_old_one_serves_again(served: tuple[Bench, Site]) -> None:
    bench, site = served
    before = await read_base(site)
    events = await gathered(run(bench, built_in("page_size_ab"), {**SMALL, "page_size": 7}), PATIENCE_S)
    result = events[-1]
    assert result["status"] == "done", result["message"]
    assert result["verdict"]["class"] == "inconclusive"  # one block explores
    assert "exploratory" in {one["code"] for one in result["verdict"]["warnings"]}
    arms = {event["req"]["arm"] for event in events if event["type"] == "sample"}
    assert arms == {"page 16", "page 7"}
    probes = {
        (e["req"]["pair"], e["req"]["out_sha"]) for e in events if e["type"] == "sample" and e["req"].get("probe")
    }
    assert len(probes) == 3  # three questions, each answered alike under both page sizes
    assert await read_base(site) == before
    remote = remote_run(bench.connection, result["run_id"], bench.python)
    assert not await bench.connection.exists(remote.path("restore.json"))


async def test_settings_come_back_when_the_script_is_killed_and_when_its_runner_is_too(
    served: tuple[Bench, Site],
) -> None:
    bench, site = served
    before = await read_base(site)
    for victims in (("pid",), ("runner", "pid")):
        begun = await start(bench, built_in("page_size_ab"), LONG, seed=OTHER_ARM_FIRST)
        remote = remote_run(bench.connection, begun["run_id"], bench.python)
        await until_changed(bench, begun["run_id"])
        own = json.loads(await bench.connection.read(remote.path("pid")))
        for name in victims:
            os.kill(own[name], signal.SIGKILL)
        events = await gathered(attach(bench, begun["run_id"]), PATIENCE_S)
        assert events[-1]["status"] in ("killed", "lost")
        assert await read_base(site) == before
        restored = [event["msg"] for event in events if event.get("code") == "restored"]
        assert restored == (
            ["the run left other settings behind; the old ones serve again"] if "runner" in victims else []
        )


async def test_a_cancelled_run_puts_the_settings_back_before_it_ends(served: tuple[Bench, Site]) -> None:
    bench, site = served
    before = await read_base(site)
    begun = await start(bench, built_in("page_size_ab"), LONG, seed=OTHER_ARM_FIRST)
    await until_changed(bench, begun["run_id"])
    cancelled = await cancel(bench, begun["run_id"])
    assert cancelled.exit["reason"] == "cancelled"
    assert await read_base(site) == before


async def test_a_parser_changes_fields_and_no_tokens(served: tuple[Bench, Site]) -> None:
    bench, site = served
    before = await read_base(site)
    params = {**SMALL, "value": "deepseek_r1"}  # it takes everything for reasoning until it is told otherwise
    events = await gathered(run(bench, built_in("parser_ab"), params), PATIENCE_S)
    result = events[-1]
    assert result["status"] == "done", result["message"]
    samples = [event["req"] for event in events if event["type"] == "sample"]
    fields = {one["arm"]: set(one["fields"]) - {"none"} for one in samples if not one.get("probe")}
    assert fields == {"reasoning_parser off": {"content"}, "reasoning_parser deepseek_r1": {"reasoning_content"}}
    assert {"exploratory", "fields"} <= {one["code"] for one in result["verdict"]["warnings"]}
    assert await read_base(site) == before


async def test_a_setting_that_the_engine_has_not_is_refused_before_anything_is_touched(
    served: tuple[Bench, Site],
) -> None:
    bench, site = served
    kit = await restart_kit(site, "tester")
    poorer = {**kit, "fixed": [*kit["fixed"], "page_size"]}

    async def restarts() -> dict[str, Any]:
        return poorer

    here = Bench(bench.connection, bench.host, bench.engine, bench.store, bench.python, restarts=restarts)
    result = (await gathered(run(here, built_in("page_size_ab"), {**SMALL, "page_size": 7}), PATIENCE_S))[-1]
    assert (result["status"], result["exit"]) == ("missing", 4)
    assert result["message"] == "page_size cannot be changed on this engine"
    applies = await bench.connection.run(["find", f"{kit['state']}/applies", "-name", "*page_size_ab*"])
    assert applies.stdout == b""


async def test_without_the_transaction_a_restarting_playbook_does_not_start(served: tuple[Bench, Site]) -> None:
    bench, _ = served
    bare = Bench(bench.connection, bench.host, bench.engine, bench.store, bench.python)
    with pytest.raises(OperatorError, match="restarts the service, and nothing here may"):
        await start(bare, built_in("page_size_ab"), SMALL)
