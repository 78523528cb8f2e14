"""Read-only on a real machine: every verb, key and palette entry, and not one command that changes the box."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from box_machine import Box, free_port
from fake_service import install_the_fake

from console.actions import VERBS
from console.box.connection import Connection
from console.box.services import ServiceManager
from console.box.uninstall import uninstall
from console.errors import ExitCode, OperatorError
from console.fleet import Fleet
from console.host import Host, open_host
from console.tui.app import ConsoleApp
from console.tui.keys import EVERYWHERE, KEYS, SCREENS, palette_entries
from console.verbs.verb import Call, Session, Verb
from console.verbs.words import Style

pytestmark = pytest.mark.box
STATE = "/home/ops/.local/state/ddtree"
LOOKING: tuple[tuple[str, ...], ...] = (
    ("systemctl", "show"),
    ("systemctl", "is-enabled"),
    ("systemctl", "cat"),
    ("systemd-analyze", "cat-config"),
    ("journalctl",),
    ("sh", "-c"),
    ("stat",),
    ("test",),
    ("id",),
    ("date", "+%s.%N"),
    ("-m", "engine", "host"),
    ("-", "--packages"),
    ("-", "--state", STATE, "history"),
)
"""How the commands of a console that only looks begin."""


@pytest.fixture
async def served(box: Box, ops: Connection, operators_own: None) -> AsyncIterator[ServiceManager]:
    manager = await install_the_fake(box, ops, free_port())
    yield manager
    async for _ in uninstall(ops, manager):
        pass


@pytest.fixture
def asked(served: ServiceManager, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Every command that goes to the box from now on, and every file that is written there."""
    commands: list[tuple[str, ...]] = []
    opened = Connection._open

    async def recorded(self: Connection, ssh: Any, argv: Sequence[str], **more: Any) -> Any:
        commands.append(tuple(argv))
        return await opened(self, ssh, argv, **more)

    async def written(self: Connection, *args: Any, **more: Any) -> None:
        commands.append(("upload", str(args[1])))

    monkeypatch.setattr(Connection, "_open", recorded)
    monkeypatch.setattr(Connection, "upload", written)
    monkeypatch.setattr(Connection, "upload_tree", written)
    return commands


def verb_call(verb: Verb, said: list[str], **more: Any) -> Call:
    """The verb on the host `box` with something in each of its required arguments, read-only."""

    async def no_console(*_: object) -> ExitCode:
        raise AssertionError("no console is opened here")

    values: dict[str, Any] = {"host": "box", "playbook": "quick_probe", "run": "20260101T000000-x", "yes": True, **more}
    arguments = {one.name: values.get(one.name, one.default) for one in verb.arguments}
    session = Session(lambda _, text: said.append(text), Style(False), no_console, read_only=True)
    return Call(verb, arguments, session)


def changing(commands: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those of them that are not known to do nothing but look."""
    return [argv for argv in commands if not any(words(argv)[: len(one)] == one for one in LOOKING)]


def words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command without variables, without folders, and without the interpreter that is given its program."""
    at = 1 if argv[0] == "env" else 0
    while "=" in argv[at] or argv[at] == "-C":
        at += 2 if argv[at] == "-C" else 1
    rest = [word for word in (argv[at].rpartition("/")[2], *argv[at + 1 :]) if word != "--user"]
    return tuple(rest[1:] if rest[0].startswith("python") else rest)


async def test_no_verb_changes_the_box(ops: Connection, served: ServiceManager, asked: list[tuple[str, ...]]) -> None:
    before = (await served.state()).invocation, await ops.read(served.layout.settings)
    asked.clear()
    for name, verb in VERBS.items():
        if name == "demo" or not any(argument.name == "host" for argument in verb.arguments):
            continue  # nothing of it reaches a box
        changed: dict[str, Any] = {"set": {"page_size": "64"}}
        for more in ({}, changed) if name in ("start", "restart", "install") else ({},):
            said: list[str] = []
            if verb.changes_box:
                with pytest.raises(OperatorError, match="read-only"):
                    await verb.run(verb_call(verb, said, **more))
            elif name == "attach":
                with pytest.raises(OperatorError):  # there is no such run
                    await verb.run(verb_call(verb, said))
            else:
                assert await verb.run(verb_call(verb, said, **more)) in (ExitCode.DONE, ExitCode.CHECK_SAYS_NO), name
    assert sorted(set(changing(asked))) == []
    assert ((await served.state()).invocation, await ops.read(served.layout.settings)) == before


async def test_no_key_and_no_palette_entry_changes_the_box(
    ops: Connection, served: ServiceManager, asked: list[tuple[str, ...]]
) -> None:
    before = (await served.state()).invocation, await ops.read(served.layout.settings)

    async def nobody(name: str) -> Host:
        raise AssertionError(name)

    host = await open_host("box", read_only=True)
    app = ConsoleApp(host, Fleet((), (), nobody), read_only=True)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            asked.clear()
            for name, screen in SCREENS.items():
                for key in (*KEYS[name], *EVERYWHERE):
                    if key.action == "app.quit":
                        continue
                    await pilot.press("escape", screen, key.key)
                    await pilot.pause(0.05)
                    await pilot.press("right", "enter", "escape", "escape")  # a yes, if it should have asked
            for _, _, where, action in palette_entries():
                await pilot.press("escape", "escape")
                await app._do(where, action)
                await pilot.pause(0.05)
            await pilot.press("escape", "escape", "1")
    finally:
        await host.close()

    assert sorted(set(changing(asked))) == []
    assert ((await served.state()).invocation, await ops.read(served.layout.settings)) == before
