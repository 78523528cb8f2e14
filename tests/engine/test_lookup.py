"""Lookup: the text's own repetition as a branch of the draft tree, and what is told of it."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.generate import Generated, generate
from engine.lookup import LONGEST, Branch, Lookup, graft
from engine.runtime import Runtime, Sampling, Speculation
from engine.tree import DraftTree, build_tree, spine_length, walk

PROMPT = (5, 9, 2, 33, 17, 60)


def read(text: list[int], *, adapts: bool = False) -> Lookup:
    lookup = Lookup(adapts=adapts)
    lookup.read(text)
    return lookup


def test_the_longest_agreement_wins_and_of_equals_the_latest() -> None:
    #       7 1 2 -> 3              1 2 -> 4          7 1 2 -> ?
    long_first = [7, 1, 2, 3, 50, 51, 8, 1, 2, 4, 52, 53, 7, 1, 2]
    assert read(long_first).guess(3).token_ids == (3, 50, 51)
    latest = [9, 1, 2, 3, 50, 9, 1, 2, 4, 51, 9, 1, 2]
    assert read(latest).guess(1).token_ids == (4,)


def test_a_pair_that_is_new_and_a_text_of_one_token_suggest_nothing() -> None:
    assert read([1, 2, 3, 4]).guess(8) == Branch((), ())
    assert read([1]).guess(8) == Branch((), ())
    assert read([]).guess(8) == Branch((), ())


def test_a_guess_ends_with_the_text_the_budget_and_the_longest_agreement() -> None:
    assert read([1, 2, 1, 2]).guess(8).token_ids == (1, 2)
    assert len(read(list(range(60)) * 2).guess(7).token_ids) == 7
    assert len(read(list(range(60)) * 2).guess(500).token_ids) == LONGEST


def test_the_chance_of_a_miss_falls_with_the_agreement_and_weights_are_its_running_logs() -> None:
    lookup = read([1, 2, 3, 9, 1, 2])
    assert lookup.miss_chance(2) == pytest.approx(0.4)
    assert lookup.miss_chance(8) == pytest.approx(1 / 8.5)
    first, second = 1 - 0.4, (1 - 0.4) * (1 - 1 / 3.5)
    assert lookup.guess(2).log_weights == pytest.approx((math.log(first), math.log(second)))


def test_experience_in_the_request_scales_the_chance_and_only_where_it_adapts() -> None:
    text = [1, 2, 3, 1, 2]
    wrong, right, fixed = read(text, adapts=True), read(text, adapts=True), read(text)
    for lookup in (wrong, fixed):
        for token in range(20, 40):  # the pair 1 2 has been followed by 3, and now by something new each time
            lookup.learn([token, 1, 2])
    for _ in range(20):
        right.learn([3, 1, 2])
    assert right.miss_chance(4) < 1 / 4.5 < wrong.miss_chance(4)
    assert fixed.miss_chance(4) == 1 / 4.5
    assert wrong.misses == 20
    assert right.misses == 0


def test_what_is_learnt_does_not_depend_on_whether_it_was_asked_first() -> None:
    asked, silent = read([4, 5, 6, 4, 5], adapts=True), read([4, 5, 6, 4, 5], adapts=True)
    asked.guess(4)
    for lookup in (asked, silent):
        lookup.learn([6, 4, 9])
    assert (asked.expected_misses, asked.misses, asked.guess(3)) == (
        silent.expected_misses,
        silent.misses,
        silent.guess(3),
    )
    # agreements of 2, 3 and 4 tokens were put to the test, and the third failed
    assert asked.expected_misses == pytest.approx(1 / 2.5 + 1 / 3.5 + 1 / 4.5)
    assert asked.misses == 1


def drafted() -> DraftTree:
    """0 -> 10 (p 0.6) -> 20 (0.3); 0 -> 11 (0.3) -> 20 (0.15)."""
    logs = [[math.log(0.6), math.log(0.3)], [math.log(0.5), math.log(0.1)]]
    return build_tree(1, [[10, 11], [20, 21]], logs, 4)


def test_a_branch_shares_what_is_there_and_adds_the_rest_in_order_of_weight() -> None:
    tree = drafted()
    assert tree.token_ids == (1, 10, 20, 11, 20)
    branch = Branch((11, 20, 30), tuple(math.log(chance) for chance in (0.9, 0.8, 0.7)))
    grafted = graft(tree, [(0, branch)], 5)
    assert grafted.token_ids == (1, 11, 20, 30, 10, 20)
    assert grafted.parents == (-1, 0, 1, 2, 0, 4)
    assert grafted.depths == (0, 1, 2, 3, 1, 2)
    assert grafted.grafted == {3}
    assert [round(math.exp(weight), 3) for weight in grafted.log_weights] == [1.0, 0.9, 0.8, 0.7, 0.6, 0.3]
    assert grafted.spine == (4, 5)
    path, bonus = walk(grafted, lambda node: {0: 11, 1: 20, 2: 30, 3: 99}[node])
    assert (path, bonus) == ((0, 1, 2, 3), 99)
    assert spine_length(grafted, path) == 1
    assert spine_length(grafted, (0, 4, 5)) == 3
    assert grafted.cut(2).grafted == frozenset()
    assert grafted.cut(4).spine == (4,)


def test_a_branch_that_is_less_likely_than_all_there_is_stays_out() -> None:
    tree = drafted()
    grafted = graft(tree, [(0, Branch((40,), (math.log(0.01),)))], 4)
    assert grafted.token_ids == tree.token_ids
    assert grafted.grafted == frozenset()
    assert graft(tree, [], 4) is tree


def test_behind_a_path_the_drafter_guessed_the_text_tells_how_that_goes_on() -> None:
    #              10 20 -> 30 31                the drafter guesses 10 20 after 7; 10 alone is new behind 7
    lookup = read([8, 10, 20, 30, 31, 11, 5, 6, 7])
    tree = drafted()
    assert [(tree.path_to(node)[1:], branch.token_ids) for node, branch in lookup.branches(tree, 6)] == [
        ([1, 2], (30, 31, 11, 5))
    ]
    grafted = graft(tree, lookup.branches(tree, 6), 6)
    # 0.3 * (1 - 1 / 2.5) = 0.18 stands before 11 20 at 0.15; agreements of three tokens and more follow
    assert grafted.token_ids == (1, 10, 20, 11, 30, 20, 31)
    assert grafted.parents == (-1, 0, 1, 0, 2, 3, 4)
    assert grafted.depths == (0, 1, 2, 1, 3, 2, 4)
    assert grafted.grafted == {4, 6}
    assert math.exp(grafted.log_weights[4]) == pytest.approx(0.3 * 0.6)
    assert math.exp(grafted.log_weights[6]) == pytest.approx(0.3 * 0.6 * (1 - 1 / 3.5))


def test_an_agreement_may_begin_in_the_text_and_end_in_the_path() -> None:
    lookup = read([3, 4, 10, 50, 60, 9, 4, 10, 51, 3, 4])
    (root, _), (node, branch) = list(lookup.branches(drafted(), 3))
    assert (root, node) == (0, 1)
    assert branch.token_ids == (50, 60)  # 3 4 10 agree, and not 4 10 alone; one of the three places is the node's own
    assert math.exp(branch.log_weights[0]) == pytest.approx(1 - 1 / 3.5)


def test_no_guess_is_deeper_than_the_longest_agreement() -> None:
    lookup = read([10, 20, *range(100, 180), 7])
    (node, branch), *others = lookup.branches(drafted(), 500)
    assert (node, len(branch.token_ids), others) == (2, LONGEST - 2, [])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.floats(0.05, 0.99), min_size=12, max_size=12),
    st.integers(1, 12),
    st.lists(st.integers(0, 12), min_size=1, max_size=3),
)
def test_a_grafted_tree_is_a_tree_within_its_budget(
    tokens: list[int], chances: list[float], budget: int, starts: list[int]
) -> None:
    level = [math.log(0.5), math.log(0.3), math.log(0.15)]
    tree = build_tree(9, [[0, 1, 2]] * 3, [level] * 3, budget)
    weights, weight = [], 0.0
    for _, chance in zip(tokens, chances, strict=False):
        weight += math.log(chance)
        weights.append(weight)
    branch = Branch(tuple(tokens), tuple(weights))
    grafted = graft(tree, [(start % len(tree), branch) for start in starts], budget)
    assert len(grafted) - 1 <= budget
    assert len(grafted) >= len(tree)
    assert all(grafted.parents[node] < node for node in range(1, len(grafted)))
    assert all(grafted.depths[node] == grafted.depths[grafted.parents[node]] + 1 for node in range(1, len(grafted)))
    assert list(grafted.log_weights) == sorted(grafted.log_weights, reverse=True)
    children = [(grafted.parents[node], grafted.token_ids[node]) for node in range(1, len(grafted))]
    assert len(set(children)) == len(children)
    assert sum(map(math.exp, grafted.log_weights)) >= sum(map(math.exp, tree.log_weights)) - 1e-9


@pytest.mark.parametrize("mode", ["dflash", "ddtree"])
def test_a_text_that_repeats_itself_commits_more_and_says_the_same(
    tiny: Callable[..., Runtime], mode: Literal["dflash", "ddtree"]
) -> None:
    def run(prompt: tuple[int, ...], speculation: Speculation) -> Generated:
        return generate(tiny(), prompt, Sampling(), speculation, max_tokens=80, ignore_eos=True)

    prompt = (*PROMPT, *run(PROMPT, Speculation("off")).token_ids)
    plain = run(prompt, Speculation("off"))
    choices: tuple[Literal["off", "on", "auto"], ...] = ("off", "on", "auto")
    ways = {lookup: run(prompt, Speculation(mode, 16, lookup)) for lookup in choices}
    assert all(way.token_ids == plain.token_ids for way in ways.values())
    assert ways["off"].lookup_tokens == 0
    for lookup in choices[1:]:
        assert ways[lookup].steps < ways["off"].steps
        assert 0 < ways[lookup].lookup_tokens <= sum(ways[lookup].commit_lengths) - ways[lookup].steps + 1


def test_the_command_tells_the_lookups_share_where_it_was_asked_for(tiny_folder: Path) -> None:
    command = [sys.executable, "-m", "engine", "generate", "--model", str(tiny_folder / "target")]
    command += ["--prompt-ids", "1,2,3,4,1,2,3,4,1,2", "--max-tokens", "8", "--json", "--ignore-eos"]
    drafter = ["--drafter", str(tiny_folder / "drafter")]
    asked = subprocess.run([*command, *drafter, "--lookup", "auto"], capture_output=True, text=True, check=True)
    plain = subprocess.run([*command, *drafter], capture_output=True, text=True, check=True)
    assert "lookup_tokens" in json.loads(asked.stdout)
    assert "lookup_tokens" not in json.loads(plain.stdout)
    assert json.loads(asked.stdout)["token_ids"] == json.loads(plain.stdout)["token_ids"]
    alone = subprocess.run([*command, "--lookup", "on"], capture_output=True, text=True)
    assert alone.returncode == 2
    assert alone.stderr.strip().endswith("add --drafter DIR")
