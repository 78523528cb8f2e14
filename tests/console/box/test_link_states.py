"""The link's state machine under arbitrary weather: allowed steps only, nothing replayed, live again in the end."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import pairwise
from pathlib import Path

import asyncssh
from embedded_box import EmbeddedBox
from hypothesis import given, settings
from hypothesis import strategies as st

from console.box.connection import Connection, connect
from console.box.errors import LinkError
from console.box.target import Target
from console.box.timing import Timing

NEXT = {
    "CONNECTING": {"LIVE", "LOST", "CLOSED"},
    "LIVE": {"DEGRADED", "LOST", "CLOSED"},
    "DEGRADED": {"LIVE", "LOST", "CLOSED"},
    "LOST": {"RETRY", "CLOSED"},
    "RETRY": {"CONNECTING", "CLOSED"},
    "CLOSED": set[str](),
}
QUICK = Timing(first_retry_s=0.005, last_retry_s=0.02, heartbeat_s=0.02, login_s=3.0)
KEYS = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(2)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["drop", "stop", "listen", "reconnect", "run", "wait"]), max_size=8))
def test_whatever_happens_the_link_takes_allowed_steps_and_comes_back(weather: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_through(weather, Path(folder)))


async def _through(weather: list[str], folder: Path) -> None:
    box = EmbeddedBox(folder, [KEYS[0]], KEYS[1])
    await box.listen()
    port = box.port
    KEYS[1].write_private_key(folder / "id")
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {KEYS[0].export_public_key().decode()}")
    target = Target("lab", "127.0.0.1", "127.0.0.1", port, "ops", known_hosts, (folder / "id",), True)
    connection = await connect(target, timing=QUICK)
    states = [connection.state.name]
    connection.on_state(lambda state: states.append(state.name) if states[-1] != state.name else None)
    listening, ran = True, list[tuple[str, bool]]()
    try:
        for number, event in enumerate(weather):
            if event == "drop":
                box.drop_all()
            elif event == "stop" and listening:
                await box.stop()
                listening = False
            elif event == "listen" and not listening:
                await box.listen(port)
                listening = True
            elif event == "reconnect":
                connection.reconnect()
            elif event == "run":
                ran.append(await _run(connection, f"token-{number}"))
            else:
                await asyncio.sleep(0.01)
        if not listening:
            await box.listen(port)
        async with asyncio.timeout(10):
            while not (await _run(connection, "at-the-end"))[1]:
                await connection.link.wait_up()
    finally:
        await connection.close()
        await box.stop()
    assert all(after in NEXT[before] for before, after in pairwise(states)), states
    assert states[-1] == "CLOSED"
    for token, succeeded in ran:
        times = sum(command.endswith(token) for command in box.commands)
        assert times == 1 if succeeded else times <= 1  # a command that failed with the link is not sent again


async def _run(connection: Connection, token: str) -> tuple[str, bool]:
    try:
        done = await connection.run(["echo", token])
    except LinkError:
        return token, False
    assert done.exit_status is None or done.stdout == f"{token}\n".encode()
    return token, done.exit_status == 0
