"""A tree grows only while that raises expected tokens a second, by measured cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.budget import RoundCost, convex, line, sizes_worth_their_time, slope
from engine.generate import generate
from engine.measure_cost import measure_cost
from engine.runtime import Runtime, Sampling, Speculation
from engine.tree import build_tree

PROBS = [[0.62, 0.28, 0.07, 0.03], [0.51, 0.25, 0.12001, 0.12], [0.60, 0.20, 0.15, 0.05]]
TOKENS = [[0, 1, 2, 3], [1, 2, 3, 0], [3, 2, 1, 0]]


def test_the_papers_example_stops_at_six_nodes() -> None:
    tree = build_tree(9, TOKENS, [[math.log(p) for p in level] for level in PROBS], 8)
    assert sizes_worth_their_time([tree.log_weights[1:]], 6.5, lambda rows: 30 + 2 * max(0, rows - 1 - 4)) == [6]
    cut = tree.cut(6)
    assert (len(cut), cut.parents, cut.token_ids) == (7, tree.parents[:7], tree.token_ids[:7])


def test_free_rows_take_the_whole_tree_and_dear_ones_none() -> None:
    weights = [[math.log(p) for p in (0.6, 0.3, 0.1)], [math.log(p) for p in (0.9, 0.8, 0.7)]]
    assert sizes_worth_their_time(weights, 5.0, lambda rows: 30.0) == [3, 3]
    assert sizes_worth_their_time(weights, 5.0, lambda rows: 30.0 * rows) == [0, 0]
    assert sizes_worth_their_time([[], []], 5.0, lambda rows: 30.0) == [0, 0]


def test_a_batch_gives_its_rows_to_whoever_they_serve_best() -> None:
    weights = [[math.log(p) for p in (0.3, 0.2, 0.1)], [math.log(p) for p in (0.9, 0.8, 0.7)]]
    first, second = sizes_worth_their_time(weights, 5.0, lambda rows: 20.0 + 8.0 * rows)
    assert first < second == 3


@given(st.lists(st.floats(0.1, 1e3), min_size=2, max_size=9))
def test_measured_costs_are_made_rising_and_convex_and_never_raised(costs: list[float]) -> None:
    points = tuple((float(2**i), cost) for i, cost in enumerate(costs))
    hull = convex(points)
    assert hull[0][0] == points[0][0] and hull[-1] == points[-1]
    slopes = [slope(left, right) for left, right in pairwise(hull)]
    assert all(earlier < later for earlier, later in pairwise(slopes))
    assert all(rise >= 0 for rise in slopes)
    assert all(line(hull, x) <= y + 1e-9 * y for x, y in points)


def test_costs_between_contexts_are_in_proportion_and_beyond_the_largest_size_go_on() -> None:
    cost = RoundCost(5.0, ((0, ((1.0, 10.0), (9.0, 18.0))), (100, ((1.0, 20.0), (9.0, 44.0)))))
    assert (cost.verify_ms(1, 0), cost.verify_ms(5, 0), cost.verify_ms(11, 0)) == (10.0, 14.0, 20.0)
    assert (cost.verify_ms(1, 50), cost.verify_ms(9, 50), cost.verify_ms(9, 1000)) == (15.0, 31.0, 44.0)


@pytest.mark.parametrize("row_ms", [0.0, 0.5, 100.0])
def test_an_adaptive_run_gives_the_same_tokens_with_smaller_trees(
    tiny: Callable[..., Runtime], expected: dict[str, Any], row_ms: float
) -> None:
    cost = RoundCost(1.0, ((0, ((1.0, 10.0), (2.0, 10.0 + row_ms))),))
    case = expected["cases"][4]
    runtime = replace(tiny(), cost=cost)
    answer = generate(runtime, case["prompt"], Sampling(), Speculation("ddtree", 16), max_tokens=96)
    full = next(run for run in case["ddtree"] if run["tree_budget"] == 16)
    assert answer.token_ids == case["autoregressive"]
    whole = sum(answer.commit_lengths) / answer.steps
    most = sum(full["commit_lengths"]) / len(full["commit_lengths"])
    if row_ms == 0.0:
        assert answer.commit_lengths[:-1] == full["commit_lengths"][: answer.steps - 1]
    elif row_ms == 0.5:
        assert 1.0 < whole < most
    else:
        assert whole == 1.0


def test_costs_are_measured_on_the_models_at_hand_and_leave_no_page_behind(tiny: Callable[..., Runtime]) -> None:
    runtime = tiny()
    cost = measure_cost(runtime)
    assert runtime.pages_used == 0
    assert cost.draft_ms > 0
    assert [context for context, _ in cost.verify] == [0, 320 - 17]
    assert all(points[0][0] == 1.0 and points[-1][0] == 17.0 for _, points in cost.verify)
    assert all(points[0][1] > 0 for _, points in cost.verify)
