"""Tree build, accept walk and path commit in the interpreter: equal, node for node and row for row, to their references."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from engine.tree import build_tree, visibility
from kernels.accept_walk import Accepted, accept_walk
from kernels.path_commit import path_commit, reference
from kernels.tree_build import TreeTensors, tree_build
from kernels.tree_build import reference as build_reference
from tests.kernels.interpreted.inputs import (
    far_slots,
    guarded,
    numbers,
    programs_in_another_order,
    random_pages,
    random_parents,
    slots_of,
    words_of,
)

GOLDEN = [[0.62, 0.28, 0.07, 0.03], [0.12, 0.51, 0.25, 0.12001], [0.05, 0.15, 0.20, 0.60]]


def candidates(probabilities: list[list[float]]) -> tuple[Tensor, Tensor]:
    """(token ids, log-probabilities) [depth][rank], best first."""
    best = torch.tensor(probabilities, dtype=torch.float64).log().sort(dim=-1, descending=True, stable=True)
    return best.indices, best.values.float()


def random_candidates(depths: int, ranks: int, seed: int, *, levels: int = 0) -> tuple[Tensor, Tensor]:
    """Candidates of random logits; with `levels`, logits of that many values only, so that weights tie."""
    logits = numbers(depths, 3 * ranks, seed=seed) * 2
    if levels:
        logits = (logits * levels / 4).round() * 4 / levels
    best = torch.log_softmax(logits, dim=-1).sort(dim=-1, descending=True, stable=True)
    return best.indices[:, :ranks], best.values[:, :ranks]


def assert_is_the_heaps(tree: TreeTensors, ids: Tensor, log_probs: Tensor, seed: int, budget: int) -> None:
    exact = build_tree(seed, ids.tolist(), log_probs.tolist(), budget)
    live = int(tree.live)
    assert live == len(exact)
    assert tuple(tree.token_ids[:live].tolist()) == exact.token_ids
    assert tuple(tree.parents[:live].tolist()) == exact.parents
    assert tuple(tree.depths[:live].tolist()) == exact.depths
    assert torch.equal(tree.log_weights[:live], torch.tensor(exact.log_weights))
    seen = torch.eye(budget + 1, dtype=torch.bool)
    seen[:live, :live] = visibility(exact)
    assert torch.equal(tree.ancestors, words_of(seen))
    assert tree.parents[live:].eq(-1).all() and tree.depths[live:].eq(0).all()


def test_the_papers_example_gives_the_known_tree() -> None:
    ids, log_probs = candidates(GOLDEN)
    tree = tree_build(torch.tensor([9]), ids, log_probs, 8)
    assert tree.token_ids.tolist() == [9, 0, 1, 1, 3, 2, 1, 3, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 0, 2, 1, 3, 5, 6]
    assert tree.depths.tolist() == [0, 1, 2, 1, 3, 2, 2, 3, 3]
    weights = [1, 0.62, 0.3162, 0.28, 0.1897, 0.155, 0.1428, 0.093, 0.0857]
    assert tree.log_weights.exp().tolist() == pytest.approx(weights, abs=6e-5)


@pytest.mark.parametrize(("depths", "ranks", "budget", "levels"), [
    (7, 16, 16, 0), (7, 16, 16, 4), (15, 12, 12, 2), (1, 5, 5, 0), (16, 3, 31, 1), (3, 2, 20, 0), (15, 1, 15, 0), (2, 40, 40, 6),
])  # fmt: skip
def test_nodes_and_their_order_are_the_heaps_even_where_weights_tie(
    depths: int, ranks: int, budget: int, levels: int
) -> None:
    for seed in range(2):
        ids, log_probs = random_candidates(depths, ranks, seed, levels=levels)
        tree = tree_build(torch.tensor([7]), ids, log_probs, budget)
        assert_is_the_heaps(tree, ids, log_probs, 7, budget)


def test_budget_nought_is_the_root_alone() -> None:
    ids, log_probs = candidates(GOLDEN)
    tree = tree_build(torch.tensor([9]), ids, log_probs, 0)
    assert (tree.token_ids.tolist(), tree.parents.tolist(), int(tree.live)) == ([9], [-1], 1)


@pytest.mark.parametrize("on_device", [True, False])
def test_an_adaptive_budget_stops_before_the_node_that_does_not_pay(on_device: bool) -> None:
    ids, log_probs = candidates(GOLDEN)
    costs = torch.tensor([6.5 + 30 + 2 * max(0, n - 4) for n in range(9)])
    if on_device:
        tree = tree_build(torch.tensor([9]), ids, log_probs, 8, costs=costs)
    else:
        tree = build_reference(torch.tensor([9]), ids, log_probs, 8, TreeTensors.empty(9, ids.device), costs)
    assert int(tree.live) - 1 == 6


def test_an_adaptive_budget_is_the_references_on_random_trees() -> None:
    for seed in range(2):
        ids, log_probs = random_candidates(7, 16, seed)
        costs = torch.tensor([20 + 0.3 * n**1.5 for n in range(17)])
        ours = tree_build(torch.tensor([1]), ids, log_probs, 16, costs=costs)
        exact = build_reference(torch.tensor([1]), ids, log_probs, 16, TreeTensors.empty(17, ids.device), costs)
        assert 2 < int(exact.live) < 17
        for name in ("token_ids", "parents", "depths", "ancestors", "live"):
            assert torch.equal(getattr(ours, name), getattr(exact, name)), name


def test_candidates_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="log_probs must be of at most 16 depths, not 17"):
        tree_build(torch.tensor([0]), torch.zeros(17, 2, dtype=torch.int64), torch.zeros(17, 2), 4)
    with pytest.raises(ValueError, match="log_probs must be of at most 256 ranks, not 300"):
        tree_build(torch.tensor([0]), torch.zeros(2, 300, dtype=torch.int64), torch.zeros(2, 300), 4)


def dictionary_walk(tokens: list[int], parents: list[int], choices: list[int]) -> list[int]:
    child = {(parents[node], tokens[node]): node for node in range(1, len(parents))}
    path = [0]
    while (following := child.get((path[-1], choices[path[-1]]))) is not None:
        path.append(following)
    return path


@pytest.mark.parametrize("seed", range(12))
def test_the_walk_follows_the_targets_choices(seed: int) -> None:
    dice = random.Random(seed)
    live, nodes = dice.randrange(1, 30), 33
    parents = random_parents(live, seed) + [-1] * (nodes - live)
    tokens, used = [0] * nodes, set()
    for node in range(1, live):
        tokens[node] = next(
            token for token in iter(lambda: dice.randrange(live + 2), None) if (parents[node], token) not in used
        )
        used.add((parents[node], tokens[node]))
    choices = [dice.choice([tokens[n] for n in range(1, live) if parents[n] == node] or [0]) for node in range(nodes)]
    path = dictionary_walk(tokens[:live], parents[:live], choices)
    ids, _ = guarded(34, dtype=torch.int64, fill=-7)
    out = Accepted(torch.full((34,), -7, dtype=torch.int32), ids, torch.zeros(1, dtype=torch.int32))
    given = (torch.tensor(tokens), torch.tensor(parents, dtype=torch.int32), torch.tensor([live], dtype=torch.int32))
    accepted = accept_walk(*given, torch.tensor(choices), 33, out)
    assert accepted.path.tolist() == path + [-1] * (34 - len(path))
    assert accepted.token_ids.tolist() == [choices[node] for node in path] + [-1] * (34 - len(path))
    assert int(accepted.count) == len(path)


@pytest.mark.parametrize("page", [1, 7, 16, 64, 256])
@pytest.mark.parametrize("path", [[0], [0, 1, 2], [0, 3, 6, 8], [0, 1, 5, 6, 7], [0, 2, 3, 4, 9]])
def test_accepted_rows_move_together_and_nothing_else_does(page: int, path: list[int]) -> None:
    length, nodes = 23, 10
    pool_pages = (length + nodes) // page + 3
    table = random_pages(length + nodes, page, pool_pages, seed=page)
    caches = []
    for width, dtype in ((6, torch.float32), (40, torch.float16)):
        cache, guard = guarded(3, pool_pages * page, 2, width // 2, dtype=dtype, fill=math.nan)
        cache[:, slots_of(table, torch.arange(length + nodes), page)] = numbers(
            3, length + nodes, 2, width // 2, dtype=dtype
        )
        caches.append((cache, guard, cache.clone()))
    padded = torch.tensor(path + [-1] * (8 - len(path)), dtype=torch.int32)
    extent = torch.tensor([length, nodes], dtype=torch.int32)
    with programs_in_another_order(seed=2):
        path_commit(tuple(cache for cache, _, _ in caches), table, extent, padded, page_size=page)
    for cache, guard, before in caches:
        reference((before,), table, extent, padded, page)
        assert torch.equal(cache.nan_to_num(-9.0), before.nan_to_num(-9.0))
        assert guard.isnan().all()


def test_rows_past_two_to_the_31_are_committed() -> None:
    far, table = far_slots(16), torch.tensor([0, 21, 20], dtype=torch.int32)
    far[20], far[21] = 1.0, 2.0
    extent, path = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([0, 2, -1], dtype=torch.int32)
    path_commit((far.view(1, 22, 16),), table, extent, path, page_size=1)
    assert far[21].eq(1.0).all() and far[20].eq(1.0).all()
