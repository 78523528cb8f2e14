"""The engine's log: numbered logfmt lines on standard output, one decode line a window (contracts.md section 3)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TextIO

from engine.events import (
    STAGES,
    CommitsLow,
    Degraded,
    Event,
    Failed,
    Finished,
    Load,
    Prefilled,
    Ready,
    Refused,
    StepSums,
    StepTaken,
)

_BARE = re.compile(r'[^\s"=\\\x00-\x1f\x7f]+')


class Level(IntEnum):
    """Syslog severities, as journald reads them from a `<n>` prefix."""

    ERROR = 3
    WARNING = 4
    INFO = 6


def logfmt(kind: str, fields: Mapping[str, Any]) -> str:
    """`kind key=value …` on one line. None is left out; a list is comma-joined; a value with blanks is quoted as JSON does."""
    return " ".join([kind, *(f"{key}={_value(value)}" for key, value in fields.items() if value is not None)])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, (list, tuple)):
        return ",".join(_value(item) for item in value)
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)


class LineLog:
    """Numbered lines on one stream, written by the engine's thread and by the HTTP side.

    `seq` counts up by one a line and is spent even when a line cannot be written: a reader sees the gap, and the
    decode loop never stops because nobody reads its log.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._seq = 0
        self.lost = 0

    def write(self, kind: str, fields: Mapping[str, Any], level: Level = Level.INFO) -> int:
        """Write one line and return its number."""
        with self._lock:
            self._seq += 1
            line = f"<{level.value}>{logfmt(kind, {'seq': self._seq, **fields})}\n"
            try:
                self._stream.write(line)
                self._stream.flush()
            except OSError:
                self.lost += 1
            return self._seq


@dataclass
class _Window:
    """One request's steps since its last decode line, and the newest of them."""

    last: StepTaken
    sums: StepSums = field(default_factory=StepSums)


class Telemetry:
    """Turns events into log lines. A window is one request's consecutive steps, closed by time or the request's end."""

    def __init__(self, log: LineLog, interval_s: float) -> None:
        self._log = log
        self._interval_ms = interval_s * 1000.0
        self._windows: dict[str, _Window] = {}
        self.last_window: dict[str, Any] | None = None
        """Fields of the newest decode line, for /server_info."""

    def observe(self, event: Event) -> None:
        """Log one event. Steps and ends of requests come from the engine's thread alone."""
        match event:
            case StepTaken():
                self._step(event)
            case Prefilled():
                self._log.write("prefill", _prefill_fields(event))
            case Finished():
                self._close(event.request_id)
                self._log.write("request", _request_fields(event))
            case Refused():
                fields = {"status": event.status, "code": event.code, "param": event.param}
                self._log.write("refused", fields, Level.WARNING)
            case Failed():
                fields = {"req": event.request_id, "where": event.where, "error": event.error}
                self._log.write("error", fields, Level.ERROR)
            case CommitsLow():
                commit_length = round(event.tokens / event.steps, 3)
                fields = {"what": "low_commit_length", "commit_length": commit_length, "steps": event.steps}
                self._log.write("warn", fields, Level.WARNING)
            case Degraded():
                self._log.write("warn", {"what": event.what, "why": event.why}, Level.WARNING)
            case Ready():
                self._log.write("ready", event.figures)

    def _step(self, step: StepTaken) -> None:
        window = self._windows.setdefault(step.request_id, _Window(step))
        window.last = step
        window.sums.add(
            kept=step.kept,
            wall_ms=step.wall_ms,
            nodes=step.round.nodes,
            stages_ms=step.round.stages_ms,
            lookup_tokens=step.lookup_tokens,
        )
        # A request's steps follow each other without a gap, so their sum is the time that has passed.
        if window.sums.wall_ms >= self._interval_ms:
            self._close(step.request_id)

    def _close(self, request_id: str) -> None:
        window = self._windows.pop(request_id, None)
        if window is None:
            return
        fields = _decode_fields(window.last, window.sums)
        seq = self._log.write("decode", fields)
        self.last_window = {"seq": seq, **fields}


def _decode_fields(last: StepTaken, sums: StepSums) -> dict[str, Any]:
    return {
        "req": last.request_id,
        "ctx": last.context,
        **_sum_fields(sums),
        **_load_fields(last.load),
        "budget": last.budget,
        "graph": int(last.round.captured),
        **({"lookup": sums.lookup_tokens} if last.looks_up else {}),
    }


def _sum_fields(sums: StepSums) -> dict[str, Any]:
    return {
        "steps": sums.steps,
        "tokens": sums.tokens,
        "wall_ms": round(sums.wall_ms, 3),
        **{f"{stage}_ms": round(sums.stages_ms[stage], 3) for stage in STAGES},
        "host_ms": round(sums.host_ms, 3),
        "nodes": sums.nodes,
        "hist": list(sums.hist),
    }


def _load_fields(load: Load) -> dict[str, Any]:
    return {
        "running": load.running,
        "queued": load.queued,
        "kv_used": load.kv_used,
        "kv_total": load.kv_total,
        "page": load.page_size,
    }


def _prefill_fields(event: Prefilled) -> dict[str, Any]:
    return {
        "req": event.request_id,
        "tokens": event.prompt_tokens,
        "cached": event.cached_tokens,
        "wall_ms": round(event.prefill_ms, 3),
        "queue_ms": round(event.queue_ms, 3),
        **_load_fields(event.load),
    }


def _request_fields(event: Finished) -> dict[str, Any]:
    return {
        "req": event.request_id,
        "finish": event.finish,
        "prompt_tokens": event.prompt_tokens,
        "output_tokens": event.output_tokens,
        "cached": event.cached_tokens,
        "queue_ms": round(event.queue_ms, 3),
        "prefill_ms": round(event.prefill_ms, 3),
        "ttft_ms": None if event.ttft_ms is None else round(event.ttft_ms, 3),
        **_sum_fields(event.sums),
        "mode": event.mode,
        **_load_fields(event.load),
        "budget": event.budget,
        **({"lookup": event.sums.lookup_tokens} if event.looks_up else {}),
    }
