"""The demo box: the same install, service and settings change as on a real one, with the real engine on a tiny model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import httpx
import pytest

from console.box.connection import Connection, connect
from console.box.journal import read_journal
from console.box.layout import layout_for
from console.box.services import ServiceManager, manager_for
from console.box.target import DEFAULT_UNIT
from console.config import Places, resolve
from console.demo import DemoError, DemoRequest, demo_box
from console.demo_server import MARK
from console.deployment.change import Difference, Outcome, Phase
from console.deployment.generations import history
from console.deployment.reconfigure import apply, plan, plan_rollback
from console.deployment.site import Limits, Site
from console.errors import UsageError

TINY = Path(__file__).parents[1] / "data" / "tiny-ddtree"
REQUEST = DemoRequest(
    model=str(TINY / "target"), drafter=str(TINY / "drafter"), settings={"context_length": 512}, prompts=False
)


@dataclass(frozen=True)
class Demo:
    """A running demo, with a connection of its own as any operator has it."""

    where: Places
    connection: Connection
    manager: ServiceManager
    site: Site
    said: list[str]

    async def server_info(self) -> dict[str, object]:
        port = (await plan(self.site, {})).text.partition("port = ")[2].split()[0]
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            found: dict[str, object] = (
                await client.get(f"http://127.0.0.1:{await self.connection.forward(int(port))}/server_info")
            ).json()
        return found


def places_in(folder: Path) -> Places:
    state = folder / "state"
    return Places(folder / "hosts.toml", folder / "known_hosts", folder / "demo.json", state, ())


@contextlib.asynccontextmanager
async def demo_in(folder: Path) -> AsyncIterator[Demo]:
    where = places_in(folder)
    said: list[str] = []
    async with demo_box(REQUEST, said.append, where), await connect(resolve("demo", where)) as connection:
        manager = manager_for(connection, layout_for("supervisor", connection.home, DEFAULT_UNIT))
        yield Demo(where, connection, manager, Site(connection, manager, limits=Limits(soak_s=0.5)), said)


def marked_processes(home: Path) -> set[int]:
    """Processes that a demo with this home started; another demo's on the same machine are none of ours."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (folder / "environ").read_bytes()
            if f"{MARK}=".encode() in environ and bytes(home) in environ:
                found.add(int(folder.name))
    return found


async def outcome_of(demo: Demo, changes: dict[str, str]) -> tuple[Outcome, list[str]]:
    phases: list[str] = []
    async for item in apply(demo.site, await plan(demo.site, changes), who="ana@laptop"):
        if isinstance(item, Outcome):
            return item, phases
        assert isinstance(item, Phase)
        phases.append(item.name)
    raise AssertionError("no outcome")


async def test_a_demo_serves_takes_new_settings_takes_bad_ones_back_and_leaves_nothing(tmp_path: Path) -> None:
    async with demo_in(tmp_path) as demo:
        assert marked_processes(tmp_path)
        state = await demo.manager.state()
        assert (state.state, state.scope) == ("serving", "supervisor")
        ready = [
            r
            for r in await read_journal(demo.connection, demo.manager.journal_source())
            if r.message.startswith("ready ")
        ]
        assert [record.invocation for record in ready] == [state.invocation]
        assert "context_length=512" in ready[0].message

        for change, said in (
            ({"context_length": "4096"}, "context_length: 4096 is above the model's 2048"),
            ({"pages": "10"}, "context_length: 512 needs 32 pages of 16, the pool has 10"),
            ({"page_sizes": "8"}, "page_sizes: no such setting; the nearest is page_size"),
            ({"block_size": "99"}, "block_size: 99 is outside 2 to 8"),
        ):
            with pytest.raises(UsageError, match=f"^{said}"):
                await plan(demo.site, change)
        assert (await demo.manager.state()).invocation == state.invocation

        wanted = await plan(demo.site, {"page_size": "7", "context_length": "256"})
        assert wanted.differences == (Difference("context_length", 512, 256), Difference("page_size", 16, 7))
        assert wanted.capacity[0].startswith("256 tokens × 2,048 B = 530 kB of 559 kB in the pool")
        confirmed, phases = await outcome_of(demo, {"page_size": "7", "context_length": "256"})
        assert (confirmed.status, confirmed.generation) == ("confirmed", 1)
        assert phases[0] == "staged" and phases[-4:] == ["ready", "probe", "soak", "confirmed"]
        info = await demo.server_info()
        assert isinstance(info["settings"], dict)
        assert (info["settings"]["page_size"], info["settings"]["context_length"]) == (7, 256)

        lost = await plan(demo.site, {"drafter": str(tmp_path / "none")})
        assert "the engine will refuse it" in lost.warnings[0]
        refused, _ = await outcome_of(
            demo, {"drafter": str(tmp_path / "none")}
        )  # by the engine's own check of the file
        assert refused.status == "rejected"
        assert refused.reason is not None and str(tmp_path / "none") in refused.reason
        hollow = tmp_path / "hollow"  # what only loading tells: a folder whose weights are missing
        hollow.mkdir()
        (hollow / "config.json").write_bytes((TINY / "drafter" / "config.json").read_bytes())
        back, _ = await outcome_of(demo, {"drafter": str(hollow)})
        assert back.status == "rolled_back"
        assert back.reason is not None and str(hollow) in back.reason
        assert back.settings["page_size"] == 7
        assert (await demo.manager.state()).state == "serving"

        told = await history(demo.site)
        assert [(g.number, g.outcome, g.who) for g in told][:2] == [
            (3, "rolled_back", "ana@laptop"),
            (2, "rejected", "ana@laptop"),
        ]
        assert told[2].differences == wanted.differences
        assert (await plan_rollback(demo.site)).differences == (
            Difference("context_length", 256, 512),
            Difference("page_size", 7, 16),
        )
        key = tmp_path / "state" / "demo" / "key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        with pytest.raises(DemoError, match=f"a demo is running already, as process {os.getpid()}"):
            async with demo_box(REQUEST, where=demo.where):
                pass
        stranger = asyncssh.generate_private_key("ssh-ed25519")
        target = resolve("demo", demo.where)
        with pytest.raises(asyncssh.PermissionDenied):
            await asyncssh.connect(
                target.address,
                target.port,
                username=target.user,
                client_keys=[stranger],
                known_hosts=None,
                agent_path=None,
            )
    assert not (tmp_path / "demo.json").exists()
    assert marked_processes(tmp_path) == set()

    async with demo_in(tmp_path) as second:  # the release is kept, so that it starts faster; settings are new
        assert any("a virtual environment over" in line for line in demo.said)
        assert any("is there already" in line for line in second.said)
        assert [generation.number for generation in await history(second.site)] == [0]


async def test_a_demo_without_the_engines_packages_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.demo.requirements", lambda: {"torch": "torch>=999", "psutil": "psutil>=6"})
    with pytest.raises(DemoError, match=r"lacks torch; pip install \"ddtree-console\[engine\]\""):
        async with demo_box(replace(REQUEST), where=places_in(tmp_path)):
            await asyncio.sleep(0)
