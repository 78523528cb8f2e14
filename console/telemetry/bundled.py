"""The bundled engine's log lines -> Sample (contracts.md sections 3 and 7).

The engine logs sums over a window, never means, so every figure here is a ratio of sums:
commit length = tokens/steps, step time = wall_ms/steps, rate = tokens/wall.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from operator import mul
from typing import Any, cast

from console.telemetry.logfmt import Logfmt, parse_logfmt
from console.telemetry.reader import SKIPPED, Losses, Reading
from console.telemetry.sample import Sample, SampleKind

ENGINE = "bundled"
STAGES = ("draft", "build", "verify", "walk", "commit", "host")
"""Stages of a round, in the order in which they run; `<stage>_ms` in the line."""

_PROOF: Mapping[SampleKind, tuple[frozenset[str], ...]] = {
    # One key of each set must be there before a line counts as a record of that kind.
    "decode": (frozenset({"seq", "req"}), frozenset({"tokens", "steps"})),
    "prefill": (frozenset({"seq", "req"}),),
    "request": (frozenset({"seq", "req"}),),
    "ready": (frozenset({"seq", "version", "model", "kv_total", "page_size", "context_length"}),),
}
_COUNTED = ("refused", "error")
"""Heads of lines that are counted and make no Sample."""
_MOST_DIGITS = 18
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]+)?([eE][+-][0-9]{1,3})?")
_STAGE_KEYS = tuple((stage, f"{stage}_ms") for stage in STAGES)
_NUMBERS = (int, float)  # and no bool, which is an int to isinstance
_TAKEN = frozenset(
    {"tokens", "steps", "ctx", "running", "queued", "graph", "hist", "wall_ms", *(key for _, key in _STAGE_KEYS)}
)


def parse_line(message: str, time: str | None = None) -> Sample | None:
    """The Sample that `message` is, or None when it is no record that makes one (`refused`, `error`, other text).

    `time` is the journal's stamp in ISO 8601: the line itself carries none.
    """
    record = parse_logfmt(message)
    return None if record is None else _sample_of(record, time)


def _sample_of(record: Logfmt, time: str | None) -> Sample | None:
    if record.head not in _PROOF:
        return None
    kind = cast(SampleKind, record.head)
    if not all(proof & record.values.keys() for proof in _PROOF[kind]):
        return None
    if kind == "ready":  # settings and versions, no figures
        return Sample(kind, ENGINE, time, extra=_typed_all(record.values))
    return _Window(kind, record.values).sample(time)


class BundledReader:
    """Reads a log line by line and notes where lines were lost: by the engine's own count, which knows best, or by what
    the journal says before there is a count to go by."""

    engine = ENGINE

    def __init__(self) -> None:
        self._last_seq: int | None = None
        self._losses = Losses()

    def read(self, message: str, time: str | None) -> Reading:
        """The line's Sample, if it is a record."""
        record = parse_logfmt(message)
        if record is None:
            return SKIPPED
        sample = _sample_of(record, time)
        if sample is not None or record.head in _COUNTED:
            self._count(_typed(record.values.get("seq", "")))
        return SKIPPED if sample is None else Reading(True, (self._losses.mark(sample),))

    def lost(self, why: str) -> None:
        """See console.telemetry.reader.LogReader. With a count to go by, only the count tells of a loss."""
        if self._last_seq is None:
            self._losses.add(why)

    def _count(self, seq: Any) -> None:
        if type(seq) is not int:
            return
        before, self._last_seq = self._last_seq, seq
        if before is not None and seq > before + 1:  # a count that falls is a restart, not a loss
            lost = "1 line" if seq == before + 2 else f"{seq - before - 1} lines"
            self._losses.add(f"{lost} lost before this one (seq {before}, then {seq})")

    def finish(self) -> tuple[Sample, ...]:
        """Nothing: here a record is one line."""
        return ()


class _Window:
    """One line's sums, and the notes gathered while figures are made of them."""

    def __init__(self, kind: SampleKind, values: Mapping[str, str]) -> None:
        self.kind = kind
        self.values = values
        self.typed = _typed_all(values)
        self.notes: list[str] = []

    def sample(self, time: str | None) -> Sample:
        tokens, steps, wall_ms = self.count("tokens"), self.count("steps"), self.number("wall_ms")
        hist = self.hist(tokens, steps)
        kv_used, kv_total, page = self.count("kv_used"), self.count("kv_total"), self.count("page")
        graph = self.values.get("graph")
        stepped = self.kind != "prefill"
        cached = None if stepped else self.count("cached")
        computed = tokens - cached if tokens is not None and cached is not None and cached <= tokens else tokens
        return Sample(
            self.kind,
            ENGINE,
            time,
            tokens=tokens,
            steps=steps,
            commit_length=self.ratio("commit_length", tokens, steps, "tokens", "steps") if stepped else None,
            step_ms=self.ratio("step_ms", wall_ms, steps, "wall_ms", "steps") if stepped else None,
            tok_s=self.ratio("tok_s", None if computed is None else computed * 1000.0, wall_ms, "tokens", "wall_ms"),
            context=self.count("ctx"),
            running=self.count("running"),
            queued=self.count("queued"),
            kv_fraction=kv_used / kv_total if kv_used is not None and kv_total else None,
            kv_tokens=kv_used * page if kv_used is not None and page is not None else None,
            graph={"1": True, "0": False}.get(graph) if graph is not None else None,
            stages_ms=self.stages(steps) if stepped else None,
            hist=hist,
            extra={key: value for key, value in self.typed.items() if key not in _TAKEN},
            notes=tuple(self.notes),
        )

    def number(self, key: str) -> float | None:
        """The value of `key`; a note when it is there and is no finite number at or above zero."""
        value: Any = self.typed.get(key)
        if type(value) in _NUMBERS and value >= 0:
            return value
        if value is not None:
            self.notes.append(f"{key}: {self.values[key]!r} is not a number")
        return None

    def count(self, key: str) -> int | None:
        """The value of `key` as a whole number."""
        value = self.number(key)
        if value is None or isinstance(value, int):
            return value
        self.notes.append(f"{key}: {value!r} is not a whole number")
        return None

    def ratio(
        self, figure: str, over: float | None, under: float | None, over_name: str, under_name: str
    ) -> float | None:
        """`over`/`under`, or None and a note that says what is missing."""
        if over is not None and under:
            return over / under
        missing = [name for name, value in ((over_name, over), (under_name, under)) if value is None]
        if missing:
            self.notes.append(f"{figure}: the line gives no {' and no '.join(missing)}")
            return None
        self.notes.append(f"{figure}: {under_name} is 0")
        return None

    def stages(self, steps: int | None) -> dict[str, float] | None:
        """Milliseconds a step of each stage the line names."""
        if not steps:
            return None
        out: dict[str, float] = {}
        for stage, key in _STAGE_KEYS:
            value = self.number(key)
            if value is not None:
                out[stage] = value / steps
        return out or None

    def hist(self, tokens: int | None, steps: int | None) -> tuple[int, ...] | None:
        """Steps by tokens kept; a note when it does not add up to the line's own sums."""
        text = self.values.get("hist")
        if not text:
            return None
        parts = text.split(",")
        if not all(map(str.isdecimal, parts)):
            self.notes.append(f"hist: {text!r} is not a list of counts")
            return None
        hist = tuple(map(int, parts))
        if steps is not None and sum(hist) != steps:
            self.notes.append(f"hist: counts {sum(hist)} steps, the line {steps}")
        kept = sum(map(mul, hist, range(1, len(hist) + 1)))
        if tokens is not None and kept != tokens:
            self.notes.append(f"hist: counts {kept} tokens, the line {tokens}")
        return hist


def _typed_all(values: Mapping[str, str]) -> dict[str, Any]:
    # A hash may look like a number, and would lose its leading zeros as one.
    return {key: value if key.endswith("sha") else _typed(value) for key, value in values.items()}


def _typed(text: str) -> Any:
    """`text` as the engine meant it: true/false, int, finite float, or as it is."""
    if len(text) <= _MOST_DIGITS and text.isascii():  # the plain figures that a line is made of, at the least cost
        whole, dot, part = text.partition(".")
        if whole.isdecimal() and (part.isdecimal() or not dot):
            return float(text) if dot else int(text)
    if text == "true" or text == "false":
        return text == "true"
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if number.end(2) < 0 and number.end(1) < 0:
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else text
