"""The Service screen on a real machine: a settings change by keys alone, what is in its way, and the operator's word."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from box_machine import Box, free_port
from fake_service import install_the_fake
from textual.pilot import Pilot

from console.box.connection import Connection
from console.box.services import ServiceManager
from console.box.uninstall import uninstall
from console.fleet import Fleet
from console.host import Host, open_host
from console.tui.app import ConsoleApp
from console.tui.screens import apply as apply_dialog
from console.tui.screens.apply import ApplyScreen
from console.tui.screens.service import ServiceScreen
from tests.tui.conftest import settled

pytestmark = pytest.mark.box
DEADLINE_S = 60.0


@pytest.fixture
async def served(
    box: Box, ops: Connection, operators_own: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServiceManager]:
    # The fake engine checks no files: the settings are read by nobody before the start.
    monkeypatch.setattr("console.deployment.bundled.Bundled.check_argv", lambda self, python: [])
    manager = await install_the_fake(box, ops, free_port())
    yield manager
    async for _ in uninstall(ops, manager):
        pass


@asynccontextmanager
async def console(size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[None]]:
    """The console opened on the host `box`, its Service screen in front with the settings read."""

    async def nobody(name: str) -> Host:
        raise AssertionError(name)

    host = await open_host("box")
    app = ConsoleApp(host, Fleet((), (), nobody))
    try:
        async with app.run_test(size=size) as pilot:
            await pilot.press("2")
            await until(pilot, lambda: isinstance(app.screen, ServiceScreen) and app.screen._form.form.fields)
            yield pilot
    finally:
        await host.close()


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; a busy machine still makes the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to that:\n" + screen(pilot))
        await pilot.pause(0.05)
    await settled(pilot)


def screen(pilot: Pilot[None]) -> str:
    """What the operator sees."""
    return "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips())


async def ask_for(pilot: Pilot[None], name: str, value: str) -> None:
    """Type a value into its field and ask to apply it, as an operator does, until the question stands there."""
    service = pilot.app.screen
    assert isinstance(service, ServiceScreen)
    fields = [one.name for one in service._form.form.fields]
    await pilot.press(*["down"] * fields.index(name))
    await pilot.press("enter", *["backspace"] * 4, *value, "enter", "ctrl+s")
    await until(pilot, lambda: isinstance(pilot.app.screen, ApplyScreen))
    await pilot.pause()


async def test_without_a_word_the_box_goes_back_and_the_screen_says_so(
    served: ServiceManager, ops: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"after my word, 2 s": 2.0, "as soon as proven": None}
    monkeypatch.setattr(apply_dialog, "_KEEP_WORDS", words)
    before = await ops.read(served.layout.settings)
    async with console() as pilot:
        await ask_for(pilot, "page_size", "64")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "s left: c keeps the new settings, v reverts" in screen(pilot))
        await until(pilot, lambda: "Rolled back: the old settings serve again." in screen(pilot))
        assert "nobody confirmed it within 2 s" in screen(pilot)
    assert await ops.read(served.layout.settings) == before


async def test_a_stray_engine_is_named_and_ended_on_consent_and_a_key_keeps_the_change(
    box: Box, served: ServiceManager, ops: Connection
) -> None:
    argv = [str(box.python), "-c", "import time; time.sleep(600)", "--config", served.layout.settings]
    await ops.run(["systemd-run", "--user", "--quiet", "--unit=stray", *argv])
    async with console() as pilot:
        await ask_for(pilot, "page_size", "64")
        told = " ".join(" ".join(line[3:77].strip() for line in screen(pilot).splitlines()).split())
        assert "In the way: process" in told and " MB" in told
        await pilot.press("up", "enter")  # the first row of the form: the process is to be ended
        assert "end process" in screen(pilot)
        await pilot.press("tab", "tab", "enter")
        await until(pilot, lambda: "left: c keeps the new settings" in screen(pilot))
        await pilot.press("c")
        await until(pilot, lambda: "Confirmed: the new settings are in force." in screen(pilot))
    assert b"page_size = 64" in await ops.read(served.layout.settings)
    assert (await ops.run(["systemctl", "--user", "is-active", "stray"])).stdout.strip() != b"active"
    audit = (await ops.read(f"{served.layout.state}/audit.jsonl")).decode()
    assert '"ended_stray"' in audit and '"on_in_flight": "abort"' in audit


async def test_a_console_that_vanished_is_followed_by_another_that_takes_the_change_back(
    served: ServiceManager, ops: Connection
) -> None:
    before = await ops.read(served.layout.settings)
    await ops.upload(b"2", f"{served.layout.config}/running")  # what the fake engine says of requests in flight
    async with console() as pilot:
        await ask_for(pilot, "page_size", "64")
        assert "2 requests in flight will be cut off" in screen(pilot)
        await pilot.press("up", "enter")
        await until(pilot, lambda: "restarts once no request runs" in screen(pilot))
        await pilot.press("tab", "tab", "enter")
        await until(pilot, lambda: "2 requests run" in screen(pilot))
    await ops.upload(b"0", f"{served.layout.config}/running")
    async with console((200, 50)) as pilot:
        await until(pilot, lambda: "left: c keeps the new settings" in screen(pilot))
        await pilot.press("1")
        await until(pilot, lambda: "confirm 1m" in screen(pilot).splitlines()[0])
        await pilot.press("2", "v")
        await until(pilot, lambda: "Rolled back: the old settings serve again." in screen(pilot))
        assert "the operator took it back" in screen(pilot)
    assert await ops.read(served.layout.settings) == before
    audit = (await ops.read(f"{served.layout.state}/audit.jsonl")).decode()
    assert '"in_flight": 2, "on_in_flight": "wait"' in audit
