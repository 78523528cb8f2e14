"""A console opened on a recorded host, and how tests look at it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.fleet import Fleet
from console.snapshot import Snapshot
from console.tui.app import ConsoleApp
from tests.tui.recorded import RecordedHost, snapshot, write_playbooks

DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs, logs and exports of a test are its own; the folder that they lie in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ddtree"


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    """A recorded host with three playbooks, one of them broken."""
    return RecordedHost(catalogue=write_playbooks(tmp_path / "playbooks"))


@asynccontextmanager
async def opened(
    host: RecordedHost,
    size: tuple[int, int] = (120, 40),
    *,
    first: Snapshot | None = None,
    fleet: Fleet | None = None,
    **options: Any,
) -> AsyncIterator[Pilot[None]]:
    """The console on `host`, its first Snapshot shown."""
    app = ConsoleApp(host, fleet or Fleet((), (), nobody), **options)
    async with app.run_test(size=size) as pilot:
        shown = first or snapshot(time.monotonic(), wall_s=time.time())
        host.push(shown)
        await until(pilot, lambda: app.session.snapshot is shown)
        await settled(pilot)
        yield pilot


async def nobody(name: str) -> RecordedHost:
    """There is no other host."""
    raise AssertionError(name)


async def settled(pilot: Pilot[None]) -> None:
    """Everything known is on screen: painted, and what the painting brought (new sizes, new rows) painted as well."""
    console_of(pilot)._paint()
    deadline = time.monotonic() + DEADLINE_S
    before: list[str] | None = None
    while (now := lines(pilot)) != before and time.monotonic() < deadline:
        before = now
        await pilot.pause()


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Wait until `condition` holds and the screen has settled; fails after a deadline that a busy machine still makes."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to that:\n" + "\n".join(lines(pilot)))
        await pilot.pause(0.02)
    await settled(pilot)


def console_of(pilot: Pilot[None]) -> ConsoleApp:
    """The app, as what it is."""
    assert isinstance(pilot.app, ConsoleApp)
    return pilot.app


def lines(pilot: Pilot[None]) -> list[str]:
    """The rows of the screen in front, as text."""
    return [strip.text for strip in pilot.app.screen._compositor.render_strips()]


def text(pilot: Pilot[None]) -> str:
    """The whole screen in front, as text."""
    return "\n".join(lines(pilot))
