"""Bytes -> text: size, encoding and line ends of a script, before anything looks at what it says."""

from __future__ import annotations

import re

from console.experiments.script.fault import Fault, Source

MAX_BYTES = 256 * 1024
_BOM = b"\xef\xbb\xbf"
# PEP 263: only the first two lines count, and only as a comment alone on its line.
_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")  # Unicode's bidirectional embeddings, overrides and isolates
_UTF8_NAMES = frozenset({"utf-8", "utf8", "utf_8", "u8", "utf"})


def read_text(data: bytes) -> tuple[Source | None, tuple[Fault, ...]]:
    """The script's text, or None with the faults that make its bytes unusable; never raises."""
    if len(data) > MAX_BYTES:
        return None, (too_large(len(data)),)
    if data.startswith(_BOM):
        return None, (_at(data, 0, "a byte order mark stands before the first line; save as UTF-8 without BOM"),)
    if (nul := data.find(b"\0")) >= 0:
        return None, (_at(data, nul, "a NUL byte; this is no text file"),)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = data[error.start]
        return None, (_at(data, error.start, f"byte 0x{bad:02x} is not UTF-8; save the file as UTF-8"),)
    if (cr := data.find(b"\r")) >= 0:
        return None, (_at(data, cr, "a carriage return; end lines with a line feed alone (LF, not CRLF)"),)
    source = Source(text)
    if turn := _TURNS.search(text):
        message = f"U+{ord(turn[0]):04X} turns the direction of text, so that the line is shown otherwise than it runs"
        return None, (source.fault_at(turn.start(), message),)
    if not text.strip():
        return None, (Fault(1, 1, "", "the file is empty"),)
    for number, line in enumerate(source.lines[:2], start=1):
        coding = _CODING.match(line)
        if coding and coding[1].lower() not in _UTF8_NAMES:
            message = f"the file declares the encoding {coding[1]}; scripts are UTF-8, drop this line"
            return None, (source.fault(number, coding.start(1) + 1, message),)
    return source, ()


def too_large(size: int) -> Fault:
    """The fault of a file of `size` bytes."""
    return Fault(1, 1, "", f"the file holds {size:,} bytes; a script may hold {MAX_BYTES:,}")


def _at(data: bytes, index: int, message: str) -> Fault:
    start = data.rfind(b"\n", 0, index) + 1
    end = data.find(b"\n", index)
    line = data[start : end if end >= 0 else len(data)]
    column = len(data[start:index].decode("utf-8", errors="replace")) + 1
    shown = line.decode("utf-8", errors="replace").replace("\0", "\ufffd").rstrip("\r")
    return Fault(data.count(b"\n", 0, index) + 1, column, shown, message)
