"""Rolling series of Samples, and what charts need of them: columns that keep spikes, and min/mean/p95 in figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from console.telemetry.sample import Sample


@dataclass(frozen=True)
class Series:
    """The newest `limit` decode windows, oldest first. A value: `extended` gives another one."""

    limit: int
    samples: tuple[Sample, ...] = ()

    def extended(self, more: Iterable[Sample]) -> Series:
        """This series with the decode windows of `more` at its end, the oldest beyond `limit` dropped."""
        windows = tuple(sample for sample in more if sample.kind == "decode")
        if not windows:
            return self
        return replace(self, samples=(*self.samples, *windows)[-self.limit :])


@dataclass(frozen=True)
class Spread:
    """Minimum, mean and 95th percentile (nearest rank) of the figures that are there."""

    low: float
    mean: float
    p95: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of `values` without its gaps; None when nothing is left."""
    present = sorted(value for value in values if value is not None)
    if not present:
        return None
    rank = math.ceil(0.95 * len(present)) - 1
    return Spread(present[0], math.fsum(present) / len(present), present[rank])


def pooled_max(values: Sequence[float | None], columns: int) -> list[float | None]:
    """`values` in at most `columns` columns, each the maximum of its share, so that no spike is lost.

    Fewer values than columns stay one a column. A column whose share has no figure is None: a gap, not a zero.
    """
    if columns < 1:
        raise ValueError(f"columns is {columns}, must be at least 1")
    count = len(values)
    if count <= columns:
        return list(values)
    edges = [i * count // columns for i in range(columns + 1)]
    shares = (values[start:end] for start, end in pairwise(edges))
    return [max((value for value in share if value is not None), default=None) for share in shares]
