"""The journal of a real journald, followed over a real sshd: every record once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from box_machine import Box
from link_proxy import LinkProxy, eventually

from console.box.connection import Connection, connect
from console.box.journal import JournalSource, follow, read_journal
from console.box.target import Target
from console.box.timing import Timing
from console.box.values import Record

pytestmark = pytest.mark.box

SESSIONS = "^sshd(-session)?: ops"  # both the process with privileges and the one without
QUICK = Timing(first_retry_s=0.05, last_retry_s=0.2)


def source(name: str) -> JournalSource:
    return JournalSource(scope="user", unit=f"{name}.service", identifier=name)


def say(box: Box, name: str, lines: list[str]) -> None:
    """Write lines to the journal as `ops`, past the console's link."""
    box.run(
        ["runuser", "-u", "ops", "--", "systemd-cat", "-t", name], input="".join(f"{line}\n" for line in lines).encode()
    )


@asynccontextmanager
async def following(
    connection: Connection, of: JournalSource, cursor: str | None = None, silence_s: float = 1.0
) -> AsyncIterator[list[Record]]:
    """What `follow` has given out so far, in a list that grows."""
    records: list[Record] = []

    async def collect() -> None:
        async for batch in follow(connection, of, cursor=cursor, pause_s=0.02, silence_s=silence_s):
            records.extend(batch)

    async with asyncio.TaskGroup() as group:  # a follower that fails ends the test
        task = group.create_task(collect())
        yield records
        task.cancel()


def followed(box: Box, name: str) -> Callable[[], bool]:
    """Whether a journalctl on the box follows the lines of `name`."""
    return lambda: box.run(["pgrep", "-f", f"^journalctl.*--follow.*{name}"], check=False).returncode == 0


def has(records: list[Record], message: str) -> Callable[[], bool]:
    return lambda: any(record.message == message for record in records)


def messages(records: list[Record]) -> list[str]:
    return [record.message for record in records]


async def test_records_carry_the_units_identifier_process_and_invocation(ops: Connection) -> None:
    command = 'echo "<4>slow start"; echo ready; exec sleep 60'
    argv = ["systemd-run", "--user", "--quiet", "--unit=facts", "-p", "SyslogIdentifier=facts-id", "sh", "-c", command]
    assert (await ops.run(argv)).exit_status == 0
    async with following(ops, JournalSource("user", "facts.service", "facts-id")) as records:
        await eventually(has(records, "ready"))
    shown = await ops.run(["systemctl", "--user", "show", "facts", "-P", "InvocationID", "-P", "MainPID"])
    pid, invocation = sorted(shown.stdout.decode().split(), key=len)
    ready = next(record for record in records if record.message == "ready")
    assert (ready.identifier, ready.invocation) == ("facts-id", invocation)
    assert str(ready.pid) == pid and ready.boot_id is not None and ready.monotonic_us is not None
    assert [record.priority for record in records if record.message in ("slow start", "ready")] == [4, 6]
    assert any(record.message.startswith("Started ") and record.invocation == invocation for record in records)
    await ops.run(["systemctl", "--user", "stop", "facts"])


async def test_the_first_line_ever_written_is_not_lost(box: Box, ops: Connection) -> None:
    async with following(ops, source("virgin")) as records:
        while not (await ops.run(["pgrep", "-f", "journalctl.*virgin"])).stdout:
            pass
        say(box, "virgin", [f"line {number}" for number in range(5)])
        await eventually(has(records, "line 4"))
    assert messages(records) == [f"line {number}" for number in range(5)]


async def test_records_written_while_the_link_is_down_arrive_once_and_in_order(
    box: Box, proxy: LinkProxy, proxied: Target
) -> None:
    async with await connect(proxied, timing=QUICK) as connection:
        say(box, "cut", ["before"])
        async with following(connection, source("cut")) as records:
            await eventually(has(records, "before"))
            await proxy.cut()
            say(box, "cut", [f"line {number}" for number in range(300)])
            await proxy.open()
            say(box, "cut", ["after"])
            await eventually(has(records, "after"))
    assert messages(records) == ["before", *(f"line {number}" for number in range(300)), "after"]


async def test_no_record_is_lost_or_doubled_when_sessions_are_killed_under_a_stream(box: Box) -> None:
    count, kills = 4000, 20
    script = f"i=0; while [ $i -lt {count} ]; do echo line $i; i=$((i+1)); [ $((i % 100)) -gt 0 ] || sleep 0.05; done"
    async with await connect(box.target("ops"), timing=QUICK) as connection:
        argv = ["systemd-run", "--user", "--quiet", "--unit=storm", "-p", "SyslogIdentifier=storm", "sh", "-c", script]
        assert (await connection.run(argv)).exit_status == 0
        async with following(connection, source("storm")) as records:
            for kill in range(1, kills + 1):
                await eventually(lambda kill=kill: len(records) > kill * count // (kills + 2))  # type: ignore[misc]
                await eventually(lambda: box.run(["pkill", "-KILL", "-f", SESSIONS], check=False).returncode == 0)
            await eventually(has(records, f"line {count - 1}"), 60)
            followers = ["pgrep", "-fc", "^journalctl.*storm"]
            await eventually(lambda: box.run(followers, check=False).stdout == b"1\n")  # none is left of the others
    assert [text for text in messages(records) if text.startswith("line ")] == [f"line {n}" for n in range(count)]


async def test_a_journalctl_that_dies_is_started_again_from_the_last_record(box: Box, ops: Connection) -> None:
    say(box, "dies", ["one"])
    async with following(ops, source("dies")) as records:
        await eventually(has(records, "one"))
        await eventually(followed(box, "dies"))
        box.run(["pkill", "-KILL", "-f", "journalctl.*dies"])
        say(box, "dies", ["two"])
        await eventually(has(records, "two"))
    assert messages(records) == ["one", "two"]


@pytest.mark.parametrize("before", [["one"], []])
async def test_a_journalctl_that_keeps_a_record_back_is_replaced(box: Box, ops: Connection, before: list[str]) -> None:
    name = f"mute{len(before)}"
    if before:
        say(box, name, before)
    async with following(ops, source(name), silence_s=0.1) as records:
        await eventually(
            lambda: box.run(["pgrep", "-f", f"^journalctl.*--follow.*{name}"], check=False).returncode == 0
        )
        await eventually(lambda: messages(records) == before)
        box.run(["pkill", "-STOP", "-f", f"^journalctl.*--follow.*{name}"])
        say(box, name, ["two"])
        await eventually(has(records, "two"))
        say(box, name, ["three"])
        await eventually(has(records, "three"))
        box.run(["pkill", "-CONT", "-f", f"^journalctl.*--follow.*{name}"])
    assert messages(records) == [*before, "two", "three"]


async def test_a_restart_of_journald_loses_nothing(box: Box, ops: Connection) -> None:
    say(box, "daemon", ["one"])
    async with following(ops, source("daemon")) as records:
        await eventually(has(records, "one"))
        await eventually(followed(box, "daemon"))
        box.run(["systemctl", "restart", "systemd-journald"])
        say(box, "daemon", ["two"])
        await eventually(has(records, "two"))
    assert messages(records) == ["one", "two"]


async def test_records_that_were_vacuumed_leave_a_gap_marker_with_their_time_span(
    box: Box, proxy: LinkProxy, proxied: Target
) -> None:
    async with await connect(proxied, timing=QUICK) as connection:
        say(box, "vacuum", ["seen"])
        async with following(connection, source("vacuum")) as records:
            await eventually(has(records, "seen"))
            await proxy.cut()
            say(box, "vacuum", ["lost"])
            box.run(["journalctl", "--rotate"])
            box.run(["journalctl", "--vacuum-files=1"])
            say(box, "vacuum", ["kept"])
            await proxy.open()
            await eventually(has(records, "kept"))
    seen, gap, kept = records
    assert (seen.message, gap.marker, kept.message) == ("seen", "gap", "kept")
    assert gap.cursor == seen.cursor and "missing" in gap.message and " to " in gap.message


async def test_bytes_that_are_no_text_break_nothing(box: Box, ops: Connection) -> None:
    awkward = b"\xff\xfe\n\x1b]0;title\x07\x1b[31mred\nwith\rreturn\n\nnul\0inside\n" + b"x" * 60_000 + b"\nlast\n"
    box.run(["runuser", "-u", "ops", "--", "systemd-cat", "-t", "garbage"], input=awkward)
    async with following(ops, source("garbage")) as records:
        await eventually(has(records, "last"))
    found = messages(records)
    assert found == [
        "\ufffd\ufffd",
        "\x1b]0;title\x07\x1b[31mred",
        "with\rreturn",
        "nul",
        "inside",
        "x" * 60_000,
        "last",
    ]


async def test_going_on_from_a_cursor_gives_only_what_came_after_it(box: Box, ops: Connection) -> None:
    say(box, "again", ["one", "two"])
    async with following(ops, source("again")) as records:
        await eventually(has(records, "two"))
    say(box, "again", ["three"])
    async with following(ops, source("again"), cursor=records[0].cursor) as resumed:
        await eventually(has(resumed, "three"))
    assert messages(resumed) == ["two", "three"]
    assert messages(await read_journal(ops, source("again"), lines=2)) == ["two", "three"]


async def test_a_cursor_the_journal_does_not_know_gives_a_gap_and_then_what_there_is(box: Box, ops: Connection) -> None:
    say(box, "foreign", ["one"])
    async with following(ops, source("foreign"), cursor="no cursor at all") as records:
        await eventually(has(records, "one"))
    assert [record.marker for record in records] == ["gap", None]


async def test_lines_that_journald_suppressed_are_told(box: Box, root: Connection) -> None:
    script = "i=0; while [ $i -lt 4000 ]; do echo $i; i=$((i+1)); done; sleep 1.2; echo over; exec sleep 5"
    limit = ["-p", "LogRateLimitBurst=50", "-p", "LogRateLimitIntervalSec=1s"]
    argv = ["systemd-run", "--quiet", "--unit=flood", *limit, "-p", "SyslogIdentifier=flood", "sh", "-c", script]
    box.run(argv)
    async with following(root, JournalSource("system", "flood.service", "flood")) as records:
        await eventually(has(records, "over"), 15)
    numbers = [int(text) for text in messages(records) if text.isdigit()]
    assert len(numbers) < 4000
    told = [record for record in records if record.marker == "suppressed"]
    assert len(told) == 1 and "Suppressed" in told[0].message and "flood.service" in told[0].message
    box.run(["systemctl", "stop", "flood"])


async def test_a_reboot_is_marked_between_the_last_record_and_the_first_new_one(box: Box, ops: Connection) -> None:
    say(box, "boots", ["old"])
    async with following(ops, source("boots")) as records:
        await eventually(has(records, "old"))
        await asyncio.to_thread(box.reboot)
        ops.reconnect()
        await ops.link.wait_up()
        say(box, "boots", ["new"])
        await eventually(has(records, "new"), 30)
    marks = [(record.marker, record.message) for record in records]
    assert marks.count(("reboot", "the box was rebooted")) == 1
    assert [text for text in messages(records) if text in ("old", "new")] == ["old", "new"]
    assert messages(records).index("the box was rebooted") < messages(records).index("new")
