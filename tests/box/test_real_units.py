"""Units on a real machine: a load that takes longer than the unit allows, and a login that is given no runtime folder."""

from __future__ import annotations

import pytest
from box_machine import Box

from console.box.connection import Connection, connect
from console.box.layout import layout_for
from console.box.services import manager_for
from console.box.values import ServiceState

pytestmark = pytest.mark.box

# Tells its manager each phase of loading, and with each that it takes longer.
LOADS_SLOWLY = """
import os, socket, time
def tell(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        address = os.environ["NOTIFY_SOCKET"]
        sock.sendto(text.encode(), chr(0) + address[1:] if address[0] == "@" else address)
for phase in range(5):
    tell(f"STATUS=loading {phase + 1} of 5\\nEXTEND_TIMEOUT_USEC=1500000")
    time.sleep(0.5)
tell("READY=1\\nSTATUS=serving")
time.sleep(600)
"""


async def test_a_load_beyond_the_start_limit_goes_on_as_long_as_it_says_so(box: Box, ops: Connection) -> None:
    layout = layout_for("user", ops.home, "slow.service")
    manager = manager_for(ops, layout)
    await ops.run(["mkdir", "-p", layout.units])
    await ops.upload(LOADS_SLOWLY.encode(), f"{ops.home}/slow.py")
    service = f"[Service]\nType=notify\nTimeoutStartSec=1\nExecStart={box.python} -S {ops.home}/slow.py\n"
    await ops.upload(service.encode(), layout.unit_file)
    await ops.run(["systemctl", "--user", "daemon-reload"])
    texts: list[str | None] = []

    def serving(now: ServiceState) -> bool:
        assert now.state in ("starting", "serving"), now
        texts.append(now.status_text)
        return now.state == "serving"

    try:
        await manager.start()
        state = await manager.wait(serving, 20)
        assert state.status_text == "serving"
        assert "loading 5 of 5" in texts  # well behind the limit of one second
    finally:
        await manager.stop()
        await ops.run(["rm", layout.unit_file, f"{ops.home}/slow.py"])
        await ops.run(["systemctl", "--user", "daemon-reload"])


async def test_a_login_that_is_given_no_runtime_folder_reaches_its_user_manager_all_the_same(box: Box) -> None:
    box.run(["tee", "/etc/ssh/sshd_config.d/plain.conf"], input=b"UsePAM no\n")
    box.restart_sshd()
    try:
        async with await connect(box.target("ops")) as connection:
            given = await connection.run(["sh", "-c", "tr '\\0' '\\n' </proc/$PPID/environ"])
            assert b"XDG_RUNTIME_DIR" not in given.stdout
            shown = await connection.run(["systemctl", "--user", "is-system-running"])
            assert shown.stdout.strip() in (b"running", b"degraded"), shown
    finally:
        box.run(["rm", "/etc/ssh/sshd_config.d/plain.conf"])
        box.restart_sshd()
