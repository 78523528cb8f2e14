"""The draft tree, its mask and the walk, against golden vectors and a brute-force oracle."""

from __future__ import annotations

from itertools import product
from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tree import DraftTree, build_tree, spine_length, visibility, walk
from kernels.draft_topk import draft_topk

# ddtree-dflash.md 8.1: vocabulary 4, horizon 3, budget 8.
GOLDEN_PROBS = [[0.62, 0.28, 0.07, 0.03], [0.12, 0.51, 0.25, 0.12001], [0.05, 0.15, 0.20, 0.60]]
GOLDEN_NODES = [  # parent, depth, token, weight, visible ids
    (0, 1, 0, 0.6200, {0, 1}),
    (1, 2, 1, 0.3162, {0, 1, 2}),
    (0, 1, 1, 0.2800, {0, 3}),
    (2, 3, 3, 0.1897, {0, 1, 2, 4}),
    (1, 2, 2, 0.1550, {0, 1, 5}),
    (3, 2, 1, 0.1428, {0, 3, 6}),
    (5, 3, 3, 0.0930, {0, 1, 5, 7}),
    (6, 3, 3, 0.0857, {0, 3, 6, 8}),
]


def tree_of_probs(probs: list[list[float]], budget: int, seed: int = 9) -> DraftTree:
    token_ids, log_probs = draft_topk(torch.tensor(probs).log(), min(budget, len(probs[0])))
    return build_tree(seed, token_ids.tolist(), log_probs.tolist(), budget)


def golden_tree() -> DraftTree:
    return tree_of_probs(GOLDEN_PROBS, 8)


def test_the_golden_tree_comes_out_node_by_node() -> None:
    tree = golden_tree()
    assert tree.token_ids[0] == 9 and tree.parents[0] == -1 and tree.depths[0] == 0
    for node, (parent, depth, token, weight, visible) in enumerate(GOLDEN_NODES, start=1):
        assert (tree.parents[node], tree.depths[node], tree.token_ids[node]) == (parent, depth, token)
        assert exp(tree.log_weights[node]) == pytest.approx(weight, abs=6e-5)
        assert set(visibility(tree)[node].nonzero().flatten().tolist()) == visible
    assert sum(map(exp, tree.log_weights[1:])) == pytest.approx(1.8824, abs=1e-4)


@pytest.mark.parametrize(
    ("choices", "path", "bonus", "spine"),
    [
        ({0: 1, 3: 1, 6: 3, 8: 2}, (0, 3, 6, 8), 2, 1),
        ({0: 2}, (0,), 2, 1),
        ({0: 0, 1: 3}, (0, 1), 3, 2),
        ({0: 0, 1: 2, 5: 3, 7: 0}, (0, 1, 5, 7), 0, 2),
        ({0: 0, 1: 1, 2: 3, 4: 1}, (0, 1, 2, 4), 1, 4),
    ],
)
def test_golden_walks_end_where_the_target_leaves_the_tree(
    choices: dict[int, int], path: tuple[int, ...], bonus: int, spine: int
) -> None:
    tree = golden_tree()
    assert walk(tree, choices.__getitem__) == (path, bonus)
    assert spine_length(tree, path) == spine


def test_the_target_is_asked_about_visited_nodes_only() -> None:
    asked: list[int] = []

    def choose(node: int) -> int:
        asked.append(node)
        return {0: 0, 1: 2, 5: 1}[node]

    assert walk(golden_tree(), choose) == ((0, 1, 5), 1)
    assert asked == [0, 1, 5]


def test_budget_nought_and_an_empty_horizon_leave_the_root_alone() -> None:
    for tree in (build_tree(3, [[1, 2]], [[-0.1, -0.2]], 0), build_tree(3, [], [], 16)):
        assert (tree.token_ids, tree.parents, len(tree)) == ((3,), (-1,), 1)
        assert visibility(tree).tolist() == [[True]]
        assert walk(tree, lambda node: 7) == ((0,), 7)


def test_one_candidate_a_depth_makes_a_chain() -> None:
    tree = build_tree(9, [[4], [5], [6]], [[-0.5], [-0.1], [-2.0]], 3)
    assert tree.token_ids == (9, 4, 5, 6)
    assert tree.parents == (-1, 0, 1, 2)
    assert tree.depths == (0, 1, 2, 3)


def test_token_zero_is_a_node_like_any_other() -> None:
    tree = tree_of_probs([[0.9, 0.1], [0.9, 0.1]], 3)
    assert tree.token_ids[1:] == (0, 0, 1)
    assert walk(tree, {0: 0, 1: 0, 2: 1}.__getitem__) == ((0, 1, 2), 1)


def test_a_certain_child_follows_its_parent_before_an_equal_sibling() -> None:
    tree = build_tree(9, [[0, 1], [2, 3]], [[log(0.5), log(0.5)], [0.0, -1e9]], 4)
    assert [(tree.parents[n], tree.token_ids[n]) for n in range(1, 5)] == [(0, 0), (1, 2), (0, 1), (3, 2)]


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[list[float]], int]:
    """Log-probabilities [depths][ranks], falling with the rank, ties among them, and a budget."""
    vocab, depths = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    # Quarters are exact in binary: sums in any order give equal weights exactly where they are equal.
    level = st.lists(st.integers(-12, 0).map(lambda q: q / 4), min_size=vocab, max_size=vocab)
    return [sorted(draw(level), reverse=True) for _ in range(depths)], draw(st.integers(1, 40))


@settings(max_examples=150, deadline=None)
@given(drafts())
def test_the_tree_is_the_most_probable_prefixes_in_order(draft: tuple[list[list[float]], int]) -> None:
    log_probs, budget = draft
    ranks = range(len(log_probs[0]))
    token_ids = [[10 * depth + rank for rank in ranks] for depth in range(len(log_probs))]
    tree = build_tree(99, token_ids, log_probs, budget)

    prefixes = [p for depth in range(1, len(log_probs) + 1) for p in product(ranks, repeat=depth)]
    weigh = {p: sum(log_probs[depth][rank] for depth, rank in enumerate(p)) for p in prefixes}
    best = sorted(prefixes, key=lambda p: (-weigh[p], p))[:budget]
    assert [ranks_of(tree, node) for node in range(1, len(tree))] == best
    assert list(tree.log_weights[1:]) == [weigh[p] for p in best]


@settings(max_examples=100, deadline=None)
@given(drafts(), st.integers(0, 40))
def test_a_smaller_budget_gives_the_first_nodes_of_the_larger_tree(
    draft: tuple[list[list[float]], int], smaller: int
) -> None:
    log_probs, budget = draft
    token_ids = [list(range(len(level))) for level in log_probs]
    large = build_tree(99, token_ids, log_probs, budget)
    small = build_tree(99, token_ids, log_probs, min(smaller, budget))
    assert small.parents == large.parents[: len(small)]
    assert small.token_ids == large.token_ids[: len(small)]
    assert all(parent < node for node, parent in enumerate(large.parents))
    assert len({(large.parents[n], large.token_ids[n]) for n in range(1, len(large))}) == len(large) - 1


@settings(max_examples=100, deadline=None)
@given(drafts(), st.randoms(use_true_random=False))
def test_a_node_sees_itself_and_its_ancestors_and_the_walk_stays_on_one_path(
    draft: tuple[list[list[float]], int], dice: object
) -> None:
    log_probs, budget = draft
    tree = build_tree(99, [list(range(len(level))) for level in log_probs], log_probs, budget)
    visible = visibility(tree)
    for node in range(len(tree)):
        assert set(visible[node].nonzero().flatten().tolist()) == set(path_to(tree, node))
    choices = {node: dice.randrange(5) for node in range(len(tree))}  # type: ignore[attr-defined]
    path, bonus = walk(tree, choices.__getitem__)
    assert list(path) == path_to(tree, path[-1])
    assert bonus == choices[path[-1]]
    assert not any(tree.parents[n] == path[-1] and tree.token_ids[n] == bonus for n in range(1, len(tree)))


def path_to(tree: DraftTree, node: int) -> list[int]:
    return [*path_to(tree, tree.parents[node]), node] if node else [0]


def ranks_of(tree: DraftTree, node: int) -> tuple[int, ...]:
    return tuple(tree.token_ids[n] - 10 * (tree.depths[n] - 1) for n in path_to(tree, node)[1:])
