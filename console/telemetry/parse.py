"""Saved logs -> Samples: which engine's reader takes which line, and what was skipped (`ddtree parse`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from console.telemetry.bundled import BundledReader
from console.telemetry.llamacpp import LlamaCppReader
from console.telemetry.logfmt import MAX_LINE_CHARS
from console.telemetry.reader import SKIPPED, LogReader, Reading
from console.telemetry.sample import Sample
from console.telemetry.sglang import SglangReader
from console.telemetry.vllm import VllmReader
from console.telemetry.wrapping import unwrapped

READERS: Mapping[str, Callable[[], LogReader]] = {
    "bundled": BundledReader,
    "sglang": SglangReader,
    "vllm": VllmReader,
    "llamacpp": LlamaCppReader,
}
AUTO = "auto"


@dataclass(frozen=True)
class Line:
    """One line of a log: its text, and its stamp in ISO 8601 where the log keeps one beside the text."""

    text: str
    time: str | None = None


@dataclass(frozen=True)
class End:
    """What was read: every line, the Samples made, and the lines that belong to no record."""

    lines: int
    records: int
    skipped: int

    def to_json(self) -> dict[str, object]:
        """The object that `ddtree parse` ends with."""
        return {"kind": "end", "lines": self.lines, "records": self.records, "skipped": self.skipped}


class AutoReader:
    """Gives each line to the first engine whose record it is. The engines' records have no shape in common."""

    engine = AUTO

    def __init__(self) -> None:
        self._readers = tuple(make() for make in READERS.values())

    def read(self, message: str, time: str | None) -> Reading:
        """What the line is to the first reader that takes it."""
        samples: tuple[Sample, ...] = ()
        for reader in self._readers:
            reading = reader.read(message, time)
            samples += reading.samples
            if reading.taken:
                return Reading(True, samples)
        return Reading(False, samples)

    def lost(self, why: str) -> None:
        """See console.telemetry.reader.LogReader. Whose lines they were is not known before the next record."""
        for reader in self._readers:
            reader.lost(why)

    def finish(self) -> tuple[Sample, ...]:
        """What the readers still hold."""
        return tuple(sample for reader in self._readers for sample in reader.finish())


def reader_for(engine: str) -> LogReader:
    """A fresh reader for `engine`, one of READERS or `auto`."""
    return AutoReader() if engine == AUTO else READERS[engine]()


def parse(lines: Iterable[Line], reader: LogReader) -> Iterator[Sample | End]:
    """Every Sample in `lines`, in their order; the last item is the End."""
    count = records = skipped = 0
    for line in lines:
        count += 1
        reading = SKIPPED
        if len(line.text) <= MAX_LINE_CHARS:  # a longer one than any record is somebody's text, and not worth scanning
            text, stamp = unwrapped(line.text)
            reading = reader.read(text, line.time or stamp)
        skipped += not reading.taken
        records += len(reading.samples)
        yield from reading.samples
    rest = reader.finish()
    yield from rest
    yield End(count, records + len(rest), skipped)
