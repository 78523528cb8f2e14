"""An empty log on a real machine tells its reason: each cause is brought about, and named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from box_machine import Box

from console.box.connection import Connection, connect
from console.box.empty_log import EmptyLog, why_empty
from console.box.journal import JournalError, read_journal
from console.box.layout import layout_for
from console.box.services import ServiceManager, manager_for
from console.box.target import Scope

pytestmark = pytest.mark.box

UNIT = "quiet.service"
SILENT = "[Service]\nExecStart=/bin/sleep 1000\nSyslogIdentifier=quiet-engine\n"
LOUD = "[Service]\nExecStart=/bin/sh -c 'echo heard; exec sleep 1000'\nSyslogIdentifier=quiet-engine\n"


@pytest.fixture
async def bob(box: Box) -> AsyncIterator[Connection]:
    """An ordinary user outside the journal's group, lingering, made for the test."""
    box.run(["useradd", "-m", "-s", "/bin/bash", "-p", "*", "bob"])
    box.run(["cp", "-r", "/home/ops/.ssh", "/home/bob/.ssh"])
    box.run(["chown", "-R", "bob:bob", "/home/bob/.ssh"])
    box.run(["loginctl", "enable-linger", "bob"])
    try:
        async with await connect(box.target("bob")) as connection:
            yield connection
    finally:
        box.run(["loginctl", "disable-linger", "bob"])
        box.run(["loginctl", "terminate-user", "bob"], check=False)
        box.run(["systemctl", "stop", "user@$(id -u bob)"], check=False)
        box.run(["userdel", "-rf", "bob"], check=False)


@asynccontextmanager
async def unit(box: Box, connection: Connection, scope: Scope, text: str) -> AsyncIterator[ServiceManager]:
    """The unit as `text` says, under a manager of `scope`; a system unit is laid down by root whoever asks."""
    layout = layout_for(scope, connection.home, UNIT)
    systemctl = ["systemctl", "--user"] if scope == "user" else ["systemctl"]
    if scope == "user":
        await connection.run(["mkdir", "-p", layout.units])
        await connection.upload(text.encode(), layout.unit_file)
        await connection.run([*systemctl, "daemon-reload"])
        yield manager_for(connection, layout)
        await connection.run([*systemctl, "stop", UNIT])
        await connection.run(["rm", layout.unit_file])
        await connection.run([*systemctl, "daemon-reload"])
        return
    box.run(["tee", layout.unit_file], input=text.encode())
    box.run([*systemctl, "daemon-reload"])
    yield manager_for(connection, layout)
    box.run([*systemctl, "stop", UNIT])
    box.run(["rm", layout.unit_file])
    box.run([*systemctl, "daemon-reload"])


async def reason(connection: Connection, manager: ServiceManager) -> EmptyLog:
    manager.identifier = "quiet-engine"  # other tests' engines wrote under the usual name
    assert [record for record in await read_journal(connection, manager.journal_source()) if record.pid != 1] == []
    return await why_empty(connection, manager)


async def test_a_unit_that_is_not_there_or_is_of_another_scope_is_told(box: Box, ops: Connection) -> None:
    user = manager_for(ops, layout_for("user", ops.home, UNIT))
    assert (await reason(ops, user)).cause == "not installed"
    async with unit(box, ops, "system", SILENT):
        found = await reason(ops, user)
        assert (found.cause, found.mend) == ("wrong scope", 'set scope = "system" for box in hosts.toml')


async def test_a_unit_that_never_ran_and_one_whose_output_goes_elsewhere_are_told(box: Box, ops: Connection) -> None:
    async with unit(box, ops, "user", SILENT) as manager:
        assert (await reason(ops, manager)).cause == "never started"
    async with unit(box, ops, "user", SILENT + "StandardOutput=null\n") as manager:
        assert (await reason(ops, manager)).cause == "output goes elsewhere"
    async with unit(box, ops, "system", SILENT + "LogNamespace=apart\n") as manager:
        assert (await reason(ops, manager)).cause == "namespace"


async def test_a_login_outside_the_group_is_told_how_to_get_in(box: Box, bob: Connection) -> None:
    async with unit(box, bob, "system", LOUD) as manager:
        box.run(["systemctl", "start", UNIT])
        found = await reason(bob, manager)
        assert found.cause == "not in the group" and "sudo usermod -aG systemd-journal bob" in found.mend
        box.run(["usermod", "-aG", "systemd-journal", "bob"])
        async with await connect(box.target("bob")) as again:
            now = manager_for(again, manager.layout)
            assert "heard" in [record.message for record in await read_journal(again, now.journal_source())]


async def test_without_a_journal_on_disk_a_users_own_lines_are_told_to_be_out_of_reach(
    box: Box, bob: Connection
) -> None:
    box.run(["sh", "-c", "mv /var/log/journal /var/log/journal.away && systemctl restart systemd-journald"])
    try:
        async with unit(box, bob, "user", LOUD) as manager:
            await manager.start()
            await manager.wait(lambda now: now.state == "serving", 10)
            with pytest.raises(JournalError, match="insufficient permissions"):
                await read_journal(bob, manager.journal_source())
            found = await why_empty(bob, manager)
    finally:
        box.run(["sh", "-c", "mv /var/log/journal.away /var/log/journal && systemctl restart systemd-journald"])
        box.run(["journalctl", "--flush"])
    assert found.cause == "no persistent journal"
    assert found.mend.startswith("sudo mkdir -p /var/log/journal && sudo systemctl restart systemd-journald")
