"""Walk the target's choices through a draft tree: from the root, on to the child that bears the chosen token, until none does.

path = [0, child of 0 whose token is choices[0], ...]; the round keeps choices[path], of which the last is the bonus token.
With a choice sampled at every node this is exact sampling from the target, whatever the tree (arXiv 2604.12989).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Launch, jit, on_triton, pow2, require, tl


@dataclass(frozen=True)
class Accepted:
    """What a walk accepted, in tensors of fixed size. `path` int32 [most], node ids from the root, -1 beyond its end.

    `token_ids` int64 [most]: the tokens the round adds, the bonus last, -1 beyond. `count` int32 [1]: how many.
    """

    path: Tensor
    token_ids: Tensor
    count: Tensor

    @staticmethod
    def empty(most: int, device: torch.device) -> Accepted:
        """Room for a path of `most` nodes: depths + 1."""
        ids = torch.empty(most, dtype=torch.int64, device=device)
        return Accepted(
            torch.empty(most, dtype=torch.int32, device=device), ids, torch.empty(1, dtype=torch.int32, device=device)
        )


def accept_walk(
    token_ids: Tensor, parents: Tensor, live: Tensor, choices: Tensor, depths: int, out: Accepted | None = None
) -> Accepted:
    """token_ids int64 and parents int32 [nodes], live int32 [1], choices int64 [nodes] of a tree at most `depths` deep.

    Raises ValueError that names the argument.
    """
    accepted = out or Accepted.empty(depths + 1, parents.device)
    if not on_triton(parents):
        return reference(token_ids, parents, live, choices, accepted)
    launch(token_ids, parents, live, choices, accepted).run()
    return accepted


def reference(token_ids: Tensor, parents: Tensor, live: Tensor, choices: Tensor, out: Accepted) -> Accepted:
    """`accept_walk` with a dictionary."""
    tokens, chosen, nodes = token_ids.tolist(), choices.tolist(), range(1, int(live))
    child = {(parent, tokens[node]): node for node, parent in enumerate(parents.tolist()) if node in nodes}
    path: list[int] = []
    node: int | None = 0
    while node is not None:
        path.append(node)
        node = child.get((node, chosen[node]))
    out.path.fill_(-1)[: len(path)] = torch.tensor(path, dtype=torch.int32)
    out.token_ids.fill_(-1)[: len(path)] = torch.tensor([chosen[node] for node in path])
    out.count.fill_(len(path))
    return out


@jit(varying=("nodes", "most"))
def accept_walk_kernel(
    tokens_ptr: tl.tensor,
    parents_ptr: tl.tensor,
    live_ptr: tl.tensor,
    choices_ptr: tl.tensor,
    path_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count_ptr: tl.tensor,
    nodes: tl.tensor,
    most: tl.tensor,
    NODES: tl.constexpr,
    MOST: tl.constexpr,
) -> None:
    node = tl.arange(0, NODES)
    place = tl.arange(0, MOST)
    known = (node > 0) & (node < tl.minimum(tl.load(live_ptr), nodes))
    tokens = tl.load(tokens_ptr + node, mask=known, other=-1)
    parents = tl.load(parents_ptr + node, mask=known, other=-1)
    path = tl.full([MOST], -1, dtype=tl.int32)
    emitted = tl.full([MOST], -1, dtype=tl.int64)
    at = 0
    count = 0
    while (at >= 0) & (count < most):
        choice = tl.load(choices_ptr + at)
        path = tl.where(place == count, at, path)
        emitted = tl.where(place == count, choice, emitted)
        count += 1
        at = tl.max(tl.where(known & (parents == at) & (tokens == choice), node, -1), axis=0)
    tl.store(path_ptr + place, path, mask=place < most)
    tl.store(out_ptr + place, emitted, mask=place < most)
    tl.store(count_ptr, count)


def config(arch: int, nodes: int) -> tuple[int, int]:
    """(lanes, warps): one warp while 8 nodes a thread hold the tree, so that no step waits for a block."""
    lanes = max(pow2(nodes), 32)
    return lanes, 1 if lanes <= 256 else 4


def floor(nodes: int, most: int) -> Floor:
    """Reads the tree and the choices on the path, writes the path. What it takes is latency: a reduction an accepted node."""
    return Floor(12 * nodes + 20 * most, 3 * most * nodes)


def launch(token_ids: Tensor, parents: Tensor, live: Tensor, choices: Tensor, out: Accepted) -> Launch:
    """As in `accept_walk`, all contiguous."""
    nodes, most = len(parents), len(out.path)
    require(
        token_ids.dtype is torch.int64 and choices.dtype is torch.int64, "token_ids and choices", "int64", choices.dtype
    )
    require(len(choices) >= nodes, "choices", f"of at least {nodes} nodes", len(choices))
    lanes, warps = config(0, nodes)
    arguments: dict[str, Argument] = {
        "tokens_ptr": token_ids, "parents_ptr": parents, "live_ptr": live, "choices_ptr": choices,
        "path_ptr": out.path, "out_ptr": out.token_ids, "count_ptr": out.count,
        "nodes": nodes, "most": most, "NODES": lanes, "MOST": pow2(most),
    }  # fmt: skip
    return Launch(accept_walk_kernel, (1,), arguments, warps, stages=1)


def cases(arch: int) -> Iterator[Case]:
    """The lane counts budgets come to; paths of a block's depth, and of a lookup's."""
    for nodes, most in ((16, 16), (65, 16), (257, 16), (65, 33)):
        ids = torch.empty(nodes, dtype=torch.int64, device="meta")
        parents = torch.empty(nodes, dtype=torch.int32, device="meta")
        yield (
            f"nodes={nodes} most={most}",
            launch(ids, parents, parents, ids, Accepted.empty(most, torch.device("meta"))),
        )
