"""The link is cut at every step of every verb: an error of the console's own, a box that is whole, and a second try.

A step is a command that has just been started, or a file transfer that is about to begin: the worst moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from box_machine import Box, free_port
from fake_service import install_the_fake, request_for
from link_proxy import LinkProxy, eventually

from console.box.connection import Connection, connect
from console.box.doctor import examine
from console.box.install import install
from console.box.interpreter import survey
from console.box.journal import read_journal
from console.box.layout import layout_for
from console.box.services import ServiceManager, manager_for
from console.box.target import DEFAULT_UNIT, Target
from console.box.timing import Timing
from console.box.uninstall import uninstall
from console.deployment.change import Choices, Outcome, Phase
from console.deployment.generations import diff, history
from console.deployment.reconfigure import apply, find_strays, follow, new_request_id, plan, say, waiting_change
from console.deployment.site import Limits, Site
from console.errors import OperatorError

pytestmark = pytest.mark.box

FAKE = Path("tests/console/agent/fake_engine.py")
TINY = Path("tests/data/tiny-ddtree")
LIMITS = Limits(stop_s=20, start_s=20, ready_s=5, soak_s=0.05, dry_run=False)
# No heartbeat: it would be a step at a moment of its own.
QUICK = Timing(first_retry_s=0.02, last_retry_s=0.05, heartbeat_s=600, keepalive_s=5.0)
CLOSED_S = 0.1  # how long the link stays down


@dataclass
class Scissors:
    """Cuts the proxy's connections at the `at`-th step of the watched connection, and opens it again a moment later."""

    proxy: LinkProxy
    watched: Connection | None = None
    at: int = 0
    steps: int = 0
    opening: list[asyncio.Task[None]] = field(default_factory=list)

    def arm(self, connection: Connection, at: int) -> None:
        self.watched, self.at, self.steps = connection, at, 0

    async def step(self, connection: Connection) -> None:
        if connection is not self.watched:
            return
        self.steps += 1
        if self.steps == self.at:
            await self.proxy.cut()
            self.opening.append(asyncio.create_task(self._open_again()))

    async def _open_again(self) -> None:
        await asyncio.sleep(CLOSED_S)
        await self.proxy.open()


@pytest.fixture
def scissors(proxy: LinkProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scissors]:
    found = Scissors(proxy)
    start, files = Connection._open, Connection._sftp_on

    async def started(connection: Connection, *args: Any, **options: Any) -> Any:
        process = await start(connection, *args, **options)
        await found.step(connection)
        return process

    async def session(connection: Connection, *args: Any) -> Any:
        sftp = await files(connection, *args)
        await found.step(connection)
        return sftp

    monkeypatch.setattr(Connection, "_open", started)
    monkeypatch.setattr(Connection, "_sftp_on", session)
    monkeypatch.setattr("console.deployment.reconfigure.FIRST_SIGN_S", 2.0)
    monkeypatch.setattr("console.deployment.reconfigure.POLL_S", 0.05)
    yield found


@asynccontextmanager
async def watched(scissors: Scissors, target: Target, at: int) -> AsyncIterator[Connection]:
    async with await connect(target, timing=QUICK) as connection:
        await eventually(lambda: connection.state.latency_ms is not None)  # the one heartbeat is over
        scissors.arm(connection, at)
        yield connection
        scissors.watched = None
    await asyncio.gather(*scissors.opening)
    scissors.opening.clear()


async def at_every_step(
    scissors: Scissors,
    target: Target,
    verb: Callable[[Connection], Awaitable[object]],
    afterwards: Callable[[Exception | None], Awaitable[None]],
    most: int = 100,
    stride: int = 1,
) -> int:
    """Run `verb` with the link cut at its first step, its second, … until it gets through uncut, or `most` steps are done
    and the rest are alike; returns the steps. `stride` passes over steps of what takes long."""
    at = 1
    while True:
        failure: Exception | None = None
        async with watched(scissors, target, at) as connection:
            try:
                async with asyncio.timeout(60):
                    await verb(connection)
            except OperatorError as error:  # anything else is a fault of the console, and fails the test
                failure = error
                assert "\n" not in str(error)
            cut = scissors.steps >= at
        await afterwards(failure)
        if not cut or at == most:
            assert cut or failure is None
            return at - (not cut)
        at += stride


@pytest.fixture
def small_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agents alone: what is cut here is the way, not the engine."""
    from console.box.release import release_files

    files = {name: data for name, data in release_files().items() if name.startswith("agent/")}
    monkeypatch.setattr("console.box.install.release_files", lambda: {**files, "app/engine/__init__.py": b""})


@pytest.fixture
async def served(box: Box, ops: Connection, small_release: None) -> AsyncIterator[ServiceManager]:
    manager = await install_the_fake(box, ops, free_port())
    yield manager
    async for _ in uninstall(ops, manager):
        pass


async def test_looking(
    box: Box,
    ops: Connection,
    served: ServiceManager,
    scissors: Scissors,
    proxied: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = served.layout
    seen = await survey(ops, "--python", layout.python, "--port", str(free_port()))

    async def quick_survey(connection: Connection, *arguments: str) -> dict[str, Any]:
        """One command that takes no time, and what the real one found."""
        await connection.run(["true"])
        return seen

    monkeypatch.setattr("console.box.doctor.survey", quick_survey)
    planned = await plan(Site(ops, served), {"page_size": "64"})

    async def strays_of(connection: Connection) -> object:
        return await find_strays(Site(connection, manager_for(connection, layout)), planned)

    looks: dict[str, Callable[[Connection], Awaitable[object]]] = {
        "status": lambda connection: manager_for(connection, layout).state(),
        "history": lambda connection: history(Site(connection, manager_for(connection, layout))),
        "diff": lambda connection: diff(Site(connection, manager_for(connection, layout)), 0, 0),
        "plan": lambda connection: plan(Site(connection, manager_for(connection, layout)), {"page_size": "64"}),
        "strays": strays_of,
        "logs": lambda connection: read_journal(connection, served.journal_source()),
        "doctor": lambda connection: examine(connection, manager_for(connection, layout)),
    }
    before = await served.state()

    async def unchanged(failure: Exception | None) -> None:
        assert (await served.state()).invocation == before.invocation

    steps = {name: await at_every_step(scissors, proxied, look, unchanged) for name, look in looks.items()}
    assert steps["status"] == steps["logs"] == 1
    assert min(steps["history"], steps["doctor"]) > 1
    left = box.run(["pgrep", "-u", "ops", "-fc", "journalctl|survey|apply-"], check=False).stdout.decode().strip()
    assert left == "0"  # nothing that was started is left running


async def test_start_stop_and_restart(
    ops: Connection, served: ServiceManager, scissors: Scissors, proxied: Target
) -> None:
    layout = served.layout

    async def to(verb: str, connection: Connection) -> None:
        manager = manager_for(connection, layout)
        before = (await manager.state()).invocation
        await {"start": manager.start, "stop": manager.stop, "restart": manager.restart}[verb]()
        await manager.wait(
            lambda now: (
                now.state == "stopped"
                if verb == "stop"
                else now.state == "serving" and (verb == "start" or now.invocation != before)
            ),
            20,
        )

    async def then_stop(failure: Exception | None) -> None:
        await to("stop", ops)

    async def then_start(failure: Exception | None) -> None:
        await served.wait(lambda now: now.state in ("serving", "stopped"), 20)  # it asked, or it did not
        await to("start", ops)

    async def still_there(failure: Exception | None) -> None:
        await served.wait(lambda now: now.state == "serving", 20)

    await to("stop", ops)
    assert await at_every_step(scissors, proxied, lambda connection: to("start", connection), then_stop, 5) >= 3
    await to("start", ops)
    assert await at_every_step(scissors, proxied, lambda connection: to("stop", connection), then_start, 4) >= 2
    assert await at_every_step(scissors, proxied, lambda connection: to("restart", connection), still_there, 5) >= 3


async def test_a_settings_change(ops: Connection, served: ServiceManager, scissors: Scissors, proxied: Target) -> None:
    """Wherever it is cut: not begun and nothing changed, or seen through by the box alone and known afterwards."""
    layout, site = served.layout, Site(ops, served, limits=LIMITS)
    ends: list[str] = []
    page = 16

    async def change(connection: Connection) -> None:
        nonlocal page, request_id
        mine = Site(connection, manager_for(connection, layout), limits=LIMITS)
        request_id, page = new_request_id(), 64 if page == 16 else 16
        planned = await plan(mine, {"page_size": str(page)})
        async for item in apply(mine, planned, request_id=request_id):
            if isinstance(item, Outcome):
                ends.append(item.status)

    async def whole(failure: Exception | None) -> None:
        nonlocal page
        *_, there = [item async for item in follow(site, request_id)]
        assert isinstance(there, Outcome)
        text = (await ops.read(layout.settings)).decode()
        if there.status == "confirmed":
            assert f"page_size = {page}" in text
        else:
            assert (there.status, failure is not None or ends[-1] == "unknown") == ("unknown", True)
            page = 64 if page == 16 else 16  # as it was
            assert f"page_size = {page}" in text
        assert (await served.state()).state == "serving"

    request_id = ""
    assert await at_every_step(scissors, proxied, change, whole, 14) >= 10
    assert set(ends) <= {"confirmed", "unknown"} and "confirmed" in ends


@pytest.mark.parametrize(("word", "end", "least"), [("confirm", "confirmed", 4), ("revert", "rolled_back", 4)])
async def test_a_word_on_a_change_that_waits(
    ops: Connection,
    served: ServiceManager,
    scissors: Scissors,
    proxied: Target,
    word: Literal["confirm", "revert"],
    end: str,
    least: int,
) -> None:
    """Wherever it is cut, the word was heard or it was not; given again, it is the word that holds."""
    layout, site = served.layout, Site(ops, served, limits=LIMITS)
    request_id, page = "", 16

    async def begin() -> None:
        nonlocal request_id, page
        request_id, page = new_request_id(), 64 if page == 16 else 16
        planned = await plan(site, {"page_size": str(page)})
        async for item in apply(site, planned, request_id=request_id, choices=Choices(confirm_s=60)):
            if isinstance(item, Phase) and item.name == "waiting":
                return

    async def speak(connection: Connection) -> None:
        mine = Site(connection, manager_for(connection, layout), limits=LIMITS)
        found = await waiting_change(mine)
        assert found == request_id
        await say(mine, found, word)
        *_, outcome = [item async for item in follow(mine, found)]
        assert isinstance(outcome, Outcome) and outcome.status in (end, "unknown")

    async def holds(failure: Exception | None) -> None:
        nonlocal page
        assert await say(site, request_id, word)  # the same word again is the word that holds
        *_, outcome = [item async for item in follow(site, request_id)]
        assert isinstance(outcome, Outcome) and outcome.status == end
        page = page if word == "confirm" else 64 if page == 16 else 16
        assert f"page_size = {page}" in (await ops.read(layout.settings)).decode()
        await begin()

    await begin()
    assert await at_every_step(scissors, proxied, speak, holds, 6) >= least
    assert await say(site, request_id, "revert")
    *_, last = [item async for item in follow(site, request_id)]
    assert isinstance(last, Outcome) and last.status == "rolled_back"


async def test_install_and_uninstall(
    box: Box, ops: Connection, scissors: Scissors, proxied: Target, small_release: None
) -> None:
    layout = layout_for("user", ops.home, DEFAULT_UNIT)
    direct = manager_for(ops, layout)
    port = free_port()

    async def put(connection: Connection) -> None:
        async for _ in install(connection, manager_for(connection, layout), request_for(box, port)):
            pass

    async def take(connection: Connection) -> None:
        async for _ in uninstall(connection, manager_for(connection, layout)):
            pass

    cuts = 0

    async def none_or_whole(failure: Exception | None) -> None:
        """`current` leads to a complete release, or there is none; a second try, over whatever was left, makes it whole.
        (The second try is made after every third cut: it takes as long as all else together.)"""
        nonlocal cuts
        cuts += 1
        if await ops.exists(layout.current):
            assert await ops.exists(f"{layout.current}/release.json")
        if cuts % 3 == 0 or failure is None:
            await put(ops)
            assert (await direct.state()).state == "stopped"
            assert await ops.exists(f"{layout.current}/release.json")
            assert box.run(["find", "/home/ops", "-name", "*.part"]).stdout == b""
        box.run(["rm", "-rf", layout.share, layout.config, layout.state, layout.unit_file])

    async def gone(failure: Exception | None) -> None:
        await take(ops)
        assert box.run(["find", layout.share, layout.config, layout.state], check=False).stdout == b""
        assert (await direct.state()).state == "not-installed"
        box.run(["cp", "-a", "/root/kept/.", "/home/ops"])
        await ops.run(["systemctl", "--user", "daemon-reload"])

    assert await at_every_step(scissors, proxied, put, none_or_whole, stride=2) >= 10
    await put(ops)
    box.run(["cp", "-a", "/home/ops", "/root/kept"])
    assert await at_every_step(scissors, proxied, take, gone) >= 5
    box.run(["rm", "-rf", "/root/kept"])
    await take(ops)
    box.run(["find", "/home/ops/.config", "/home/ops/.local", "-depth", "-type", "d", "-empty", "-delete"], check=False)
