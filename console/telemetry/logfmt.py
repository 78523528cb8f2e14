"""Log lines in logfmt (contracts.md section 3): one word, then nothing but `key=value` pairs.

A record is taken only when the whole line has that shape. A prompt that an application echoes into its log may
well contain the words of a record; what stands before or after them gives it away.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_LINE_CHARS = 64 * 1024
"""No record is longer; a longer line is somebody's text, and is not worth scanning."""

_HEAD = re.compile(r"(?:<[0-7]>)?([a-z][a-z_]*)(?: |$)")  # the syslog level is still there when no journald took it off
_PAIR = re.compile(r'([A-Za-z_][\w.\-]*)=("(?:[^"\\]|\\.)*"|[^\s"]*)(?: +|$)')


@dataclass(frozen=True)
class Logfmt:
    """A line taken apart: the word at its head, and its values as text, unquoted."""

    head: str
    values: dict[str, str]


def parse_logfmt(line: str) -> Logfmt | None:
    """The record that `line` is, or None when any part of the line is something else.

    Values with blanks are quoted as JSON strings are. A key that comes twice makes the line worthless: two
    processes wrote into each other.
    """
    line = line.rstrip("\r\n ")
    if len(line) > MAX_LINE_CHARS:
        return None
    head = _HEAD.match(line)
    if head is None:
        return None
    if '"' not in line and line.isascii() and line.isprintable():
        values = _plain(line[head.end() :])
        if values is not None:
            return Logfmt(head[1], values)
    return _quoted(line, head)


def _plain(text: str) -> dict[str, str] | None:
    """The pairs of a text without quotes, at a fraction of the cost; None where a closer look is needed."""
    values: dict[str, str] = {}
    parts = text.split()
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            return None
        values[key] = value
    return values if len(values) == len(parts) else None


def _quoted(line: str, head: re.Match[str]) -> Logfmt | None:
    values: dict[str, str] = {}
    position = head.end()
    while position < len(line):
        pair = _PAIR.match(line, position)
        if pair is None or pair[1] in values:
            return None
        value = _unquoted(pair[2])
        if value is None:
            return None
        values[pair[1]] = value
        position = pair.end()
    return Logfmt(head[1], values)


def _unquoted(text: str) -> str | None:
    """`text` without its quotes; None when the escapes in it are broken."""
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return None
