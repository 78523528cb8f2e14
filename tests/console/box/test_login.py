"""Getting in: keys, passphrases and passwords, and one clear line for each way of not getting in."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
from embedded_box import EmbeddedBox, Operator

from console.box.connection import connect
from console.box.errors import BoxError, HostKeyUnknown, HostUnknown, KeyFileError, LinkError, LoginRefused
from console.box.target import Target
from console.box.timing import Timing
from console.config import places, resolve


async def refusal(target: Target, operator: Operator | None = None) -> BoxError:
    with pytest.raises(BoxError) as caught:
        await connect(target, operator, timing=Timing(connect_s=0.5, login_s=0.5))
    assert "\n" not in str(caught.value)
    return caught.value


async def test_a_key_file_that_is_not_there_is_named(target: Target, tmp_path: Path) -> None:
    error = await refusal(replace(target, identity_files=(tmp_path / "absent",)))
    assert isinstance(error, KeyFileError) and error.exit_code == 2
    assert str(tmp_path / "absent") in str(error) and "no such key file" in str(error)


async def test_a_file_that_is_no_private_key_is_named(embedded: EmbeddedBox, target: Target, tmp_path: Path) -> None:
    junk, public = tmp_path / "junk", tmp_path / "id.pub"
    junk.write_text("hello")
    embedded.client_key.write_public_key(public)
    for path in (junk, public, tmp_path):
        error = await refusal(replace(target, identity_files=(path,)))
        assert isinstance(error, KeyFileError) and error.exit_code == 2 and str(path) in str(error)
    assert embedded.logins == []


async def test_a_key_the_box_does_not_know_is_a_refused_login_that_names_what_was_offered(
    target: Target, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(wrong)
    error = await refusal(replace(target, identity_files=(wrong,)))
    assert isinstance(error, LoginRefused) and error.exit_code == 2
    assert "ops@127.0.0.1" in str(error) and str(wrong) in str(error)


@pytest.fixture
def locked(embedded: EmbeddedBox, target: Target, tmp_path: Path) -> Target:
    """The embedded box, with a client key that a passphrase opens."""
    key = tmp_path / "locked"
    embedded.client_key.write_private_key(key, "pkcs8-pem", "sesame")
    return replace(target, identity_files=(key,))


async def test_a_locked_key_with_nobody_to_ask_is_named(embedded: EmbeddedBox, locked: Target) -> None:
    error = await refusal(locked)
    assert isinstance(error, KeyFileError) and error.exit_code == 2
    assert "passphrase" in str(error) and str(locked.identity_files[0]) in str(error)
    assert embedded.logins == []


async def test_a_passphrase_is_asked_for_until_it_is_right_and_remembered_over_a_reconnect(
    embedded: EmbeddedBox, locked: Target
) -> None:
    operator = Operator(secrets=["wrong", "sesame"])
    async with await connect(locked, operator, timing=Timing(first_retry_s=0.01)) as connection:
        assert len(operator.asked) == 2
        embedded.drop_all()
        while len(embedded.logins) < 2 or connection.state.name != "LIVE":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(operator.asked) == 2


async def test_giving_up_on_a_passphrase_is_a_refused_login_that_says_so(locked: Target) -> None:
    error = await refusal(locked, Operator(secrets=[None]))
    assert isinstance(error, LoginRefused) and "locked" in str(error)


async def test_a_password_is_asked_for_when_no_key_serves(
    embedded: EmbeddedBox, target: Target, tmp_path: Path
) -> None:
    embedded.password = "open"
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(other)
    operator = Operator(secrets=["shut", "open"])
    async with await connect(replace(target, identity_files=(other,)), operator) as connection:
        assert (await connection.run(["true"])).exit_status == 0
    assert operator.asked == ["ops@127.0.0.1"] * 2


async def test_a_box_that_asks_its_own_questions_gets_its_answers_in_turn(
    embedded: EmbeddedBox, target: Target, tmp_path: Path
) -> None:
    embedded.dialogue = [("Password: ", "sesame"), ("One-time code: ", "123456")]
    asking = replace(target, identity_files=(), only_these_keys=False)
    operator = Operator(secrets=["sesame", "123456"])
    async with await connect(asking, operator) as connection:
        assert (await connection.run(["true"])).exit_status == 0
    assert operator.asked == ["Login step 1", "Login step 2"]


async def test_wrong_answers_and_nobody_to_answer_are_a_refused_login(embedded: EmbeddedBox, target: Target) -> None:
    embedded.dialogue = [("One-time code: ", "123456")]
    asking = replace(target, identity_files=(), only_these_keys=False)
    assert isinstance(await refusal(asking), LoginRefused)
    for answers in (["000000", None, None, None], [None, None, None, None]):
        with pytest.raises(LoginRefused):
            await connect(asking, Operator(secrets=list(answers)))


async def test_the_answers_are_kept_nowhere_and_asked_for_again_after_a_drop(
    embedded: EmbeddedBox, target: Target
) -> None:
    embedded.dialogue = [("One-time code: ", "123456")]
    operator = Operator(secrets=["123456", "123456"])
    asking = replace(target, identity_files=(), only_these_keys=False)
    async with await connect(asking, operator, timing=Timing(first_retry_s=0.02)) as connection:
        back = asyncio.Event()
        connection.on_state(lambda state: back.set() if state.name == "LIVE" and len(embedded.logins) > 1 else None)
        embedded.drop_all()
        await back.wait()
    assert operator.asked == ["Login step 1"] * 2


async def test_the_logins_clock_stands_still_while_somebody_types(embedded: EmbeddedBox, locked: Target) -> None:
    class Slow(Operator):
        async def secret(self, title: str, prompt: str) -> str | None:
            await asyncio.sleep(0.6)  # longer than the login may take
            return "sesame"

    async with await connect(locked, Slow(), timing=Timing(login_s=0.5)):
        assert embedded.logins == ["ops"]


async def test_a_refused_connection_and_a_silent_one_are_no_connection(embedded: EmbeddedBox, target: Target) -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    error = await refusal(replace(target, port=silent.sockets[0].getsockname()[1]))
    assert isinstance(error, LinkError) and error.exit_code == 5 and "within 0.5 s" in str(error)
    silent.close()
    await embedded.stop()
    error = await refusal(target)
    assert isinstance(error, LinkError) and error.exit_code == 5 and "refused" in str(error)


async def test_something_that_is_not_ssh_is_no_connection(target: Target) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    error = await refusal(replace(target, port=server.sockets[0].getsockname()[1]))
    assert isinstance(error, LinkError) and error.exit_code == 5
    server.close()


async def test_a_name_that_does_not_resolve_is_an_unknown_host_and_the_nearest_is_offered(target: Target) -> None:
    error = await refusal(replace(target, address="gpu-0l.invalid", name="gpu-0l", listed=False, near="gpu-01"))
    assert isinstance(error, HostUnknown) and error.exit_code == 2
    assert "did you mean gpu-01?" in str(error)


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncssh.SSHAgentClient]:
    """A real ssh-agent, empty."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent here")
    socket = tmp_path / "agent"
    process = await asyncio.create_subprocess_exec("ssh-agent", "-D", "-a", str(socket), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()  # it listens by the time it says where
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    client = await asyncssh.connect_agent(str(socket))
    yield client
    client.close()
    process.terminate()
    await process.wait()


async def test_the_agents_keys_are_offered_unless_one_key_was_named(
    embedded: EmbeddedBox, target: Target, tmp_path: Path, agent: asyncssh.SSHAgentClient
) -> None:
    await agent.add_keys([embedded.client_key])
    async with await connect(replace(target, identity_files=(), only_these_keys=False)):
        assert embedded.logins == ["ops"]
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(other)
    assert isinstance(await refusal(replace(target, identity_files=(other,))), LoginRefused)


async def test_identities_only_offers_of_the_agents_keys_those_that_are_named(
    embedded: EmbeddedBox, locked: Target, tmp_path: Path, agent: asyncssh.SSHAgentClient
) -> None:
    await agent.add_keys([embedded.client_key])
    strict = replace(locked, only_these_keys=False, identities_only=True)
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(other)
    assert isinstance(await refusal(replace(strict, identity_files=(other,))), LoginRefused)
    embedded.client_key.write_public_key(tmp_path / "locked.pub")
    async with await connect(strict) as connection:  # locked on disk, open in the agent
        assert (await connection.run(["true"])).exit_status == 0


async def test_a_proxy_command_is_used_and_the_host_key_is_checked_all_the_same(
    embedded: EmbeddedBox, target: Target, tmp_path: Path
) -> None:
    bridge = tmp_path / "bridge.py"
    bridge.write_text(BRIDGE)
    config = tmp_path / "config"
    config.write_text(f"Host behind\n  ProxyCommand {sys.executable} {bridge} {embedded.port}\n")
    behind = replace(target, ssh_name="behind", address="behind", ssh_config=(config,), proxy_command=True)
    assert isinstance(await refusal(behind), HostKeyUnknown) and embedded.logins == []
    behind = replace(behind, host_key_alias="127.0.0.1")
    config.write_text(config.read_text() + "  HostKeyAlias 127.0.0.1\n")
    async with await connect(behind) as connection:
        assert (await connection.run(["echo", "there"])).stdout == b"there\n"


@pytest.mark.parametrize("way", ["ProxyCommand", "TCP"])
async def test_the_config_s_connect_timeout_ends_a_wait_for_an_ssh_server_that_says_nothing(
    target: Target, tmp_path: Path, way: str
) -> None:
    config = tmp_path / "config"
    proxy = "  ProxyCommand sleep 600\n" if way == "ProxyCommand" else ""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        config.write_text(f"Host behind\n  HostName 127.0.0.1\n  Port {port}\n  ConnectTimeout 1\n{proxy}")
        behind = resolve("behind", replace(places(), hosts=tmp_path / "none", ssh_config=(config,)))
        assert (behind.connect_s, behind.proxy_command) == (1, way == "ProxyCommand")
        behind = replace(behind, identity_files=target.identity_files, only_these_keys=True)
        with pytest.raises(LinkError, match="no SSH server answered within 1 s") as caught:
            await connect(behind, timing=Timing(login_s=600.0))
    assert ("the ProxyCommand of the SSH config" in str(caught.value)) == (way == "ProxyCommand")


async def test_a_proxy_command_that_ends_is_named(target: Target, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host behind\n  ProxyCommand false\n")
    refused = await refusal(replace(target, ssh_name="behind", ssh_config=(config,), proxy_command=True))
    assert isinstance(refused, LinkError) and "the ProxyCommand of the SSH config" in str(refused)


BRIDGE = """
import os, socket, sys, threading
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def back():
    while data := sock.recv(65536):
        os.write(1, data)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    sock.sendall(data)
"""
