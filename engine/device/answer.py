"""What the host reads of a round, once: a fixed row of whole numbers, packed on the device and copied in one piece."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device.round import Outcome
from engine.tree import DraftTree
from kernels.accept_walk import Accepted
from kernels.tree_build import TreeTensors, ancestor_words

_HEAD = 3  # sound, accepted tokens, live nodes


@dataclass(frozen=True)
class Answer:
    """One round as the host knows it: the tokens it adds, the tree, its accepted nodes from the root on.

    `sound`: the choices came from finite logits. `stages_ms`: draft, build, verify, walk, commit, as measured where it ran.
    """

    tokens: list[int]
    path: tuple[int, ...]
    tree: DraftTree
    sound: bool
    stages_ms: dict[str, float]
    captured: bool


def size(most: int, nodes: int) -> int:
    """Numbers of the row for a round that adds up to `most` tokens from a tree of `nodes`."""
    return _HEAD + 2 * most + 4 * nodes


def packed(accepted: Accepted, outcome: Outcome) -> Tensor:
    """int64 [size(most, nodes)], on the device. Weights go as the bits of a float32."""
    told = (outcome.sound, accepted.count, outcome.tree.live, accepted.token_ids, accepted.path)
    return torch.cat([*(part.long() for part in told), *_columns(outcome.tree)])


def unpacked(row: Tensor, most: int, stages_ms: dict[str, float], *, captured: bool) -> Answer:
    """What `packed` put in, read on the host."""
    nodes = (len(row) - _HEAD - 2 * most) // 4
    (sound, count, live), tokens, path, *columns = (
        part.tolist() for part in row.split([_HEAD, most, most, nodes, nodes, nodes, nodes])
    )
    tree = _tree_of(columns, live)
    return Answer(tokens[:count], tuple(path[:count]), tree, bool(sound), stages_ms, captured)


def packed_tree(tree: TreeTensors) -> Tensor:
    """int64 [1 + 4 * nodes], on the device: a tree alone, for the host to graft upon."""
    return torch.cat([tree.live.long(), *_columns(tree)])


def unpacked_tree(row: Tensor) -> DraftTree:
    """What `packed_tree` put in, read on the host."""
    nodes = len(row) // 4
    (live,), *columns = (part.tolist() for part in row.split([1, nodes, nodes, nodes, nodes]))
    return _tree_of(columns, live)


def write_tree(tree: DraftTree, room: TreeTensors) -> None:
    """Put a host's tree where a round reads it; nodes beyond it are padding that sees itself alone."""
    padding = len(room.parents) - len(tree)
    parents = [*tree.parents, *[-1] * padding]
    room.live.fill_(len(tree))
    room.token_ids.copy_(torch.tensor([*tree.token_ids, *[0] * padding]))
    room.parents.copy_(torch.tensor(parents, dtype=torch.int32))
    room.depths.copy_(torch.tensor([*tree.depths, *[0] * padding], dtype=torch.int32))
    room.log_weights.copy_(torch.tensor([*tree.log_weights, *[-math.inf] * padding]))
    room.ancestors.copy_(ancestor_words(parents))


def _columns(tree: TreeTensors) -> tuple[Tensor, ...]:
    return (tree.token_ids, tree.parents.long(), tree.depths.long(), tree.log_weights.view(torch.int32).long())


def _tree_of(columns: Sequence[Sequence[int]], live: int) -> DraftTree:
    node_tokens, parents, depths, bits = (tuple(column[:live]) for column in columns)
    weights = tuple(torch.tensor(bits, dtype=torch.int32).view(torch.float32).tolist())
    return DraftTree(node_tokens, parents, depths, weights)
