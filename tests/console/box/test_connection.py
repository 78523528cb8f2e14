"""The connection's behaviour when boxes and networks behave badly, against a server that can be made to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
from embedded_box import EmbeddedBox

from console.box import link as link_module
from console.box.connection import connect
from console.box.errors import LinkError, LinkLost, NoSuchFile, TransferError
from console.box.target import Target
from console.box.timing import Timing

QUICK = Timing(first_retry_s=0.01, last_retry_s=0.05, heartbeat_s=0.05, open_s=0.3)


async def until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - anything may make it true
            await asyncio.sleep(0.01)


async def test_the_environment_is_given_inline_and_words_stay_words(embedded: EmbeddedBox, target: Target) -> None:
    async with await connect(target) as connection:
        done = await connection.run(["sh", "-c", 'printf "%s|%s" "$LC_ALL" "$1"', "x", "a b;$(c)"])
    assert done.stdout == b"C.UTF-8|a b;$(c)"
    assert embedded.commands[-1].startswith("exec env LC_ALL=C.UTF-8 SYSTEMD_COLORS=0 SYSTEMD_PAGER=cat sh -c ")


async def test_the_runtime_folder_is_told_to_user_commands(embedded: EmbeddedBox, target: Target) -> None:
    async with await connect(target) as connection:
        await connection.run(["true", "--user"])
        assert f" XDG_RUNTIME_DIR=/run/user/{connection.uid} true --user" in embedded.commands[-1]


async def test_a_greeting_of_the_login_shell_does_not_hide_the_facts(embedded: EmbeddedBox, target: Target) -> None:
    embedded.greeting = b"Welcome to the cluster!\n"
    async with await connect(target) as connection:
        assert connection.home == str(embedded.folder)
        assert connection.facts.greeting == b"Welcome to the cluster!\n"


async def test_a_stream_gives_whole_lines_only_and_its_exit_status(target: Target) -> None:
    async with await connect(target) as connection:
        async with connection.stream(["sh", "-c", "echo one; echo two; echo why >&2; printf part; exit 4"]) as stream:
            lines = [line async for line in stream]
        assert (lines, stream.exit_status, stream.stderr_tail) == ([b"one", b"two"], 4, b"why\n")


async def test_a_stream_over_a_link_that_breaks_raises_and_has_no_status(embedded: EmbeddedBox, target: Target) -> None:
    async with await connect(target) as connection:
        with pytest.raises(LinkLost):
            async with connection.stream(["sh", "-c", "echo one; printf part; exec sleep 30"]) as stream:
                async for line in stream:
                    assert line == b"one"
                    embedded.drop_all()
        assert stream.exit_status is None


async def test_a_channel_that_is_never_answered_is_a_lost_link_and_not_a_freeze(
    embedded: EmbeddedBox, target: Target
) -> None:
    await embedded.stop()
    embedded.deaf = True
    await embedded.listen(target.port)
    before = time.monotonic()
    with pytest.raises(LinkLost, match="no answer within"):
        await connect(target, timing=QUICK)
    assert time.monotonic() - before < 3


async def test_nothing_is_run_while_the_link_is_down(embedded: EmbeddedBox, target: Target) -> None:
    async with await connect(target, timing=replace(QUICK, first_retry_s=60, last_retry_s=60)) as connection:
        embedded.drop_all()
        await until(lambda: connection.state.name == "RETRY")
        assert connection.state.retry_at_s is not None and connection.state.reason
        commands = len(embedded.commands)
        with pytest.raises(LinkError, match="not connected"):
            await connection.run(["true"])
        assert len(embedded.commands) == commands
        connection.reconnect()  # at once, although the next attempt was a minute away
        await until(lambda: connection.state.name == "LIVE")


async def test_a_box_that_is_away_is_tried_until_it_is_back(embedded: EmbeddedBox, target: Target) -> None:
    port = target.port
    await embedded.stop()
    async with await connect(target, timing=QUICK, keep_trying=True) as connection:
        await until(lambda: connection.state.name == "RETRY")
        await embedded.listen(port)
        await until(lambda: connection.state.name == "LIVE")
        assert (await connection.run(["true"])).exit_status == 0


async def test_a_host_key_that_changes_under_a_reconnect_stops_the_trying(
    embedded: EmbeddedBox, target: Target
) -> None:
    async with await connect(target, timing=QUICK) as connection:
        await embedded.stop()
        logins = len(embedded.logins)
        embedded.host_keys = [asyncssh.generate_private_key("ssh-ed25519")]
        await embedded.listen(target.port)
        await until(lambda: "HOST KEY CHANGED" in (connection.state.reason or ""))
        assert connection.state.name == "LOST"
        await asyncio.sleep(0.2)  # four times the longest pause
        assert connection.state.name == "LOST" and len(embedded.logins) == logins


async def test_a_machine_that_slept_reconnects_once(
    embedded: EmbeddedBox, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:  # the wall clock, forty minutes ahead once `jumped`
        jumped = False
        monotonic = staticmethod(time.monotonic)

        def time(self) -> float:
            return time.time() + (2400.0 if self.jumped else 0.0)

    clock = Clock()
    monkeypatch.setattr(link_module, "time", clock)
    async with await connect(target, timing=QUICK) as connection:
        reasons: list[str | None] = []
        connection.on_state(lambda state: reasons.append(state.reason) if state.name == "LOST" else None)
        await asyncio.sleep(0.02)
        clock.jumped = True
        await until(lambda: len(embedded.logins) == 2 and connection.state.name == "LIVE")
        await asyncio.sleep(0.2)
        assert reasons == ["this machine was asleep"] and len(embedded.logins) == 2


async def test_closing_takes_no_time_even_when_the_box_is_silent(target: Target) -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    hanging = asyncio.create_task(connect(replace(target, port=silent.sockets[0].getsockname()[1])))
    await asyncio.sleep(0.1)
    before = time.monotonic()
    hanging.cancel()
    await asyncio.wait([hanging])
    assert time.monotonic() - before < 1 and hanging.cancelled()
    silent.close()


async def test_a_closed_connection_says_so(target: Target) -> None:
    connection = await connect(target)
    await connection.close()
    assert connection.state.name == "CLOSED"
    with pytest.raises(LinkError, match="CLOSED"):
        await connection.run(["true"])
    with pytest.raises(LinkError):
        await connection.link.wait_up()


async def test_an_upload_that_is_cut_leaves_the_old_file(embedded: EmbeddedBox, target: Target) -> None:
    path = embedded.folder / "settings.toml"
    async with await connect(target, timing=QUICK) as connection:
        await connection.upload(b"old", str(path))
        sending = asyncio.create_task(connection.upload(b"n" * 30_000_000, str(path)))
        await until(lambda: any(embedded.folder.glob(".settings.toml.*.part")))
        embedded.drop_all()
        with pytest.raises(LinkLost):
            await sending
    assert path.read_bytes() == b"old"


async def test_file_errors_are_told_by_path(embedded: EmbeddedBox, target: Target) -> None:
    async with await connect(target) as connection:
        with pytest.raises(NoSuchFile, match="absent"):
            await connection.read(str(embedded.folder / "absent"))
        with pytest.raises(NoSuchFile):
            await connection.upload(b"x", str(embedded.folder / "no/folder/file"))
        for name in ("../out", "/abs", "a//b", "a\nb"):
            with pytest.raises(TransferError, match="not a plain relative path"):
                await connection.upload_tree({name: b"x"}, str(embedded.folder / "tree"))
    assert list(embedded.folder.iterdir()) == []


async def test_a_forward_to_a_closed_port_does_not_break_the_link(target: Target) -> None:
    async with await connect(target) as connection:
        here = await connection.forward(9)
        reader, writer = await asyncio.open_connection("127.0.0.1", here)
        assert await reader.read() == b""
        writer.close()
        assert (await connection.run(["true"])).exit_status == 0


async def test_more_commands_than_slots_all_run(target: Target) -> None:
    async with await connect(target) as connection:
        done = await asyncio.gather(*(connection.run(["echo", str(number)]) for number in range(20)))
    assert [int(one.stdout) for one in done] == list(range(20))


async def test_a_callback_can_be_taken_back(embedded: EmbeddedBox, target: Target, tmp_path: Path) -> None:
    async with await connect(target, timing=QUICK) as connection:
        seen: list[str] = []
        stop = connection.on_state(lambda state: seen.append(state.name))
        stop()
        embedded.drop_all()
        await until(lambda: len(embedded.logins) == 2 and connection.state.name == "LIVE")
        assert seen == []
