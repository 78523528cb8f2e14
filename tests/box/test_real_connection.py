"""The console's connection against a real sshd."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from box_machine import Box
from link_proxy import LinkProxy, eventually

from console.box.connection import Connection, connect
from console.box.errors import CommandTimedOut, LinkLost, SessionRefused
from console.box.stream import Stream
from console.box.target import Target
from console.box.timing import Timing

pytestmark = pytest.mark.box

QUICK = Timing(first_retry_s=0.05, last_retry_s=0.2, heartbeat_s=0.2, slow_s=0.5, keepalive_s=1.0, keepalive_count=1)


async def test_the_login_tells_home_uid_runtime_folder_and_systemd_version(box: Box, ops: Connection) -> None:
    assert ops.home == "/home/ops"
    assert ops.uid == int(box.run(["id", "-u", "ops"]).stdout)
    assert ops.facts.has_runtime_dir
    assert ops.facts.systemd_version is not None and ops.facts.systemd_version >= 247
    assert ops.facts.greeting == b""


async def test_the_interpreter_and_checkout_of_the_tests_run_for_an_ordinary_user(box: Box, ops: Connection) -> None:
    code = "import asyncssh, console.box.values as v; print(v.__file__)"
    done = await ops.run(["env", "-C", str(box.checkout), str(box.python), "-c", code])
    assert done.exit_status == 0, done.stderr
    assert done.stdout.decode().strip() == str(box.checkout / "console/box/values.py")


async def test_a_command_gives_output_bytes_and_exit_status_and_never_meets_a_shell(ops: Connection) -> None:
    awkward = "$HOME; `id` 'x' \"y\" \\ *\n&"
    done = await ops.run(["printf", "%s", awkward])
    assert (done.exit_status, done.stdout) == (0, awkward.encode())
    failed = await ops.run(["sh", "-c", "printf '\\377\\000' ; echo no >&2; exit 7"])
    assert (failed.exit_status, failed.stdout, failed.stderr) == (7, b"\xff\0", b"no\n")


async def test_a_signal_is_not_an_exit_status(ops: Connection) -> None:
    done = await ops.run(["sh", "-c", "kill -KILL $$"])
    assert (done.exit_status, done.signal) == (None, "KILL")


async def test_a_command_that_takes_too_long_is_told_to_stop(box: Box, ops: Connection) -> None:
    marker = f"{ops.home}/stopped"
    script = f"trap '' PIPE; trap 'touch {marker}; exit' TERM; while :; do sleep 0.05; done"
    with pytest.raises(CommandTimedOut, match=r"sh did not finish within 0\.3 s"):
        await ops.run(["sh", "-c", script], timeout_s=0.3)
    await eventually(lambda: box.run(["test", "-e", marker], check=False).returncode == 0)


async def test_leaving_a_stream_leaves_nothing_running(box: Box, ops: Connection) -> None:
    async with ops.stream(["sh", "-c", "echo up; exec sleep 4711"]) as stream:
        assert [line async for line in _first(stream)] == [b"up"]
    await eventually(lambda: box.run(["pgrep", "-f", "sleep 4711"], check=False).returncode == 1)


async def test_a_session_too_many_is_refused_by_name_and_breaks_nothing(ops: Connection) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(SessionRefused, match="MaxSessions"):
            for _ in range(11):  # sshd grants ten
                await stack.enter_async_context(ops.stream(["sleep", "60"]))

    async def granted() -> bool:  # sshd frees a session once its command has ended
        try:
            return (await ops.run(["true"])).exit_status == 0
        except SessionRefused:
            return False

    await eventually(granted)


async def test_systemctl_user_works_over_the_connection(ops: Connection) -> None:
    done = await ops.run(["systemctl", "--user", "show", "-P", "Version"])
    assert done.exit_status == 0, done.stderr


async def test_an_upload_is_atomic_private_and_replaces(box: Box, ops: Connection) -> None:
    path = f"{ops.home}/settings.toml"
    await ops.upload(b"old", path)
    first_inode = box.run(["stat", "-c", "%i", path]).stdout
    await ops.upload(b"new\n" * 1000, path)
    assert await ops.read(path) == b"new\n" * 1000
    assert box.run(["stat", "-c", "%i", path]).stdout != first_inode  # another file took the name, none was rewritten
    found = box.run(["stat", "-c", "%a %U %s", path]).stdout.decode().split()
    assert found == ["600", "ops", "4000"]
    assert box.run(["find", ops.home, "-name", "*.part"]).stdout == b""


async def test_a_release_tree_arrives_whole_with_modes(box: Box, ops: Connection) -> None:
    files = {f"engine/part{number}.py": f"print({number})\n".encode() for number in range(100)}
    files["engine/drafters/model.safetensors"] = bytes(range(256)) * 4096 * 18  # 18 MiB
    files["bin/run"] = b"#!/bin/sh\necho ran\n"
    folder = f"{ops.home}/releases/1.0-abc"
    await ops.run(["mkdir", "-p", f"{ops.home}/releases"])
    await ops.upload_tree(files, folder, executable=frozenset({"bin/run"}))
    assert (await ops.run([f"{folder}/bin/run"])).stdout == b"ran\n"
    modes = {
        line.split()[0]: stat.S_IMODE(int(line.split()[1], 8))
        for line in box.run(["find", folder, "-printf", "%P %m\n"]).stdout.decode().splitlines()
        if len(line.split()) == 2
    }
    assert (modes["engine"], modes["engine/part7.py"], modes["bin/run"]) == (0o700, 0o600, 0o700)
    assert len(modes) == len(files) + 3
    await ops.upload_tree({"engine/part7.py": b"print('seven')\n"}, folder)
    assert await ops.read(f"{folder}/engine/part7.py") == b"print('seven')\n"
    assert await ops.read(f"{folder}/engine/part8.py") == b"print(8)\n"
    assert box.run(["find", f"{ops.home}/releases", "-name", "*.part"]).stdout == b""


async def test_an_sftp_server_that_was_killed_is_replaced(box: Box, ops: Connection) -> None:
    path = f"{ops.home}/twice"
    await ops.upload(b"one", path)
    box.run(["pkill", "-KILL", "-u", "ops", "sftp-server"])

    async def works() -> bool:
        try:
            await ops.upload(b"two", path)
        except LinkLost:
            return False
        return True

    await eventually(works)
    assert await ops.read(path) == b"two" and ops.state.name == "LIVE"


async def test_reading_by_offset_gives_only_what_is_new(ops: Connection) -> None:
    path = f"{ops.home}/events.jsonl"
    await ops.upload(b"one\ntwo\n", path)
    assert await ops.read(path, 4) == b"two\n"
    assert await ops.read(path, 8) == b""
    assert await ops.read(path, 0, 3) == b"one"
    assert await ops.exists(path) and not await ops.exists(f"{path}.not")


async def test_a_cut_link_comes_back_with_its_forward_and_an_unfinished_command_is_unknown(
    proxy: LinkProxy, proxied: Target
) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)  # the box shares this machine's loopback
    there = server.sockets[0].getsockname()[1]
    async with await connect(proxied, timing=QUICK) as connection:
        here = await connection.forward(there)
        assert await _fetch(here) == b"hello"
        states: list[str] = []  # without repeats: each heartbeat tells LIVE again
        connection.on_state(lambda state: states.append(state.name) if states[-1:] != [state.name] else None)
        sleeping = asyncio.create_task(connection.run(["sleep", "60"], timeout_s=60))
        await eventually(lambda: _is_running(connection, "sleep"))
        await proxy.cut()
        done = await sleeping
        assert (done.exit_status, done.signal) == (None, None)
        await proxy.open()
        await connection.link.wait_up()
        assert (await connection.run(["echo", "back"])).stdout == b"back\n"
        assert await connection.forward(there) == here
        assert await _fetch(here) == b"hello"
        after = states[states.index("LOST") :]
        assert after[:3] == ["LOST", "RETRY", "CONNECTING"] and after[-1] == "LIVE"
    server.close()


async def test_a_frozen_link_turns_degraded_and_is_replaced_on_request(proxy: LinkProxy, proxied: Target) -> None:
    slow = replace(QUICK, keepalive_s=30.0)
    async with await connect(proxied, timing=slow) as connection:
        degraded = asyncio.Event()
        connection.on_state(lambda state: degraded.set() if state.name == "DEGRADED" else None)
        proxy.freeze()
        async with asyncio.timeout(5):
            await degraded.wait()
        accepted = proxy.accepted
        connection.reconnect()
        proxy.thaw()
        await eventually(lambda: proxy.accepted > accepted and connection.state.name == "LIVE")
        assert (await connection.run(["true"])).exit_status == 0


async def test_a_dead_link_is_found_by_the_keepalive(proxy: LinkProxy, proxied: Target) -> None:
    async with await connect(proxied, timing=replace(QUICK, keepalive_s=0.3, open_s=0.5)) as connection:
        lost = asyncio.Event()
        connection.on_state(lambda state: lost.set() if state.name == "LOST" else None)
        proxy.freeze()
        async with asyncio.timeout(5):
            await lost.wait()
        proxy.thaw()
        await connection.link.wait_up()


async def _is_running(connection: Connection, program: str) -> bool:
    return bool((await connection.run(["pgrep", "-x", program])).stdout)


async def _first(stream: Stream) -> AsyncIterator[bytes]:
    async for line in stream:
        yield line
        return


async def _fetch(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = await reader.read()
    writer.close()
    return data
