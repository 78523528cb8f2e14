"""Lines of a saved log: plain text in whatever encoding a shell wrote it, or JSON of journalctl or of a container's log."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import IO, Any

from console.box.journal import message_text
from console.telemetry.parse import Line

_WIDE = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
"""How Windows' shells write what is redirected into a file."""
_BEFORE_JSON = b" \t\x1e" + codecs.BOM_UTF8
"""journalctl's json-seq begins a record with 0x1e."""


def saved_lines(stream: IO[bytes]) -> Iterator[Line]:
    """Every line of the stream, with the stamp that a JSON log keeps beside it."""
    for raw in _narrow(stream):
        yield _line(raw)


def _narrow(stream: IO[bytes]) -> Iterable[bytes]:
    """The lines as bytes of which ASCII is itself."""
    first = stream.readline()
    encoding = _WIDE.get(first[:2])
    if (
        encoding is None or 4 * first.count(0) < len(first) - 2
    ):  # half the bytes of wide text are 0, and few of any noise
        if first:
            yield first
        yield from stream
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    rest = decoder.decode(first[2:])
    for raw in stream:  # cut at the byte of a line end, whose other half is in the next piece
        *lines, rest = (rest + decoder.decode(raw)).split("\n")
        yield from (line.encode() for line in lines)
    if rest := rest + decoder.decode(b"", final=True):
        yield rest.encode()


def _line(raw: bytes) -> Line:
    text = raw.lstrip(_BEFORE_JSON)
    if text.startswith(b"{"):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict) and (line := _of_fields(fields)) is not None:
            return line
    return Line(raw.decode("utf-8", errors="replace"))


def _of_fields(fields: dict[str, Any]) -> Line | None:
    """A record of `journalctl -o json`, with whichever fields were kept, or of a container runtime's JSON log."""
    if "MESSAGE" in fields:
        stamp = next(
            (fields[key] for key in ("__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP") if fields.get(key)), None
        )
        return Line(message_text(fields["MESSAGE"]), _microseconds(stamp))
    if isinstance(fields.get("log"), str):
        time = fields.get("time")
        return Line(fields["log"], time if isinstance(time, str) else None)
    return None


def _microseconds(value: Any) -> str | None:
    try:
        return datetime.fromtimestamp(int(value) / 1e6, UTC).isoformat(timespec="milliseconds")
    except (ValueError, TypeError, OverflowError, OSError):
        return None
