"""`ddtree logs` and `ddtree parse`: journal lines, or the Samples in them."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from console.box.values import Record
from console.errors import ExitCode, UsageError
from console.telemetry.absent import no_decode_line
from console.telemetry.parse import AUTO, End, parse, reader_for
from console.telemetry.reader import bare
from console.telemetry.sample import Sample
from console.verbs.given_files import opened
from console.verbs.on_host import on_host
from console.verbs.samples import sample_line
from console.verbs.saved_lines import saved_lines
from console.verbs.verb import Call
from console.verbs.words import Style, printable

_LEVELS = ("emerg", "alert", "crit", "error", "warning", "notice", "info", "debug")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


async def logs(call: Call) -> ExitCode:
    """The engine's journal on the host: what is there, and with --follow what comes."""
    wanted = _pattern(call.arguments["grep"])
    since = _since(call.arguments["since"], time.time())
    reader = reader_for(AUTO)
    style = call.session.style
    empty = True
    async with on_host(call) as host:
        async for batch in host.records(since=since, follow=call.flag("follow")):
            for record in batch:
                empty = False
                if record.marker is None and wanted is not None and not wanted.search(record.message):
                    continue
                if not call.flag("samples"):
                    call.say(record_json(record), record_line(record, style))
                    continue
                if record.marker in ("gap", "suppressed"):
                    reader.lost(record.message)
                    continue
                for sample in reader.read(bare(record.message), record.time).samples:
                    call.say(sample.to_json(), sample_line(sample))
        if empty and since is None:
            why = await host.why_empty()
            call.tell(style.doubtful(f"no lines: {printable(why.text)}; {why.mend}"))
    if call.flag("samples"):
        for sample in reader.finish():
            call.say(sample.to_json(), sample_line(sample))
    return ExitCode.DONE


def record_json(record: Record) -> dict[str, Any]:
    """One journal line as an object; `marker` tells of lines that the console put in itself."""
    return {
        "time": record.time,
        "level": _LEVELS[record.priority],
        "message": record.message,
        "identifier": record.identifier,
        "pid": record.pid,
        "invocation": record.invocation,
        "cursor": record.cursor,
        "marker": record.marker,
    }


def record_line(record: Record, style: Style) -> str:
    """One journal line in words, control codes shown."""
    if record.marker is not None:
        return style.doubtful(printable(record.message))
    text = f"{record.time}  {_LEVELS[record.priority]:<7}  {printable(record.message)}"
    if record.priority <= 3:
        return style.bad(text)
    return style.doubtful(text) if record.priority == 4 else text


async def parse_logs(call: Call) -> ExitCode:
    """Saved logs -> one Sample a line, and the count of what was read at the end."""
    files = call.paths("file")
    if not files:
        if sys.stdin.isatty():
            raise UsageError("names no file", where="parse", mend="give files, or - for standard input")
        files = (Path("-"),)
    lines = records = skipped = 0
    seen: set[tuple[str, str]] = set()
    for path in files:
        with opened(path) as stream:
            for item in parse(saved_lines(stream), reader_for(call.text("engine"))):
                if isinstance(item, Sample):
                    seen.add((item.engine, item.kind))
                    call.say(item.to_json(), sample_line(item))
                else:
                    lines, records, skipped = lines + item.lines, records + item.records, skipped + item.skipped
    end = End(lines, records, skipped)
    why = no_decode_line(seen)
    told = f"{end.lines} lines, {end.records} records, {end.skipped} lines skipped"
    call.say(end.to_json(), told if why is None else f"{told}\n{why}")
    return ExitCode.DONE


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is no regular expression: {error}", where="--grep") from error


def _since(text: str | None, now_s: float) -> str | None:
    """`--since` as `@SECONDS` of the epoch: a time ago (`90s`, `10m`, `2h`, `3d`), a time in ISO 8601, or that itself."""
    if text is None or re.fullmatch(r"@\d+(\.\d+)?", text):
        return text
    ago = re.fullmatch(r"-?(\d{1,15})\s*(s|m|min|h|d)", text)
    if ago:
        # However long ago: before the epoch there is no journal, and `journalctl` knows no such time.
        return f"@{max(0, int(now_s) - int(ago[1]) * _SECONDS[ago[2]])}"
    try:
        return f"@{max(0.0, datetime.fromisoformat(text).timestamp()):.3f}"
    except ValueError:
        raise UsageError(
            f"{text!r} is no time", where="--since", mend="write 10m, 2h, or 2026-05-04T10:00:00"
        ) from None
