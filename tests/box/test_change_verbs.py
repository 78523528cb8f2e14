"""`ddtree restart --set` on a real machine: what is asked, what is shown, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from box_machine import Box, free_port
from fake_service import install_the_fake

from console.actions import VERBS
from console.box.connection import Connection
from console.box.services import ServiceManager
from console.box.uninstall import uninstall
from console.errors import ExitCode, UsageError
from console.verbs.verb import Call, Session
from console.verbs.words import Style

pytestmark = pytest.mark.box


@pytest.fixture
async def served(box: Box, ops: Connection, operators_own: None) -> AsyncIterator[ServiceManager]:
    """The fake engine serving on the host called `box` of an operator's own configuration."""
    manager = await install_the_fake(box, ops, free_port())
    yield manager
    async for _ in uninstall(ops, manager):
        pass


async def restart(changes: dict[str, str], answers: dict[str, str] | None, **flags: Any) -> tuple[ExitCode, str]:
    """The verb with an operator who answers by the question's first words; its exit status and all it said."""
    said: list[str] = []

    def say(_: Mapping[str, Any], text: str) -> None:
        said.append(text)

    async def ask(question: str) -> str:
        assert answers is not None
        said.append(question)
        return next(answer for words, answer in answers.items() if question.startswith(words))

    async def no_console(*_: object) -> ExitCode:
        raise AssertionError("no console is opened here")

    session = Session(say, Style(False), no_console, None if answers is None else ask)
    arguments = {"host": "box", "set": changes, "dry-run": False, "yes": False, **flags}
    status = await VERBS["restart"].run(Call(VERBS["restart"], arguments, session))
    return status, "\n".join(said)


async def test_a_process_in_the_way_is_shown_and_ended_only_after_a_yes(
    box: Box, ops: Connection, served: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fake engine checks no files: the settings are read by nobody before the start.
    monkeypatch.setattr("console.deployment.bundled.Bundled.check_argv", lambda self, python: [])
    argv = [str(box.python), "-c", "import time; time.sleep(600)", "--config", served.layout.settings]
    await ops.run(["systemd-run", "--user", "--quiet", "--unit=stray", *argv])
    status, said = await restart({"page_size": "64"}, None, yes=True)
    assert status is ExitCode.USAGE  # refused before anything happened
    assert "in the way" in said and "it has to be ended first" in said
    status, said = await restart({"page_size": "64"}, {"Apply?": "y", "End what is in the way?": "y"})
    assert status is ExitCode.DONE, said
    assert "End what is in the way? [y/N]" in said and "confirmed" in said
    assert (await ops.run(["systemctl", "--user", "is-active", "stray"])).stdout.strip() != b"active"


async def test_a_no_changes_nothing(ops: Connection, served: ServiceManager) -> None:
    before = (await served.state()).invocation
    status, said = await restart({"page_size": "64"}, {"Apply?": "n"})
    assert status is ExitCode.INTERRUPTED and "page_size" in said
    assert (await served.state()).invocation == before


async def test_the_difference_of_two_generations_is_told_either_way_round(served: ServiceManager) -> None:
    status, said = await restart({"page_size": "64"}, {"Apply?": "y"})
    assert status is ExitCode.DONE, said
    told: list[tuple[Mapping[str, Any], str]] = []

    async def no_console(*_: object) -> ExitCode:
        raise AssertionError("no console is opened here")

    async def history(old: int, new: int) -> ExitCode:
        session = Session(lambda data, text: told.append((data, text)), Style(False), no_console)
        return await VERBS["history"].run(Call(VERBS["history"], {"host": "box", "diff": (old, new)}, session))

    assert await history(0, 1) is ExitCode.DONE and await history(1, 0) is ExitCode.DONE
    (forth, words), (back, _) = told
    (one,) = forth["differences"]
    assert (forth["host"], forth["from"], forth["to"]) == ("box", 0, 1)
    assert one["name"] == "page_size" and one["new"] == 64 and one["old"] != 64
    assert back["differences"] == [{"name": "page_size", "old": 64, "new": one["old"]}]
    assert words.startswith("generation 0 → 1\n") and "page_size" in words
    assert await history(1, 1) is ExitCode.DONE
    assert told[-1][0]["differences"] == [] and "hold the same settings" in told[-1][1]
    with pytest.raises(UsageError, match="there are 0 to 1"):
        await history(0, 7)


@pytest.mark.parametrize(
    ("word", "status", "first"),
    [("confirm", ExitCode.DONE, ExitCode.DONE), ("revert", ExitCode.DONE, ExitCode.ROLLED_BACK)],
)
async def test_a_change_waits_for_the_word_of_another_command(
    served: ServiceManager, word: str, status: ExitCode, first: ExitCode
) -> None:
    waits = asyncio.Event()
    told: list[Mapping[str, Any]] = []
    texts: list[str] = []

    def say(data: Mapping[str, Any], text: str) -> None:
        told.append(data)
        texts.append(text)
        if "ddtree confirm box" in text:
            waits.set()

    async def no(_: str) -> str:
        return "n"

    async def no_console(*_: object) -> ExitCode:
        raise AssertionError("no console is opened here")

    async def verb(name: str, **more: Any) -> ExitCode:
        return await VERBS[name].run(Call(VERBS[name], {"host": "box", **more}, Session(say, Style(False), no_console)))

    with pytest.raises(UsageError, match="no change waits"):
        await verb(word)
    with pytest.raises(UsageError, match="needs a change"):
        await verb("restart", yes=True, **{"confirm-within": 60})
    change = asyncio.create_task(verb("restart", set={"page_size": "64"}, yes=True, **{"confirm-within": 60}))
    await asyncio.wait_for(waits.wait(), 30)
    stop = Call(VERBS["stop"], {"host": "box", "yes": False}, Session(say, Style(False), no_console, no))
    assert await VERBS["stop"].run(stop) is ExitCode.INTERRUPTED  # told what would become of it, nobody wants it
    assert any("waits for a word: after a stop now it goes back" in text for text in texts)
    assert await verb(word) is status
    assert await change is first
    ends = [data["status"] for data in told if "status" in data]
    assert ends == ["confirmed" if word == "confirm" else "rolled_back"] * 2


class Scripted:
    """The verbs as a script calls them, with --json: what they print, one object a line, and what they say beside it."""

    def __init__(self) -> None:
        self.printed: list[Mapping[str, Any]] = []
        self.beside: list[str] = []
        self.urged = asyncio.Event()

    async def __call__(self, name: str, **arguments: Any) -> ExitCode:
        async def no_console(*_: object) -> ExitCode:
            raise AssertionError("no console is opened here")

        def say_beside(text: str) -> None:
            self.beside.append(text)
            self.urged.set()

        session = Session(
            lambda data, _: self.printed.append(data), Style(False), no_console, as_json=True, say_beside=say_beside
        )
        return await VERBS[name].run(Call(VERBS[name], {"host": "box", **arguments}, session))


async def last_request(ops: Connection, served: ServiceManager) -> str:
    """The id of the newest change on the box."""
    return str(json.loads(await ops.read(f"{served.layout.state}/apply.json"))["request_id"])


async def test_a_script_whose_change_nobody_confirms_is_told_beside_its_output_and_by_exit_20(
    ops: Connection, served: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Scripted()
    assert await script("restart", set={"page_size": "64"}, yes=True, **{"confirm-within": 1}) is ExitCode.ROLLED_BACK
    (outcome,) = script.printed  # one object, whatever happens on the way
    assert (outcome["status"], outcome["reason"]) == ("rolled_back", "nobody confirmed it within 1 s")
    names = list(dict.fromkeys(phase["name"] for phase in outcome["phases"]))
    assert names[names.index("soak") :] == ["soak", "waiting", "rolling_back", "rolled_back"]
    assert set(outcome["phases"][0]) == {"name", "elapsed_s", "text"}
    assert script.beside == ["1 s to confirm: keep it: ddtree confirm box   take it back: ddtree revert box"]
    for word in ("confirm", "revert"):
        with pytest.raises(UsageError, match="no change waits for a word"):
            await script(word)
    request_id = await last_request(ops, served)

    async def a_moment_ago(_: object) -> str:
        return request_id

    monkeypatch.setattr("console.deployment.reconfigure.waiting_change", a_moment_ago)  # too late by a hair
    assert await script("confirm") is ExitCode.ROLLED_BACK
    assert script.printed[-1]["reason"] == "nobody confirmed it within 1 s"
    assert await script("revert") is ExitCode.DONE  # it is back, which is what was asked for


async def test_a_second_word_is_too_late_and_changes_nothing(
    ops: Connection, served: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Scripted()
    change = asyncio.create_task(script("restart", set={"page_size": "64"}, yes=True, **{"confirm-within": 60}))
    await asyncio.wait_for(script.urged.wait(), 30)
    assert script.printed == []
    assert await script("confirm") is ExitCode.DONE
    assert await change is ExitCode.DONE
    assert [(one["status"], one["generation"]) for one in script.printed] == [("confirmed", 1)] * 2
    for word in ("confirm", "revert"):
        with pytest.raises(UsageError, match="no change waits for a word"):
            await script(word)
    request_id = await last_request(ops, served)

    async def a_moment_ago(_: object) -> str:
        return request_id

    monkeypatch.setattr("console.deployment.reconfigure.waiting_change", a_moment_ago)
    assert await script("confirm") is ExitCode.DONE
    assert await script("revert") is ExitCode.FAILED
    assert script.printed[-1]["status"] == "confirmed"
    assert b"page_size = 64" in await ops.read(served.layout.settings)


async def test_status_check_exits_3_while_an_alarm_sounds(served: ServiceManager) -> None:
    script = Scripted()
    assert await script("status", check=True) is ExitCode.DONE
    assert script.printed[-1]["alarms"] == []
    assert await script("stop", yes=True) is ExitCode.DONE
    assert await script("status", check=True) is ExitCode.CHECK_SAYS_NO
    assert [alarm["code"] for alarm in script.printed[-1]["alarms"]] == ["not_serving"]
    assert await script("status") is ExitCode.DONE  # nobody asked for a judgement


async def test_a_restart_says_first_what_it_ends(ops: Connection, served: ServiceManager) -> None:
    before = (await served.state()).invocation
    for running, told in (
        ("0", "no request is in flight"),
        ("1", "1 request in flight ends"),
        ("3", "3 requests in flight end"),
    ):
        await ops.upload(running.encode(), f"{served.layout.config}/running")  # what the fake engine says
        status, said = await restart({}, {"Restart": "n"})
        assert status is ExitCode.INTERRUPTED
        assert said == f"{told}\nRestart ddtree-engine.service on box? [y/N] "
    assert (await served.state()).invocation == before
