"""Follow a unit's journal by cursor: every record once and in order, over reconnects, vacuums and reboots.

Records of a systemd unit come from journalctl, those of the supervisor from `supervise.py logs`; both print one JSON
object a line with journald's field names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console.box.errors import BoxError, LinkError, SessionRefused
from console.box.long_lines import LINE_BREAK, STREAM, LongLines
from console.box.seam import Seam
from console.box.target import Scope
from console.box.values import Record

if TYPE_CHECKING:
    from console.box.connection import Connection
    from console.box.stream import Stream

SUPPRESSED_ID = "a596d6fe7bfa4994828e72309e95d61e"  # journald's own record that it dropped lines of a unit
KEPT_FIELDS = (LINE_BREAK, STREAM, "MESSAGE_ID", "JOB_TYPE", "JOB_RESULT", "_TRANSPORT")
# The manager's own records carry its own invocation, and name that of the unit they are about in the first two.
INVOCATION_FIELDS = ("USER_INVOCATION_ID", "INVOCATION_ID", "_SYSTEMD_INVOCATION_ID")
OUTPUT_FIELDS = ("MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "_PID", *INVOCATION_FIELDS, *KEPT_FIELDS)
BACKLOG_LINES = 2000
FAILURES_BEFORE_TIME = 2  # a cursor the journal cannot find makes way for the time of the last record
FAILURES_BEFORE_END = 5
LONGEST_PAUSE_S = 5.0
FIRST_SILENCE_S = 2.0
LONGEST_SILENCE_S = 60.0


class JournalError(BoxError):
    """The journal cannot be read; the box's own words say why."""


@dataclass(frozen=True)
class JournalSource:
    """Whose records to read."""

    scope: Scope
    unit: str
    identifier: str
    """SYSLOG_IDENTIFIER of the unit's lines; lines sent right before an exit can lose their unit, never this. "" where the
    unit has none of its own."""
    supervise: tuple[str, ...] = ()
    """Scope supervisor: the command before `logs …`."""


def journal_argv(
    source: JournalSource,
    *,
    systemd_version: int | None,
    uid: int | None = None,
    cursor: str | None = None,
    since: str | None = None,
    lines: int | None = None,
    follow: bool = False,
) -> list[str]:
    """The command that prints the records, oldest first.

    `cursor` begins *with* that record, so that its presence can be checked: `--after-cursor` with a filter skips one
    record if the cursor's own has gone (systemd before 256). `since` is `@SECONDS` since the epoch. `lines` limits to
    the newest ones and must not come with a cursor (252 counts wrongly then). `uid` is needed for scope user.
    """
    if source.scope == "supervisor":
        argv = [*source.supervise, "logs"]
        argv += ["--follow"] if follow else []
    else:
        version = systemd_version or 0
        argv = ["journalctl", "--quiet", "--output=json", "--all"]
        argv += [f"--output-fields={','.join(OUTPUT_FIELDS)}"] if version >= 236 else []
        # Following starts with the newest ten records unless told otherwise, and from 251 on with this boot's.
        argv += ["--follow", "--no-tail"] if follow else []
        argv += ["--boot=all"] if follow and version >= 242 else []
    if cursor is not None:
        argv += [f"--cursor={cursor}"]
    elif since is not None:
        argv += [f"--since={since}"]
    if lines is not None and cursor is None:
        argv += [f"--lines={lines}"]
    if source.scope != "supervisor":
        for number, group in enumerate(_matches(source, uid)):
            argv += ["+", *group] if number else group
    return argv


def _matches(source: JournalSource, uid: int | None) -> list[list[str]]:
    """What belongs to the unit: any of these groups, each with all its fields (as `journalctl --unit` has it)."""
    unit = source.unit
    dropped = [f"MESSAGE_ID={SUPPRESSED_ID}", "_UID=0"]
    if source.scope == "user":
        # By field and not by `--user`, which finds nothing where the journal is not kept on disk.
        mine = [f"_UID={uid}"] if uid is not None else []
        by_name = [[*mine, f"SYSLOG_IDENTIFIER={source.identifier}"]] if source.identifier else []
        return [
            *by_name,
            [*mine, f"_SYSTEMD_USER_UNIT={unit}"],
            [*mine, f"USER_UNIT={unit}"],
            dropped,
        ]
    return [
        [f"_SYSTEMD_UNIT={unit}"],
        [f"UNIT={unit}", "_PID=1"],
        [f"OBJECT_SYSTEMD_UNIT={unit}", "_UID=0"],
        dropped,
    ]


def parse_record(line: bytes) -> Record | None:
    """The Record in one line of JSON, or None if it is none."""
    try:
        found = json.loads(line)
        cursor, realtime_us = found["__CURSOR"], int(found["__REALTIME_TIMESTAMP"])
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(cursor, str):
        return None
    fields = {name: _text(found[name]) for name in KEPT_FIELDS if found.get(name) is not None}
    return Record(
        cursor=cursor,
        realtime_us=realtime_us,
        message=message_text(found.get("MESSAGE", "")),
        priority=_priority(found.get("PRIORITY")),
        identifier=_text_or_none(found.get("SYSLOG_IDENTIFIER")),
        pid=_number(found.get("_PID")),
        boot_id=_text_or_none(found.get("_BOOT_ID")),
        monotonic_us=_number(found.get("__MONOTONIC_TIMESTAMP")),
        invocation=next((_text(found[name]) for name in INVOCATION_FIELDS if found.get(name)), None),
        marker="suppressed" if fields.get("MESSAGE_ID") == SUPPRESSED_ID else None,
        fields=fields,
    )


def message_text(value: Any) -> str:
    """A record's MESSAGE as text, in whichever form journalctl prints it."""
    return "(a message too long for journalctl to print)" if value is None else _text(value)


def _text(value: Any) -> str:
    """A field as text: a string; the bytes of one that is not UTF-8 or holds control codes; or several of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(type(byte) is int and 0 <= byte <= 255 for byte in value):
            return bytes(value).decode("utf-8", "replace")
        return "\n".join(_text(part) for part in value)
    return "" if value is None else str(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _number(value: Any) -> int | None:
    try:
        return int(_text(value))
    except ValueError:
        return None


def _priority(value: Any) -> int:
    number = _number(value)
    return number if number is not None and 0 <= number <= 7 else 6


async def read_journal(
    connection: Connection, source: JournalSource, *, since: str | None = None, lines: int | None = BACKLOG_LINES
) -> list[Record]:
    """The newest `lines` records that are there now, oldest first. Raises LinkError, JournalError."""
    whole = LongLines()
    records = whole.join(Seam().join(await _read(connection, source, since=since, lines=lines)))
    return records + whole.rest()


async def _read(
    connection: Connection,
    source: JournalSource,
    *,
    cursor: str | None = None,
    since: str | None,
    lines: int | None,
) -> list[Record]:
    facts = connection.facts
    argv = journal_argv(
        source, systemd_version=facts.systemd_version, uid=facts.uid, cursor=cursor, since=since, lines=lines
    )
    records: list[Record] = []
    async with connection.stream(argv) as stream:
        async for batch in stream.batches():
            records += _records(batch, source, facts.uid)
    if stream.exit_status != 0:
        raise _unreadable(stream, source, connection)
    return records


async def follow(
    connection: Connection,
    source: JournalSource,
    *,
    cursor: str | None = None,
    since: str | None = None,
    lines: int = BACKLOG_LINES,
    pause_s: float = 0.2,
    silence_s: float = FIRST_SILENCE_S,
) -> AsyncIterator[list[Record]]:
    """Batches of records without end: those after `cursor`, or else the newest `lines` (since `since`) and what comes.

    Each record is given once and in order, whatever happens to the link or to journalctl. Where the journal itself
    has lost records, and where the box was rebooted, a Record with `marker` says so; it carries the cursor of the
    record before it, so that any record's cursor is a place to go on from. Lines stored in pieces come whole. Where nothing came for `silence_s`, then for twice
    as long and so on, the journal is asked beside journalctl, which is started anew if it kept something back.
    Raises LinkError once the connection is closed, JournalError if the journal cannot be read although the link is up.
    """
    seam, whole = Seam(cursor), LongLines()
    backlog_read = cursor is not None
    failures = 0
    while True:
        await connection.link.wait_up()
        try:
            if not backlog_read:
                backlog = await _read(connection, source, since=since, lines=lines)
                backlog_read = True
                records = whole.join(seam.join(backlog))
                if records:
                    yield records
            seam.reopen()
            came = False
            facts = connection.facts
            argv = journal_argv(
                source,
                systemd_version=facts.systemd_version,
                uid=facts.uid,
                cursor=seam.cursor,
                since=seam.since or since,
                follow=True,
            )
            async with (
                connection.stream(argv) as stream,
                aclosing(_with_silences(stream.batches(), silence_s)) as batches,
            ):
                async for batch in batches:
                    came = True
                    if batch is None:
                        if source.scope != "supervisor" and await _missed(connection, source, seam, since):
                            break
                        continue
                    records = whole.join(seam.join(_records(batch, source, facts.uid)))
                    if records:
                        yield records
        except LinkError:
            continue  # wait_up tells a link that will come back from one that was closed
        except SessionRefused:
            await asyncio.sleep(LONGEST_PAUSE_S)
            continue
        # journalctl ends by itself when files are vacuumed under it, and when somebody kills it: a normal event. One that
        # kept something back has been left, and the next begins at the same record.
        failures = 0 if came else failures + 1
        if failures == FAILURES_BEFORE_TIME:
            seam.forget_cursor()
        if failures >= FAILURES_BEFORE_END:
            raise _unreadable(stream, source, connection)
        await asyncio.sleep(min(pause_s * 2**failures, LONGEST_PAUSE_S))


async def _with_silences(
    batches: AsyncIterator[list[bytes]], silence_s: float
) -> AsyncGenerator[list[bytes] | None, None]:
    """The batches, and None after each silence: of `silence_s`, then twice as long, up to a minute, until one comes."""
    while True:
        coming = asyncio.ensure_future(anext(batches))
        try:
            longest_s = silence_s
            while not coming.done():
                await asyncio.wait({coming}, timeout=longest_s)
                if not coming.done():
                    yield None
                    longest_s = min(2 * longest_s, LONGEST_SILENCE_S)
            batch = coming.result()
        except StopAsyncIteration:
            return
        finally:
            coming.cancel()
        yield batch


async def _missed(connection: Connection, source: JournalSource, seam: Seam, since: str | None) -> bool:
    """Whether the journal holds a record after the last one given out, though journalctl says nothing.

    A follower that looks at a file in the instant in which journald has counted a record but not yet filed it under its
    fields takes the count for seen, and shows the record only when the next one comes: the last line of a service that
    died could wait for ever.
    """
    try:
        records = await _read(connection, source, cursor=seam.cursor, since=seam.since or since, lines=1)
    except SessionRefused:
        return False  # the box has no channel to spare: asked again after the next silence
    except JournalError:
        return True  # starting anew tells a lost cursor from a journal that cannot be read
    return any(not seam.given_out(record) for record in records)


def _records(lines: Sequence[bytes], source: JournalSource, uid: int) -> list[Record]:
    parsed = (parse_record(line) for line in lines)
    return [record for record in parsed if record is not None and _concerns(record, source, uid)]


def _concerns(record: Record, source: JournalSource, uid: int) -> bool:
    """journald tells of dropped lines by unit in the text alone; those of a user's units under the user's manager."""
    return record.marker != "suppressed" or any(
        name in record.message
        for name in (source.unit, f"user@{uid}.service" if source.scope == "user" else source.unit)
    )


def _unreadable(stream: Stream, source: JournalSource, connection: Connection) -> JournalError:
    said = stream.stderr_tail.decode("utf-8", "replace").strip().splitlines()
    return JournalError(
        f"the journal of {source.unit} cannot be read: {said[-1] if said else f'exit status {stream.exit_status}'}",
        where=connection.target.name,
        mend="`ddtree doctor` says what is missing",
    )
