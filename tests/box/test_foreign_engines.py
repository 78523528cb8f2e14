"""Units that run SGLang and vLLM, changed by the same transaction: real systemd, its EnvironmentFile and journal.

The engines are stand-ins (stand_in_engine.py); the real ones need a GPU.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from box_machine import Box, free_port

from console.box.connection import Connection
from console.box.journal import read_journal
from console.box.layout import layout_for
from console.box.services import manager_for
from console.deployment.change import Outcome
from console.deployment.detect import find_site
from console.deployment.generations import diff, history
from console.deployment.reconfigure import apply, plan, plan_rollback
from console.deployment.site import Limits, Site
from console.errors import UsageError
from console.watch import Watch

pytestmark = pytest.mark.box

ENGINE = Path("tests/box/stand_in_engine.py")
LIMITS = Limits(stop_s=20, start_s=20, soak_s=0.3)


@asynccontextmanager
async def serving(box: Box, ops: Connection, kind: str, arguments: str, engine: Path = ENGINE) -> AsyncIterator[Site]:
    """A user unit that somebody made for their engine, with its arguments in a file beside it."""
    name = kind.partition(".")[0]
    layout = layout_for("user", ops.home, f"{name}.service")
    file = f"{ops.home}/engines/{name}.env"
    variable = f"{name.upper()}_ARGS"
    await ops.run(["mkdir", "-p", layout.units, f"{ops.home}/engines"])
    await ops.upload(f'# ours\nOTHER=1\n{variable}="{arguments}"\n'.encode(), file)
    unit = f"""\
[Service]
EnvironmentFile={file}
ExecStart={box.python} -S {box.checkout / engine} {kind} ${variable}
Restart=on-failure
RestartSec=1
"""
    await ops.upload(unit.encode(), layout.unit_file)
    await ops.run(["systemctl", "--user", "daemon-reload"])
    manager = manager_for(ops, layout)
    await manager.start()
    await manager.wait(lambda now: now.state == "serving", 20)
    try:
        yield replace(await find_site(ops, manager), limits=LIMITS)
    finally:
        await ops.run(["systemctl", "--user", "stop", layout.unit])
        await ops.run(["rm", "-rf", layout.unit_file, f"{ops.home}/engines", f"{layout.state}/{name}"])
        await ops.run(["rm", "-rf", f"{layout.config}/{name}"])
        await ops.run(["systemctl", "--user", "daemon-reload"])
        await ops.run(["systemctl", "--user", "reset-failed"])


async def end_of(site: Site, changes: dict[str, str]) -> Outcome:
    *_, outcome = [item async for item in apply(site, await plan(site, changes))]
    assert isinstance(outcome, Outcome)
    return outcome


async def argv_of(site: Site) -> list[str]:
    """The arguments that the running engine really got."""
    endpoint = site.deployment.endpoint((await site.connection.read(site.settings)).decode())
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        answer = await client.get(f"http://127.0.0.1:{await site.connection.forward(endpoint.port)}/argv")
        found: list[str] = answer.json()
        return found


async def test_sglang_takes_a_change_gives_back_a_bad_one_and_refuses_what_is_known_not_to_work(
    box: Box, ops: Connection
) -> None:
    async with serving(box, ops, "sglang.launch_server", f"--model-path hub/model --port {free_port()}") as site:
        assert (site.deployment.kind, site.settings) == ("sglang", f"{ops.home}/engines/sglang.env")
        before = (await ops.read(site.settings)).decode()
        first = await end_of(site, {"context_length": "32,768", "page_size": "16"})
        assert (first.status, first.generation) == ("confirmed", 1), first
        assert first.settings["context_length"] == 32768
        assert (await argv_of(site))[4:] == ["--context-length", "32768", "--page-size", "16"]

        watch = Watch(site)
        seen = await watch.look()
        await watch.close()
        assert seen.engine is not None and (seen.engine.kind, seen.engine.version) == ("sglang", "stand-in")
        assert (seen.settings["context_length"], seen.settings["page_size"], seen.running) == (32768, 16, 0)
        assert seen.settings["max_running_requests"] == 48  # which only its log tells
        assert seen.alarms == ()  # what was asked for is in force, as far as it is shown

        changed = (await ops.read(site.settings)).decode()
        bad = await end_of(site, {"context_length": "200000"})
        assert bad.status == "rolled_back"
        assert bad.reason == "it did not stay up: ValueError: the KV pool holds 100000 tokens, fewer than 200000"
        assert (await ops.read(site.settings)).decode() == changed
        assert (await argv_of(site))[4:6] == ["--context-length", "32768"]

        was = await site.manager.state()
        tree = {"mode": "ddtree", "drafter": "hub/drafter", "attention_backend": "triton", "overlap_schedule": "false"}
        with pytest.raises(UsageError, match="page_size: 16 is too much for ddtree"):
            await plan(site, tree)
        assert (await site.manager.state()).invocation == was.invocation

        *_, back = [item async for item in apply(site, await plan_rollback(site))]
        assert isinstance(back, Outcome) and back.status == "confirmed", back
        assert (await ops.read(site.settings)).decode() == before
        assert [(g.number, g.outcome) for g in await history(site)] == [
            (3, "confirmed"), (2, "rolled_back"), (1, "confirmed"), (0, "installed"),
        ]  # fmt: skip
        assert {d.name: (d.old, d.new) for d in await diff(site, 0, 2)} == {
            "context_length": (0, 200000),
            "page_size": (0, 16),
        }
        with pytest.raises(UsageError, match="9: no such generation; there are 0 to 3"):
            await diff(site, 0, 9)


async def test_vllms_json_argument_reaches_it_through_systemd_as_one_word(box: Box, ops: Connection) -> None:
    async with serving(box, ops, "vllm", f"hub/model --port {free_port()} --max-model-len 4096") as site:
        assert site.deployment.kind == "vllm"
        outcome = await end_of(
            site, {"mode": "dflash", "drafter": "hub/a drafter", "block_size": "16", "page_size": "32"}
        )
        assert outcome.status == "confirmed", outcome
        assert outcome.settings == {"context_length": 4096, "page_size": "32", "kv_dtype": "auto"}
        assert (await argv_of(site))[5:] == [
            "--block-size",
            "32",
            "--speculative-config",
            '{"method":"dflash","model":"hub/a drafter","num_speculative_tokens":15}',
        ]
        assert [phase.text for phase in outcome.phases if phase.name == "ready"] == ["2 settings read back"]


async def test_a_foreign_units_lines_are_found_without_a_name_of_their_own(box: Box, ops: Connection) -> None:
    async with serving(
        box, ops, "sglang.launch_server", f"--model-path m --port {free_port()} --context-length 999999999"
    ) as site:
        await site.manager.wait(lambda now: now.state in ("failed", "restarting", "start-limit-hit"), 20)
        said = [record.message for record in await read_journal(ops, site.manager.journal_source())]
    assert "ValueError: the KV pool holds 100000 tokens, fewer than 999999999" in said
