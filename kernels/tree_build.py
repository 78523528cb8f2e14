"""Draft tree on the device: the budget's most probable prefixes under independent positions, best first (arXiv 2604.12989).

The same nodes in the same order as `engine.tree.build_tree`: best-first search whose every popped prefix offers its next
sibling and its first child. One warp holds the frontier, one entry a lane: popping frees a lane for the sibling, the
child takes a new one, so budget + 1 lanes do. Weights are sums of float32 log-probabilities in float64, formed in the
heap's own order of additions. Equal weights: the smaller rank tuple first, 8 bits a rank in two 64-bit words, hence at most
16 depths and 256 ranks. A level-wise build needs a sort a depth instead of a reduction a node, and no fewer launches.

With `costs`, the search stops before the node that would lower (1 + expected accepted drafts) / cost, the adaptive
budget of arXiv 2606.01813: costs[n] is the time of a round with n drafted nodes, in any one unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Launch, cdiv, jit, on_triton, pow2, require, tl

MOST_DEPTHS, MOST_RANKS = 16, 256


@dataclass(frozen=True)
class TreeTensors:
    """A draft tree of fixed size, node 0 the root; nodes at or after `live` are padding that sees itself alone.

    token_ids int64 [nodes]; parents int32 [nodes], -1 for the root and padding; depths int32 [nodes]; log_weights float32
    [nodes]; ancestors int32 [nodes, ceil(nodes / 32)], bit j of row i set where j is i or an ancestor; live int32 [1].
    """

    token_ids: Tensor
    parents: Tensor
    depths: Tensor
    log_weights: Tensor
    ancestors: Tensor
    live: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of their names above."""
        return (self.token_ids, self.parents, self.depths, self.log_weights, self.ancestors, self.live)

    @staticmethod
    def empty(nodes: int, device: torch.device) -> TreeTensors:
        """Room for a tree of `nodes`."""
        ids = torch.empty(nodes, dtype=torch.int64, device=device)
        parents, depths = torch.empty(2, nodes, dtype=torch.int32, device=device)
        ancestors = torch.empty(nodes, cdiv(nodes, 32), dtype=torch.int32, device=device)
        live = torch.empty(1, dtype=torch.int32, device=device)
        return TreeTensors(ids, parents, depths, torch.empty(nodes, device=device), ancestors, live)


def tree_build(
    seed: Tensor,
    token_ids: Tensor,
    log_probs: Tensor,
    budget: int,
    out: TreeTensors | None = None,
    costs: Tensor | None = None,
) -> TreeTensors:
    """The tree of up to `budget` drafted nodes, in `out` where given.

    seed int64 [1]: the root's token. token_ids int64 and log_probs float32 [depths, ranks]: candidates by falling
    probability, as many ranks as the budget or the vocabulary holds. costs float32 [budget + 1] or None.
    Raises ValueError that names the argument.
    """
    depths, ranks = log_probs.shape
    require(depths <= MOST_DEPTHS, "log_probs", f"of at most {MOST_DEPTHS} depths", depths)
    require(ranks <= MOST_RANKS, "log_probs", f"of at most {MOST_RANKS} ranks", ranks)
    require(
        costs is None or len(costs) == budget + 1, "costs", f"[{budget + 1}]", None if costs is None else len(costs)
    )
    tree = out or TreeTensors.empty(budget + 1, log_probs.device)
    require(len(tree.parents) == budget + 1, "out", f"of {budget + 1} nodes", len(tree.parents))
    if not on_triton(log_probs):
        return reference(seed, token_ids, log_probs, budget, tree, costs)
    for launch in launches(seed, token_ids.contiguous(), log_probs.contiguous(), tree, costs):
        launch.run()
    return tree


def reference(
    seed: Tensor, token_ids: Tensor, log_probs: Tensor, budget: int, tree: TreeTensors, costs: Tensor | None
) -> TreeTensors:
    """`tree_build` with a heap."""
    ids, levels = token_ids.tolist(), log_probs.double().tolist()
    price = None if costs is None else costs.tolist()
    tokens, parents, depths, weights = [int(seed)], [-1], [0], [0.0]
    heap: list[tuple[float, tuple[int, ...], int]] = [(-levels[0][0], (0,), 0)] if budget and levels else []
    promised = 1.0
    while heap and len(tokens) <= budget:
        negative, ranks, parent = heappop(heap)
        weight, depth, rank, node = -negative, len(ranks), ranks[-1], len(tokens)
        if price and (promised + math.exp(weight)) / price[node] <= promised / price[node - 1]:
            break
        promised += math.exp(weight)
        tokens.append(ids[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        weights.append(weight)
        level = levels[depth - 1]
        if rank + 1 < len(level):
            heappush(heap, (-(weight - level[rank] + level[rank + 1]), (*ranks[:-1], rank + 1), parent))
        if depth < len(levels):
            heappush(heap, (-(weight + levels[depth][0]), (*ranks, 0), node))
    live, padding = len(tokens), budget + 1 - len(tokens)
    tree.live.fill_(live)
    for tensor, values, fill in (
        (tree.token_ids, tokens, 0), (tree.parents, parents, -1), (tree.depths, depths, 0), (tree.log_weights, weights, -math.inf),
    ):  # fmt: skip
        tensor.copy_(torch.tensor([*values, *[fill] * padding]))
    tree.ancestors.copy_(ancestor_words(parents + [-1] * padding))
    return tree


def ancestor_words(parents: list[int]) -> Tensor:
    """Parents by node, -1 for none -> ancestor words int32 [nodes, ceil(nodes / 32)]."""
    rows: list[int] = []
    for node, parent in enumerate(parents):
        rows.append(1 << node | (rows[parent] if parent >= 0 else 0))
    words = [[row >> 32 * word & 0xFFFFFFFF for word in range(cdiv(len(parents), 32))] for row in rows]
    return torch.tensor(words, dtype=torch.int64).to(torch.int32)  # bit 31 becomes the sign


@jit()
def better(
    score: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    entry: tl.tensor,
    other_score: tl.tensor,
    other_high: tl.tensor,
    other_low: tl.tensor,
    other_entry: tl.tensor,
) -> tl.tensor:
    """Of two frontier entries the more probable; of equals the one of the smaller rank tuple."""
    earlier = (other_high < high) | ((other_high == high) & (other_low < low))
    swap = (other_score > score) | ((other_score == score) & earlier)
    return (
        tl.where(swap, other_score, score),
        tl.where(swap, other_high, high),
        tl.where(swap, other_low, low),
        tl.where(swap, other_entry, entry),
    )


@jit(varying=("depths", "ranks", "budget"))
def tree_build_kernel(
    seed_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    log_probs_ptr: tl.tensor,
    costs_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    parents_ptr: tl.tensor,
    depths_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    live_ptr: tl.tensor,
    depths: tl.tensor,
    ranks: tl.tensor,
    budget: tl.tensor,
    LANES: tl.constexpr,
    ADAPTIVE: tl.constexpr,
) -> None:
    lane = tl.arange(0, LANES)
    first = tl.load(log_probs_ptr).to(tl.float64)
    score = tl.where(lane == 0, first, float("-inf"))
    # Ranks of depths 1..8 and 9..16, from the top bits down, less 2^63: signed order is the tuples' order.
    high = tl.full([LANES], -(2**63), dtype=tl.int64)
    low = tl.full([LANES], -(2**63), dtype=tl.int64)
    # (lane, parent, depth, rank), 16 bits each.
    entry = (lane.to(tl.int64) << 48) | (1 << 16)
    tokens = tl.where(lane == 0, tl.load(seed_ptr), 0)
    parents = tl.full([LANES], -1, dtype=tl.int32)
    node_depths = tl.zeros([LANES], dtype=tl.int32)
    weights = tl.where(lane == 0, 0.0, float("-inf"))
    node = 1
    promised = 1.0
    going = budget > 0
    while going:
        weight, top_high, top_low, top = tl.reduce((score, high, low, entry), 0, better)
        going = weight > float("-inf")
        if ADAPTIVE:
            gained = promised + tl.exp(weight.to(tl.float32))
            now = tl.load(costs_ptr + node - 1)
            going = going & (gained / tl.load(costs_ptr + node) > promised / now)
            promised = gained
        if going:
            freed = (top >> 48).to(tl.int32)
            parent = ((top >> 32) & 65535).to(tl.int32)
            depth = ((top >> 16) & 65535).to(tl.int32)
            rank = (top & 65535).to(tl.int32)
            at = (depth - 1) * ranks + rank
            here = lane == node
            tokens = tl.where(here, tl.load(ids_ptr + at), tokens)
            parents = tl.where(here, parent, parents)
            node_depths = tl.where(here, depth, node_depths)
            weights = tl.where(here, weight.to(tl.float32), weights)
            # The sibling takes the freed lane, the first child a new one. The last rank has no sibling, the last depth no child.
            sibling = lane == freed
            further = tl.minimum(rank + 1, ranks - 1)
            level = tl.load(log_probs_ptr + at).to(tl.float64)
            next_level = tl.load(log_probs_ptr + (depth - 1) * ranks + further).to(tl.float64)
            beside = tl.where(rank + 1 < ranks, (weight - level) + next_level, float("-inf"))
            step = tl.full([], 1, dtype=tl.int64) << (8 * ((16 - depth) % 8)).to(tl.int64)
            score = tl.where(sibling, beside, score)
            high = tl.where(sibling, top_high + tl.where(depth <= 8, step, 0), high)
            low = tl.where(sibling, top_low + tl.where(depth <= 8, 0, step), low)
            entry = tl.where(sibling, top + 1, entry)
            deeper = tl.load(log_probs_ptr + tl.minimum(depth, depths - 1) * ranks).to(tl.float64)
            below = tl.where(depth < depths, weight + deeper, float("-inf"))
            score = tl.where(here, below, score)
            high = tl.where(here, top_high, high)
            low = tl.where(here, top_low, low)
            child = (lane.to(tl.int64) << 48) | (tl.cast(node, tl.int64) << 32) | ((depth + 1).to(tl.int64) << 16)
            entry = tl.where(here, child, entry)
            node += 1
            going = node <= budget
    tl.store(tokens_ptr + lane, tokens, mask=lane <= budget)
    tl.store(parents_ptr + lane, parents, mask=lane <= budget)
    tl.store(depths_ptr + lane, node_depths, mask=lane <= budget)
    tl.store(weights_ptr + lane, weights, mask=lane <= budget)
    tl.store(live_ptr, node)


@jit(varying=("nodes",))
def tree_ancestors_kernel(
    parents_ptr: tl.tensor,
    words_ptr: tl.tensor,
    nodes: tl.tensor,
    DEPTHS: tl.constexpr,
    WORDS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    word = tl.arange(0, COLUMNS)[None, :]
    bits = tl.zeros([ROWS, COLUMNS], dtype=tl.int32)
    node = tl.where(row < nodes, row, -1)
    for _ in range(DEPTHS + 1):
        bits |= tl.where((node >= 0) & (node // 32 == word), 1 << (node % 32), 0)
        node = tl.load(parents_ptr + node, mask=node >= 0, other=-1)
    tl.store(words_ptr + row * WORDS + word, bits, mask=(row < nodes) & (word < WORDS))


def config(arch: int, budget: int) -> tuple[int, int]:
    """(lanes, warps): a lane a node; one warp while 8 entries a thread hold them, so that no step waits for a block."""
    lanes = max(pow2(budget + 1), 32)
    return lanes, 1 if lanes <= 256 else 4


def floor(depths: int, ranks: int, budget: int) -> Floor:
    """Reads the candidates, writes the tree. What it takes is latency: `budget` reductions over the lanes."""
    nodes = budget + 1
    return Floor(12 * depths * ranks + nodes * (20 + 4 * cdiv(nodes, 32)), budget * nodes)


def launches(
    seed: Tensor, token_ids: Tensor, log_probs: Tensor, tree: TreeTensors, costs: Tensor | None
) -> tuple[Launch, Launch]:
    """The search, then the ancestor words. token_ids and log_probs contiguous."""
    require(log_probs.dtype is torch.float32, "log_probs", "float32", log_probs.dtype)
    require(
        token_ids.dtype is torch.int64 and seed.dtype is torch.int64, "token_ids and seed", "int64", token_ids.dtype
    )
    require(token_ids.shape == log_probs.shape, "token_ids", f"shaped {tuple(log_probs.shape)}", tuple(token_ids.shape))
    nodes = len(tree.parents)
    lanes, warps = config(0, nodes - 1)
    search: dict[str, Argument] = {
        "seed_ptr": seed, "ids_ptr": token_ids, "log_probs_ptr": log_probs, "costs_ptr": costs,
        "tokens_ptr": tree.token_ids, "parents_ptr": tree.parents, "depths_ptr": tree.depths, "weights_ptr": tree.log_weights,
        "live_ptr": tree.live, "depths": log_probs.shape[0], "ranks": log_probs.shape[1], "budget": nodes - 1,
        "LANES": lanes, "ADAPTIVE": costs is not None,
    }  # fmt: skip
    words: dict[str, Argument] = {
        "parents_ptr": tree.parents, "words_ptr": tree.ancestors, "nodes": nodes, "DEPTHS": log_probs.shape[0],
        "WORDS": cdiv(nodes, 32), "COLUMNS": pow2(cdiv(nodes, 32)), "ROWS": 32,
    }  # fmt: skip
    return (
        Launch(tree_build_kernel, (1,), search, warps, stages=1),
        Launch(tree_ancestors_kernel, (cdiv(nodes, 32),), words, warps=1, stages=1),
    )


def cases(arch: int) -> Iterator[Case]:
    """The lane counts budgets come to, with and without an adaptive budget."""
    for budget, adaptive in ((15, False), (64, False), (64, True), (256, False)):
        ids = torch.empty(15, budget, dtype=torch.int64, device="meta")
        log_probs = torch.empty(15, budget, device="meta")
        tree = TreeTensors.empty(budget + 1, torch.device("meta"))
        search, words = launches(ids[0], ids, log_probs, tree, log_probs[0] if adaptive else None)
        yield f"budget={budget} adaptive={int(adaptive)}", search
        if not adaptive:
            yield f"budget={budget}", words
