"""How large a tree is worth verifying: the adaptive budget (arXiv 2606.01813), for one request or a batch together.

A node is added while it raises expected tokens a millisecond: (requests + sum of node probabilities) over the time of draft and
verification. With a cost that is convex in the rows the rate has one peak, so the first fall is the place to stop.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise

Points = tuple[tuple[float, float], ...]
"""(x, y) in order of x, joined by straight lines."""


@dataclass(frozen=True)
class RoundCost:
    """Milliseconds of a round as measured: `draft_ms`, and `verify` by context: (tokens cached, (rows, ms) points)."""

    draft_ms: float
    verify: tuple[tuple[int, Points], ...]

    def verify_ms(self, rows: int, context: int) -> float:
        """The time of verifying `rows` rows at so many cached tokens a request; between contexts in proportion."""
        contexts = [measured for measured, _ in self.verify]
        above = min(bisect_right(contexts, context), len(contexts) - 1)
        below = max(above - 1, 0)
        low, high = line(self.verify[below][1], rows), line(self.verify[above][1], rows)
        span = contexts[above] - contexts[below]
        share = min(max((context - contexts[below]) / span, 0.0), 1.0) if span else 0.0
        return low + (high - low) * share


def sizes_worth_their_time(
    log_weights: Sequence[Sequence[float]], draft_ms: float, verify_ms: Callable[[int], float]
) -> list[int]:
    """Drafted nodes to keep of each request's tree, roots left out; `verify_ms` is of all requests' rows together.

    log_weights[request]: those of its drafted nodes, best first, as trees have them.
    """
    requests = len(log_weights)
    kept = [0] * requests
    expected, rows = float(requests), requests
    rate = expected / (draft_ms + verify_ms(rows))
    each = [[(-weight, number) for weight in weights] for number, weights in enumerate(log_weights)]
    for negative_weight, number in merge(*each):
        longer = expected + math.exp(-negative_weight)
        better = longer / (draft_ms + verify_ms(rows + 1))
        if better <= rate:
            break
        expected, rows, rate = longer, rows + 1, better
        kept[number] += 1
    return kept


def convex(points: Points) -> Points:
    """The largest convex rising line below measured points: noise must not make a larger tree look cheaper."""
    hull: list[tuple[float, float]] = []
    lowest = math.inf
    rising = []
    for x, y in reversed(points):
        lowest = min(lowest, y)
        rising.append((x, lowest))
    for point in reversed(rising):
        while len(hull) > 1 and slope(hull[-2], hull[-1]) >= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return tuple(hull)


def slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    """Of the line through two points."""
    return (right[1] - left[1]) / (right[0] - left[0])


def line(points: Points, x: float) -> float:
    """The value at x; before the first point its own, after the last on along the last piece."""
    if x <= points[0][0] or len(points) == 1:
        return points[0][1]
    left, right = next(((left, right) for left, right in pairwise(points) if x <= right[0]), (points[-2], points[-1]))
    return left[1] + slope(left, right) * (x - left[0])
