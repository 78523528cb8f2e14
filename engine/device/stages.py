"""When the stages of a device round ended: by the host's clock on a processor, by events on a GPU, captured or not."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import torch

from engine.events import STAGES

MARKS = len(STAGES) + 1
"""The start and the end of each stage."""


class HostStages:
    """Marks by the host's clock: right where work is done by the time a call returns."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        """A stage ends here, or the first begins."""
        self._times.append(perf_counter())

    def milliseconds(self) -> dict[str, float]:
        """Stage -> its time."""
        spans = [(later - earlier) * 1e3 for earlier, later in pairwise(self._times)]
        return dict(zip(STAGES, spans, strict=True))


class EventStages:
    """Marks by CUDA events. Captured into a graph they are taken anew by each replay, so they are made once a graph."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(MARKS)]
        self._next = 0

    def mark(self) -> None:
        """Record the next event; after the last comes the first again."""
        self._events[self._next % MARKS].record()
        self._next += 1

    def milliseconds(self) -> dict[str, float]:
        """Stage -> its time on the GPU. The round must have ended."""
        spans = [earlier.elapsed_time(later) for earlier, later in pairwise(self._events)]
        return dict(zip(STAGES, spans, strict=True))
