"""What every engine's log reader promises, and how foreign log lines come to it: bare, without colour or prefix."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from console.telemetry.sample import PARTIAL, Sample
from console.telemetry.wrapping import unwrapped

_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15})(?:\.[0-9]+)?")
_LARGEST = 10**15  # no count, time or rate of an engine is beyond; longer digits are somebody's text


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

    def lost(self, why: str) -> None:
        """Lines are missing between the last one and the next; `why` is for the note on the Samples this touches."""
        ...

    def finish(self) -> tuple[Sample, ...]:
        """Samples that only the end of the log completes."""
        ...


class Losses:
    """What was lost since the last Sample; the next one bears it as a note."""

    def __init__(self) -> None:
        self._whys: list[str] = []

    def add(self, why: str) -> None:
        """Lines are missing from here on."""
        if why not in self._whys:
            self._whys.append(why)

    def mark(self, sample: Sample) -> Sample:
        """`sample` with what was lost before it."""
        if not self._whys:
            return sample
        notes = tuple(f"{PARTIAL}{why}" for why in self._whys)
        self._whys.clear()
        return replace(sample, notes=(*sample.notes, *notes))


def bare(line: str) -> str:
    """`line` as the engine wrote it: without colour codes, line end, and what whoever kept it put before it."""
    return unwrapped(line)[0]


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


def from_json(text: str) -> Any:
    """Somebody else's JSON. ValueError for what is none, and for numbers that are not finite, which JSON has not."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value


def whole(value: Any) -> int | None:
    """A count out of somebody else's JSON, or None for what is none."""
    return value if type(value) is int and 0 <= value < _LARGEST else None


def number(value: Any) -> float | None:
    """A figure out of somebody else's JSON, or None for what is none."""
    return float(value) if type(value) in (int, float) and 0 <= value < _LARGEST else None
