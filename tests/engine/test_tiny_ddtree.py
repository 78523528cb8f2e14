"""The engine against the DDTree authors' own program: tokens, commit lengths and first trees of expected.json.

How expected.json is to be read. `dflash` is the drafted block as one chain, which is `--mode dflash`. Commit lengths count
tokens a round, bonus included; the first token comes from the prefill and belongs to no round. The program only looks at its
limit between rounds: its last rounds may run past the maximum, and are cut here as the engine cuts them. Its draft block
is a window of a buffer that ends 1 + budget places after the last token. Where the window is cut short (only at budgets
below the draft horizon, only in the last few rounds) the program reads the drafts one row too early, and its commit lengths
are not those of the algorithm; rounds from there on are left out. Tokens agree everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest

from engine.generate import generate
from engine.prefill import prefill, release
from engine.round import Round, decode_round
from engine.runtime import Runtime, Sampling, Speculation

CASES = range(8)
BRANCHING = (4, 6)
"""Cases that commit long blocks and paths off the spine; they stand for all at the other page sizes."""


@dataclass(frozen=True)
class Arm:
    """One way of decoding a case, and what has to come out. `first_tree` and `commit_lengths` None: not recorded."""

    speculation: Speculation
    tokens: list[int]
    commit_lengths: list[int] | None = None
    first_tree: dict[str, Any] | None = None


def arms_of(case: dict[str, Any]) -> list[Arm]:
    return [
        Arm(Speculation("off"), case["autoregressive"]),
        Arm(Speculation("dflash"), case["dflash"]["tokens"], case["dflash"]["commit_lengths"]),
        *(
            Arm(Speculation("ddtree", run["tree_budget"]), run["tokens"], run["commit_lengths"], run["first_tree"])
            for run in case["ddtree"]
        ),
    ]


def cut(commit_lengths: list[int], total: int) -> list[int]:
    """The commit lengths of a run that keeps `total` tokens after the first."""
    before = [0, *accumulate(commit_lengths)]
    return [min(length, total - done) for length, done in zip(commit_lengths, before, strict=False) if done < total]


def rounds_with_whole_blocks(commit_lengths: list[int], max_tokens: int, block_size: int, budget: int) -> int:
    """Leading rounds whose draft block fits into the authors' buffer."""
    starts = [0, *accumulate(commit_lengths)]
    return sum(start + block_size <= max_tokens + 1 + budget for start in starts[:-1])


@pytest.mark.parametrize(
    ("page_size", "case_index"),
    [(16, case) for case in CASES] + [(size, case) for size in (1, 7, 64) for case in BRANCHING],
)
def test_tokens_and_commit_lengths_are_the_authors_in_every_mode(
    tiny: Callable[..., Runtime], expected: dict[str, Any], page_size: int, case_index: int
) -> None:
    runtime, case = tiny(page_size=page_size), expected["cases"][case_index]
    max_tokens = case["max_new_tokens"]
    for arm in arms_of(case):
        answer = generate(runtime, case["prompt"], Sampling(), arm.speculation, max_tokens=max_tokens)
        assert answer.token_ids == arm.tokens, arm.speculation
        assert answer.finish_reason == "length"
        assert sum(answer.commit_lengths) == max_tokens - 1
        if arm.commit_lengths is not None:
            budget = arm.speculation.tree_budget if arm.speculation.mode == "ddtree" else expected["block_size"] - 1
            whole = rounds_with_whole_blocks(arm.commit_lengths, max_tokens, expected["block_size"], budget)
            assert whole >= len(arm.commit_lengths) - 5
            assert answer.commit_lengths[:whole] == cut(arm.commit_lengths, max_tokens - 1)[:whole], arm.speculation
    assert runtime.pages_used == 0


@pytest.mark.parametrize("case_index", CASES)
def test_first_trees_are_the_authors_node_by_node(
    tiny: Callable[..., Runtime], expected: dict[str, Any], case_index: int
) -> None:
    runtime, case = tiny(), expected["cases"][case_index]
    for arm in arms_of(case):
        if arm.first_tree is not None:
            first = first_round(runtime, case["prompt"], arm.speculation)
            assert list(first.tree.token_ids[1:]) == arm.first_tree["tree"]["node_token_ids"]
            assert list(first.tree.depths[1:]) == arm.first_tree["tree"]["node_depths"]
            assert list(first.tree.parents) == arm.first_tree["tree"]["parents"]
            assert list(first.path) == arm.first_tree["accepted_indices"]


def first_round(runtime: Runtime, prompt_ids: list[int], speculation: Speculation) -> Round:
    generation = prefill(runtime, prompt_ids, Sampling(), speculation)
    try:
        return decode_round(runtime, [generation])[0]
    finally:
        release(runtime, generation)
