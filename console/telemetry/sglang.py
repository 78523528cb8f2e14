"""SGLang's log -> Sample (facts/ddtree-dflash.md 4.2 and 8.4, facts/measurement.md 6.1).

A batch line is `[time ranks] Decode batch …`, then `key: value` items in an order that changes with the version, so it
is read by key. Its "gen throughput" is tokens since the last decode line over the wall time since then: idle time and
prefill are in it unless both lines belong to one busy stretch. Only inside a stretch is it taken for a rate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from console.telemetry.reader import SKIPPED, Losses, Reading, figure, from_json, number, whole
from console.telemetry.sample import Sample

ENGINE = "sglang"
LONGEST_WINDOW = timedelta(seconds=60)
"""40 decode forwards, the usual interval between two lines, at a step of 1.5 s: beyond it the engine was idle."""

_PREFIX = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)((?: [A-Z_]+\d+)*)\] ")
_BATCH = re.compile(r"(Decode|Prefill) batch(?: \[(\d+)\])?[.,] ")
_POOL = re.compile(r"max_total_num_tokens=\d+(?:, \w+=[^,=]+)+")
_META = re.compile(r'(?:/generate final: )?"meta_info": (\{.*\})')
_RATE, _QUEUE, _RUNNING = "gen throughput (token/s)", "#queue-req", "#running-req"
_RATES = (_RATE, "token usage", "full token usage", "accept len", "accept rate")
_NOT_FINITE = ("nan", "inf", "-inf")
_GRAPHS = ("cuda graph", "cpu graph", "npu graph")
_TAKEN = frozenset(
    {
        _QUEUE,
        _RUNNING,
        "#token",
        "#full token",
        "token usage",
        "full token usage",
        "accept len",
        "accept rate",
        *_GRAPHS,
    }
)


@dataclass(frozen=True)
class _Last:
    """The decode line before this one, of the same rank."""

    at: datetime
    running: int
    kv_tokens: int | None


class SglangReader:
    """Reads SGLang's log and remembers, for each rank, whether the last lines belong to one busy stretch."""

    engine = ENGINE

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self._losses = Losses()

    def read(self, message: str, time: str | None) -> Reading:
        """The line's Sample, if it is a record."""
        reading = self._read(message, time)
        return Reading(True, tuple(map(self._losses.mark, reading.samples))) if reading.samples else reading

    def lost(self, why: str) -> None:
        """See console.telemetry.reader.LogReader. A lost line may have ended the busy stretch."""
        self._last.clear()
        self._losses.add(why)

    def _read(self, message: str, time: str | None) -> Reading:
        finished = _finished_request(message, time)
        if finished is not None:
            return Reading(True, (finished,))
        prefix = _PREFIX.match(message)
        if prefix is None:
            return SKIPPED
        at, rank, text = datetime.fromisoformat(prefix[1]), prefix[2].strip(), message[prefix.end() :]
        stamp = time or at.isoformat()  # SGLang's own has neither zone nor milliseconds
        if _POOL.fullmatch(text):
            return Reading(True, (Sample("ready", ENGINE, stamp, rank or None, extra=_pool(text)),))
        head = _BATCH.match(text)
        items = _items(text[head.end() :]) if head else None
        if head is None or items is None or not {_RUNNING, _QUEUE} <= items.keys():
            return SKIPPED
        if head[2]:
            items["iter"] = int(head[2])
        if head[1] == "Prefill":
            self._last.pop(rank, None)
            return Reading(True, (_prefill(items, stamp, rank),))
        if _RATE not in items:
            return SKIPPED
        sample = _decode(items, stamp, rank, self._in_stretch(items, at, rank))
        self._last[rank] = _Last(at, sample.running or 0, sample.kv_tokens)
        return Reading(True, (sample,))

    def finish(self) -> tuple[Sample, ...]:
        """Nothing: here a record is one line."""
        return ()

    def _in_stretch(self, items: Mapping[str, Any], at: datetime, rank: str) -> bool:
        last = self._last.get(rank)
        if last is None or last.running < 1 or last.running != items[_RUNNING]:
            return False
        if not timedelta(0) <= at - last.at <= LONGEST_WINDOW:
            return False
        tokens = _first(items, "#token", "#full token")
        # One request's pool slots only grow; fewer of them means another request.
        return not (last.running == 1 and last.kv_tokens is not None and tokens is not None and tokens < last.kv_tokens)


def _decode(items: dict[str, Any], time: str, rank: str, in_stretch: bool) -> Sample:
    undefined = _undefined(items)
    running, rate, commit = items[_RUNNING], items.get(_RATE), items.get("accept len")
    notes = ["tokens, steps: the log gives only their ratio", *undefined]
    step_ms = None
    if rate is None:
        notes.append("tok_s, step_ms: need a gen throughput")
    elif not in_stretch:
        notes.append("tok_s, step_ms: the first line of a busy stretch mixes in idle time or prefill")
    elif rate == 0:
        notes.append("step_ms: the rate is 0")
    elif commit is None:
        notes.append("step_ms: needs an accept len")
    elif running != 1:
        notes.append("step_ms: exact only with one request running")
    else:
        step_ms = 1000.0 * commit / rate
    if commit is None and not undefined:
        notes.append("commit_length: no accept len in the line (speculation off)")
    kv_tokens = _first(items, "#token", "#full token")
    if running == 1 and kv_tokens is not None:
        notes.append("context: pool slots in use, high by up to a page")
    return Sample(
        "decode",
        ENGINE,
        time,
        rank or None,
        commit_length=None if commit is None else float(commit),
        step_ms=step_ms,
        tok_s=float(rate) if in_stretch and rate is not None else None,
        context=kv_tokens if running == 1 else None,
        running=running,
        queued=items[_QUEUE],
        kv_fraction=_first(items, "token usage", "full token usage"),
        kv_tokens=kv_tokens,
        accept_rate=items.get("accept rate"),
        graph=_first(items, *_GRAPHS),
        extra=_rest(items),
        notes=tuple(notes),
    )


def _undefined(items: dict[str, Any]) -> list[str]:
    """Takes out of `items` what SGLang could not work out itself, and says which."""
    return [f"{key}: {items.pop(key)!r} is not a number" for key in _RATES if items.get(key) in _NOT_FINITE]


def _prefill(items: dict[str, Any], time: str, rank: str) -> Sample:
    undefined = _undefined(items)
    note = "tok_s: input throughput counts the time since the last prefill, idle included"
    return Sample(
        "prefill",
        ENGINE,
        time,
        rank or None,
        tokens=items.pop("#new-token", None),
        running=items[_RUNNING],
        queued=items[_QUEUE],
        kv_fraction=_first(items, "token usage", "full token usage"),
        graph=_first(items, *_GRAPHS),
        extra=_rest(items),
        notes=(*((note,) if "input throughput (token/s)" in items else ()), *undefined),
    )


def _finished_request(message: str, time: str | None) -> Sample | None:
    """A `/generate` answer's `meta_info`: the one place where SGLang gives the exact number of steps."""
    text = message.strip()
    fragment = _META.fullmatch(text)
    if fragment is None and not (text.startswith("{") and '"meta_info"' in text):
        return None
    try:
        value = from_json(fragment[1] if fragment else text)
    except ValueError:
        return None
    meta = value if fragment else value.get("meta_info")
    completed = whole(meta.get("completion_tokens")) if isinstance(meta, dict) else None
    if completed is None:
        return None
    steps = whole(meta.get("spec_verify_ct"))
    tokens = max(0, completed - 1)  # the first token comes from prefill and belongs to no step
    taken = {"completion_tokens", "spec_verify_ct", "spec_accept_length", "spec_accept_rate"}
    return Sample(
        "request",
        ENGINE,
        time,
        tokens=tokens,
        steps=steps,
        commit_length=tokens / steps if steps else None,
        accept_rate=number(meta.get("spec_accept_rate")),
        extra={key: item for key, item in meta.items() if key not in taken},
        notes=("tok_s, step_ms: e2e_latency holds queue and prefill",),
    )


def _pool(text: str) -> dict[str, Any]:
    return {key: figure(value) for key, _, value in (item.partition("=") for item in text.split(", "))}


def _items(text: str) -> dict[str, Any] | None:
    """`key: value` items; None when one is none, as where two ranks wrote into one line."""
    items: dict[str, Any] = {}
    for item in text.rstrip(", ").split(", "):
        key, colon, value = item.partition(": ")
        if not colon or not value or "[" in item or key in items:
            return None
        items[key] = figure(value)
    counts = [items[key] for key in (_RUNNING, _QUEUE, "#token", "#full token", "#new-token") if key in items]
    rates = [items[key] for key in _RATES if key in items and items[key] not in _NOT_FINITE]
    graphs = [items[key] for key in _GRAPHS if key in items]
    sound = (
        all(whole(count) is not None for count in counts)
        and all(number(rate) is not None for rate in rates)
        and all(type(graph) is bool for graph in graphs)
    )
    return items if sound else None


def _first(items: Mapping[str, Any], *keys: str) -> Any:
    return next((items[key] for key in keys if key in items), None)


def _rest(items: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in items.items() if key not in _TAKEN}
