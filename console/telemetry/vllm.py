"""vLLM's log -> Sample (facts/ddtree-dflash.md 4.7 and 8.4, facts/measurement.md 6.2).

Two lines an interval (about 10 s): the engine's own and the speculation's. Rates are averages over the interval, idle
time included, so none is taken for tok/s. Mean acceptance length = 1 + accepted/drafts: it counts the bonus token, and
only steps that drafted.
"""

from __future__ import annotations

import re
from typing import Any

from console.telemetry.reader import SKIPPED, Losses, Reading, figure, number, whole
from console.telemetry.sample import Sample

ENGINE = "vllm"

_PREFIX = re.compile(
    r"(?:\(\w+ pid=\d+\) )?(?:INFO|WARNING|DEBUG) +(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})? "
    r"\[?[\w./]+:\d+\] (?:Engine (\d+): )?"
)
_ITEM = re.compile(
    # A value may hold `, ` itself (the per-position list), so an item ends only where the next key begins.
    r"([A-Z][\w /\-]*): (.+?)(?=, [A-Z][\w /\-]*: |[.,]? *$)"
)
_SPECULATION, _CUMULATIVE = "SpecDecoding metrics: ", "Speculative metrics: "
_POOL = re.compile(
    r"GPU KV cache size: ([\d,]+) tokens(?:,? *Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x)?"
)
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_UNITS = (" tokens/s", " tokens", " reqs")


class VllmReader:
    """Reads vLLM's log; a record is one line, so nothing is remembered but what was lost."""

    engine = ENGINE

    def __init__(self) -> None:
        self._losses = Losses()

    def read(self, message: str, time: str | None) -> Reading:
        """The line's Sample, if it is a record."""
        prefix = _PREFIX.match(message)
        if prefix is None:
            return SKIPPED
        text, rank = message[prefix.end() :], prefix[1]
        if text.startswith(_SPECULATION):
            sample = _speculation(_items(text.removeprefix(_SPECULATION)), time, rank)
        elif text.startswith(_CUMULATIVE):
            sample = _cumulative(_items(text.removeprefix(_CUMULATIVE)), time, rank)
        elif text.startswith("Avg prompt throughput: "):
            sample = _engine(_items(text), time, rank)
        else:
            sample = _pool(text, time, rank)
        return SKIPPED if sample is None else Reading(True, (self._losses.mark(sample),))

    def lost(self, why: str) -> None:
        """See console.telemetry.reader.LogReader."""
        self._losses.add(why)

    def finish(self) -> tuple[Sample, ...]:
        """Nothing: here a record is one line."""
        return ()


def _engine(items: dict[str, Any], time: str | None, rank: str | None) -> Sample | None:
    running, queued = items.pop("Running", None), items.pop("Waiting", items.pop("Pending", None))  # as V0 calls it
    if whole(running) is None or whole(queued) is None or "Avg generation throughput" not in items:
        return None
    kv = items.pop("GPU KV cache usage", None)
    return Sample(
        "decode",
        ENGINE,
        time,
        rank,
        running=running,
        queued=queued,
        kv_fraction=number(kv) if isinstance(kv, float) else None,
        extra=items,
        notes=(
            "tok_s: an average over the log interval, idle time included",
            "commit_length, step_ms: not in this line",
        ),
    )


def _speculation(items: dict[str, Any], time: str | None, rank: str | None) -> Sample | None:
    accepted, drafted = items.get("Accepted"), items.get("Drafted")
    if whole(accepted) is None or whole(drafted) is None:
        return None
    rate = items.pop("Avg Draft acceptance rate", items.pop("Draft acceptance rate", None))
    said = items.pop("Mean acceptance length", None)
    commit = number(said)
    notes = ["tok_s, step_ms: the log gives no time of the steps themselves"]
    if commit is not None:
        notes.append("commit_length: steps that drafted only")
    elif said is not None:
        notes.append(f"commit_length: {said!r} is not a number")
    else:
        notes.append("commit_length: this version does not print it, nor the number of drafts")
    if rate is not None and not isinstance(rate, float):
        notes.append(f"accept_rate: {rate!r} is not a number")
    return Sample(
        "decode",
        ENGINE,
        time,
        rank,
        commit_length=commit,
        accept_rate=number(rate) if isinstance(rate, float) else None,
        extra=items,
        notes=tuple(notes),
    )


def _cumulative(items: dict[str, Any], time: str | None, rank: str | None) -> Sample | None:
    """vLLM V0: counts since the start of the engine, so no figure of it belongs to a window."""
    if "Number of emitted tokens" not in items:
        return None
    note = "commit_length, accept_rate, tok_s: counts since the start, and no number of steps"
    return Sample("decode", ENGINE, time, rank, extra=items, notes=(note,))


def _pool(text: str, time: str | None, rank: str | None) -> Sample | None:
    pool, concurrency = _POOL.fullmatch(text.strip()), _CONCURRENCY.fullmatch(text.strip())
    extra: dict[str, Any] = {}
    if pool:
        extra["kv_cache_tokens"] = figure(pool[1])
        length, requests = pool[2], pool[3]
    elif concurrency:
        length, requests = concurrency[1], concurrency[2]
    else:
        return None
    if length:
        extra |= {"context_length": figure(length), "maximum_concurrency": figure(requests)}
    return Sample("ready", ENGINE, time, rank, extra=extra)


def _items(text: str) -> dict[str, Any]:
    return {key: _value(value) for key, value in _ITEM.findall(text)}


def _value(text: str) -> Any:
    for unit in _UNITS:
        text = text.removesuffix(unit)
    parts = text.split(", ")
    return figure(text) if len(parts) == 1 else [figure(part) for part in parts]
