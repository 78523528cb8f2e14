"""Playbooks that restart an engine of other people: its unit, its EnvironmentFile, the same transaction, the old file back.

The engine is a stand-in whose pace follows from its arguments (measured_stand_in.py); the real one needs a GPU.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from box_machine import Box, free_port
from test_foreign_engines import serving

from console.box.connection import Connection
from console.deployment.reconfigure import restart_kit
from console.deployment.site import Site, read_base
from console.experiments.conduct import Bench, run
from console.experiments.playbook import catalogue
from console.experiments.remote import EngineUnderTest
from console.experiments.store import Store

pytestmark = pytest.mark.box

ENGINE = Path("tests/box/measured_stand_in.py")
ARGUMENTS = (
    "--model-path hub/model --port {port} --speculative-algorithm DDTREE --speculative-draft-model-path hub/drafter "
    "--speculative-ddtree-budget 64 --attention-backend triton --disable-overlap-schedule"
)
SMALL = {"tokens": 41, "short": 48, "long": 0, "reps": 2}


async def ended(
    box: Box, site: Site, folder: Path, playbook: str, **params: Any
) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """A run's result, its samples and all its events; the settings file is the old one again."""
    before = await read_base(site)
    with Store(folder) as store:
        port = site.deployment.endpoint(before).port
        under_test = EngineUnderTest(port=port, unit=site.manager.unit, kind="sglang", max_context=4096)
        restarts = partial(restart_kit, site, "ana@laptop")
        bench = Bench(site.connection, "box", under_test, store, str(box.python), restarts=restarts)
        chosen = next(one for one in catalogue() if one.id == playbook)
        events = [event async for event in run(bench, chosen, params)]
    assert await read_base(site) == before
    return events[-1], [event["req"] for event in events if event["type"] == "sample"], events


async def test_budgets_are_swept_by_restarts_and_the_best_one_can_be_applied(
    box: Box, ops: Connection, tmp_path: Path
) -> None:
    async with serving(box, ops, "sglang.launch_server", ARGUMENTS.format(port=free_port()), ENGINE) as site:
        result, rows, told = await ended(box, site, tmp_path, "budget_sweep", budgets=[4, 16, 128], **SMALL)
        assert result["status"] == "done", result["message"]
        pace = {row["arm"]: row["N"] / row["steps"] for row in rows}
        assert pace == {"now": 5.0, "off": 1.0, "chain": 2.0, "tree 4": 2.0, "tree 16": 4.0}
        assert len(rows) == 10  # every arm in both rounds, but for the one that failed under load
        (failed,) = (event for event in told if event["type"] == "warn")
        assert failed["code"] == "fails_under_load"
        assert failed["msg"].startswith("tree 128: 4 requests beside each other at 48 tokens: /generate: HTTP 500")
        assert failed["msg"].endswith("CUDA out of memory. Tried to allocate 32.00 MiB")
        verdict = result["verdict"]
        assert [one["arm"] for one in verdict["recommended"]] == ["tree 16"]
        assert verdict["class"] in ("faster", "small", "inconclusive")  # the machine may be busy with other things
        if verdict["class"] == "faster":
            assert verdict["changes"] == {"mode": "ddtree", "tree_budget": 16}


async def test_answers_are_held_against_those_of_a_start_without_speculation(
    box: Box, ops: Connection, tmp_path: Path
) -> None:
    async with serving(box, ops, "sglang.launch_server", ARGUMENTS.format(port=free_port()), ENGINE) as site:
        result, rows, told = await ended(box, site, tmp_path, "lossless", prompts=4, tokens=31, long=96)
        assert result["status"] == "done", result["message"]
        assert result["verdict"]["class"] == "lossless", result["verdict"]["headline"]
        assert [(row["arm"], row["steps"]) for row in rows] == [("off", 30), ("now", 6)] * 4
        assert [row["P"] for row in rows[1::2]] == [64, 96, 64, 96]
        starts = [event["msg"] for event in told if event["type"] == "log" and event["msg"].startswith("serving with")]
        assert [one.split(" after")[0] for one in starts] == ["serving with mode off", "serving with the old settings"]


async def test_a_page_size_that_the_engine_is_known_to_fail_with_touches_nothing(
    box: Box, ops: Connection, tmp_path: Path
) -> None:
    async with serving(box, ops, "sglang.launch_server", ARGUMENTS.format(port=free_port()), ENGINE) as site:
        was = await site.manager.state()
        result, rows, _ = await ended(box, site, tmp_path, "page_size_ab", page_size=64, blocks=1)
        assert (result["status"], result["exit"], rows) == ("missing", 4, [])
        assert result["message"].startswith("page_size: 64 is too much for ddtree")
        assert (await site.manager.state()).invocation == was.invocation


async def test_a_parser_that_gathers_the_stream_is_seen_and_the_steps_stay_as_they_are(
    box: Box, ops: Connection, tmp_path: Path
) -> None:
    async with serving(box, ops, "sglang.launch_server", ARGUMENTS.format(port=free_port()), ENGINE) as site:
        asked = {"value": "qwen3", "blocks": 1, "requests": 2, "tokens": 61, "prompt": 48}
        result, rows, _ = await ended(box, site, tmp_path, "parser_ab", **asked)
        assert result["status"] == "done", result["message"]
        verdict = result["verdict"]
        assert verdict["class"] == "inconclusive"  # one block explores
        assert verdict["effects"]["commit"]["ratio"] == 1.0
        said = {one["code"]: one["msg"] for one in verdict["warnings"]}
        assert said["fields"].endswith(
            "content under reasoning_parser off and in reasoning_content under reasoning_parser qwen3"
        )
        assert said["buffered_stream"].startswith("reasoning_parser qwen3 gathers the stream")
        assert {row["steps"] for row in rows if not row.get("probe")} == {12}
