"""DDTree: the budget's most probable prefixes of a drafted block as one tree (arXiv 2604.12989), and the walk through it.

Pure functions of values. Node 0 is the root, the last committed token; ids follow the order of decreasing weight, so a
parent always comes before its children, and the first b nodes of a tree are the tree of budget b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftTree:
    """A draft tree, one entry a node, root first. `parents[0]` is -1; `log_weights` are natural logs, the root's 0.

    `grafted`: nodes that the drafter did not propose. `spine`: its first choice at each depth, where the order of the nodes does
    not tell.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    log_weights: tuple[float, ...]
    grafted: frozenset[int] = frozenset()
    spine: tuple[int, ...] | None = None

    def __len__(self) -> int:
        """Nodes, the root included: the rows of a verify pass."""
        return len(self.parents)

    def cut(self, nodes: int) -> DraftTree:
        """The tree of its first `nodes` drafted nodes."""
        if nodes + 1 >= len(self):
            return self
        return DraftTree(
            self.token_ids[: nodes + 1],
            self.parents[: nodes + 1],
            self.depths[: nodes + 1],
            self.log_weights[: nodes + 1],
            frozenset(node for node in self.grafted if node <= nodes),
            None if self.spine is None else tuple(node for node in self.spine if node <= nodes),
        )

    def first_choices(self) -> tuple[int, ...]:
        """The drafter's rank-0 nodes from depth 1 on. Without a graft, the first child of its siblings to enter the tree."""
        if self.spine is not None:
            return self.spine
        first_child: dict[int, int] = {}
        for node in range(1, len(self)):
            first_child.setdefault(self.parents[node], node)
        found, at = [], 0
        while at in first_child:
            at = first_child[at]
            found.append(at)
        return tuple(found)

    def path_to(self, node: int) -> list[int]:
        """Node ids from the root to `node`."""
        path = [node]
        while path[-1]:
            path.append(self.parents[path[-1]])
        return path[::-1]


def build_tree(
    seed: int, token_ids: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]], budget: int
) -> DraftTree:
    """The `budget` most probable prefixes under independent positions, best first.

    token_ids and log_probs [depth][rank]: candidates of each depth by falling log-probability, as many ranks as the
    budget or the vocabulary holds. With one rank a depth the tree is a chain. Equal weights: the smaller rank tuple first.
    """
    tokens, parents, depths, weights = [seed], [-1], [0], [0.0]
    # An entry: (-weight, ranks from depth 1 on, parent). Each popped entry offers its next sibling and its first child.
    heap: list[tuple[float, tuple[int, ...], int]] = []
    if token_ids and budget > 0:
        heappush(heap, (-log_probs[0][0], (0,), 0))
    while heap and len(tokens) <= budget:
        negative_weight, ranks, parent = heappop(heap)
        weight, depth, rank = -negative_weight, len(ranks), ranks[-1]
        node = len(tokens)
        tokens.append(token_ids[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        weights.append(weight)
        level = log_probs[depth - 1]
        if rank + 1 < len(level):
            heappush(heap, (-(weight - level[rank] + level[rank + 1]), (*ranks[:-1], rank + 1), parent))
        if depth < len(log_probs):
            heappush(heap, (-(weight + log_probs[depth][0]), (*ranks, 0), node))
    return DraftTree(tuple(tokens), tuple(parents), tuple(depths), tuple(weights))


def visibility(tree: DraftTree) -> Tensor:
    """bool [nodes, nodes]: row i sees column j where j is i or one of its ancestors."""
    visible = np.eye(len(tree), dtype=np.bool_)
    for node in range(1, len(tree)):
        visible[node] |= visible[tree.parents[node]]
    return torch.from_numpy(visible)


def walk(tree: DraftTree, choose: Callable[[int], int]) -> tuple[tuple[int, ...], int]:
    """Follow the target's choices from the root -> (accepted node ids, root first; the bonus token after them).

    `choose(node)` is the target's token after that node; it is asked for visited nodes only.
    """
    child = {(tree.parents[node], tree.token_ids[node]): node for node in range(1, len(tree))}
    path = [0]
    while True:
        token = choose(path[-1])
        following = child.get((path[-1], token))
        if following is None:
            return tuple(path), token
        path.append(following)


def spine_length(tree: DraftTree, path: Sequence[int]) -> int:
    """Tokens the tree's rank-0 nodes alone would have kept, bonus included: 1 + leading accepted nodes of the spine.

    A chain that drafts deeper than the tree's spine might have kept more, but only where the path is that whole spine.
    """
    agreeing = takewhile(lambda pair: pair[0] == pair[1], zip(path[1:], tree.first_choices(), strict=False))
    return 1 + sum(1 for _ in agreeing)
