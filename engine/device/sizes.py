"""How large a request's next tree is to be, where that has to be known before the draft: a captured round has a fixed size.

A padding row costs what a node costs, so cutting the tree once it is built saves nothing. The sizes on offer are few, each with
a graph; the last trees tell which of them adds the most expected tokens a millisecond (the rate of arXiv 2606.01813).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

SMALLEST = 4
REST = 16
"""After so many rounds no larger than what is best the next larger size is tried: only a draft can tell what it promises by now."""
MEMORY = 0.75
"""How much of what earlier trees promised stays with each round."""


def tree_sizes(budget: int) -> tuple[int, ...]:
    """The sizes on offer: 0, then doubling from the smallest, the budget itself the last."""
    doubling = []
    size = SMALLEST
    while size < budget:
        doubling.append(size)
        size *= 2
    return (0, *doubling, budget)


@dataclass
class TreeSize:
    """A request's tree size, round by round, out of `sizes`. It starts at the largest, which tells of all.

    `promised[n]`: tokens expected of the best n drafted nodes, over the last trees. `rested`: rounds since a larger tree was drafted.
    """

    sizes: tuple[int, ...]
    size: int = -1
    promised: tuple[float, ...] = (1.0,)
    rested: int = 0

    def __post_init__(self) -> None:
        self.size = self.sizes[-1]

    def learn(self, log_weights: Sequence[float], round_ms: Callable[[int], float]) -> None:
        """Settle the next size. `log_weights` of the nodes just drafted, best first; `round_ms` of a round by its size."""
        self._take_in(tuple(accumulate((math.exp(weight) for weight in log_weights), initial=1.0)))
        told = [size for size in self.sizes if size < len(self.promised)]
        best = max(told, key=lambda size: self.promised[size] / round_ms(size))
        larger = [size for size in self.sizes if size > best]
        self.rested = self.rested + 1 if len(log_weights) <= best else 0
        self.size = best
        if self.rested >= REST and larger:
            self.size, self.rested = larger[0], 0

    def _take_in(self, now: tuple[float, ...]) -> None:
        """Mix in what a tree promised; sizes it does not tell of keep what they were said to add."""
        shared = min(len(now), len(self.promised))
        mixed = [
            MEMORY * old + (1 - MEMORY) * new for old, new in zip(self.promised[:shared], now[:shared], strict=True)
        ]
        change = mixed[-1] - self.promised[shared - 1]
        self.promised = (*mixed, *now[shared:], *(old + change for old in self.promised[shared:]))
