"""Timing on a GPU, and the rows of the last table."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

CALLS, REPLAYS = 8, 7
"""Calls in a captured graph, and replays of it whose median counts."""


@dataclass(frozen=True)
class Bench:
    """Where to run. In a rehearsal (`measures` False, on a CPU) everything runs once and every figure is nan."""

    device: torch.device
    measures: bool

    def size(self, real: int, toy: int) -> int:
        """`real` on a GPU, `toy` in a rehearsal."""
        return real if self.measures else toy


@dataclass(frozen=True)
class Row:
    """A line of the last table; figures that do not apply are nan."""

    what: str
    case: str
    us: float = math.nan
    gb_s: float = math.nan
    of_copy: float = math.nan
    note: str = ""
    host: float = math.nan
    """The host's part of a captured round, in the rows of those."""


def microseconds(bench: Bench, calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds a call, out of a captured graph, so that no launch waits for the host. `calls` take turns.

    Give as many calls, each on memory of its own, as it takes to pass the L2 cache.
    """
    for call in calls:
        call()
    if not bench.measures:
        return math.nan
    rounds = max(1, math.ceil(CALLS / len(calls)))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) * 1e3 / (rounds * len(calls)))
    return median(times)


def copies(bench: Bench, bytes_each: int, make: Callable[[], Tensor], most: int = 64) -> list[Tensor]:
    """As many tensors as pass the L2 cache (256 MB together), at most `most`."""
    count = min(most, max(1, math.ceil(256e6 / max(bytes_each, 1)))) if bench.measures else 1
    return [make() for _ in range(count)]


def copy_bandwidth(bench: Bench) -> float:
    """Bytes a second of a large copy, read and write together: what this memory gives."""
    size = bench.size(1 << 30, 1 << 10)
    source, target = (torch.empty(size, dtype=torch.uint8, device=bench.device) for _ in range(2))
    return 2 * size / (microseconds(bench, [lambda: target.copy_(source)]) * 1e-6)


def row_of(what: str, case: str, us: float, floor_bytes: int, copy: float, note: str = "") -> Row:
    """A row with the floor's bytes over the time, and what share of the copy bandwidth that is."""
    rate = floor_bytes / (us * 1e-6)
    return Row(what, case, us, rate / 1e9, rate / copy, note)


def print_table(rows: Sequence[Row]) -> None:
    """The one table, last."""

    def shown(value: float, form: str) -> str:
        return "" if math.isnan(value) else form.format(value)

    lines = [("what", "case", "us", "GB/s of floor", "of copy", "note")]
    for row in rows:
        figures = (shown(row.us, "{:.1f}"), shown(row.gb_s, "{:.0f}"), shown(row.of_copy, "{:.0%}"))
        lines.append((row.what, row.case, *figures, row.note))
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()
