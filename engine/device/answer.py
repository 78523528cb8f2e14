"""What the host reads of a round, once: a fixed row of whole numbers, packed on the device and copied in one piece."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device.round import Outcome
from engine.tree import DraftTree
from kernels.accept_walk import Accepted

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
    tree = outcome.tree
    parts = (
        outcome.sound,
        accepted.count,
        tree.live,
        accepted.token_ids,
        accepted.path,
        tree.token_ids,
        tree.parents,
        tree.depths,
        tree.log_weights.view(torch.int32),
    )
    return torch.cat([part.long() for part in parts])


def unpacked(row: Tensor, most: int, stages_ms: dict[str, float], *, captured: bool) -> Answer:
    """What `packed` put in, read on the host."""
    nodes = (len(row) - _HEAD - 2 * most) // 4
    (sound, count, live), tokens, path, *columns = (
        part.tolist() for part in row.split([_HEAD, most, most, nodes, nodes, nodes, nodes])
    )
    node_tokens, parents, depths, bits = (tuple(column[:live]) for column in columns)
    weights = tuple(torch.tensor(bits, dtype=torch.int32).view(torch.float32).tolist())
    tree = DraftTree(node_tokens, parents, depths, weights)
    return Answer(tokens[:count], tuple(path[:count]), tree, bool(sound), stages_ms, captured)
