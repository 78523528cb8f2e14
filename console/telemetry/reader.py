"""What every engine's log reader promises, and how foreign log lines come to it: bare, without colour or prefix."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

from console.telemetry.sample import Sample

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_JOURNAL_PREFIX = re.compile(
    # journalctl's short formats and syslog files: `<time> <host> <program>[<pid>]: `
    r"(?:[A-Z][a-z]{2} [ 0-9]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r" [\w.\-]+ [\w.\-@/]+(?:\[\d+\])?: "
)
_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")


class Reading(NamedTuple):
    """What one line was: part of a record or not, and the Samples that it completed."""

    taken: bool
    samples: tuple[Sample, ...] = ()


SKIPPED = Reading(taken=False)


class LogReader(Protocol):
    """Takes an engine's log line by line. It may remember what a later line needs to be understood."""

    engine: str

    def read(self, message: str, time: str | None) -> Reading:
        """What the line is. `message` is bare (see `bare`); `time` is its stamp in ISO 8601 where the log gives one."""
        ...

    def finish(self) -> tuple[Sample, ...]:
        """Samples that only the end of the log completes."""
        ...


def bare(line: str) -> str:
    """`line` as the engine wrote it: without colour codes, line end, and the prefix of journalctl's text formats."""
    text = _ANSI.sub("", line).rstrip("\r\n")
    prefix = _JOURNAL_PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def figure(text: str) -> Any:
    """`text` as a log of people's making writes it: `1,024`, `0.41`, `93.20%` (a fraction then), `True`; else as it is."""
    if text in ("True", "False"):
        return text == "True"
    percent = text.endswith("%")
    digits = text.removesuffix("%")
    if not _NUMBER.fullmatch(digits):
        return text
    digits = digits.replace(",", "")
    if percent:
        return round(float(digits) / 100.0, 8)
    return float(digits) if "." in digits else int(digits)
