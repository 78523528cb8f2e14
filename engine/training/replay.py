"""Commit length without running the engine: replay known greedy text and count what each round would have kept.

The greedy continuation is known, so every anchor's draft can be computed in a few large forwards, and rounds are then only counted:
as many tokens as the real round keeps, at a small part of its cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from engine.draft_head import DraftHead
from engine.drafter import Drafter
from engine.lookup import Lookup, graft
from engine.models.decoder import Decoder
from engine.training.blocks import Passage, anchor_positions, pack_blocks
from engine.training.objective import draft_hidden
from engine.tree import DraftTree, build_tree, spine_length, walk
from kernels.draft_topk import draft_topk

BLOCKS_A_FORWARD = 64

Candidates = tuple[list[list[int]], list[list[float]]]
"""One block's candidates: token ids and natural log-probabilities [depth][rank]."""


@dataclass(frozen=True)
class RoundCount:
    """Sums over rounds; every figure is a ratio of them. `hist[i]`: rounds that kept i + 1 tokens, the bonus included."""

    tokens: int = 0
    rounds: int = 0
    hist: tuple[int, ...] = ()
    spine_tokens: int = 0
    """Tokens that the trees' rank-0 nodes alone would have kept."""
    spine_rounds: int = 0
    """Rounds whose accepted path left the rank-0 nodes nowhere."""
    lookup_tokens: int = 0
    """Tokens that only the text's own repetition had proposed."""
    predicted: float = 0.0
    """Drafted tokens that the drafter's own probabilities promise: the sum of its nodes' path probabilities."""

    def __add__(self, other: "RoundCount") -> "RoundCount":
        return RoundCount(
            self.tokens + other.tokens,
            self.rounds + other.rounds,
            tuple(a + b for a, b in zip_longest(self.hist, other.hist, fillvalue=0)),
            self.spine_tokens + other.spine_tokens,
            self.spine_rounds + other.spine_rounds,
            self.lookup_tokens + other.lookup_tokens,
            self.predicted + other.predicted,
        )

    @property
    def commit_length(self) -> float:
        """Tokens kept a round, the bonus included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of rounds that kept the drafted token at depth 1, 2, …: commit length is 1 plus their sum."""
        kept = [sum(self.hist[depth:]) for depth in range(1, len(self.hist))]
        return tuple(count / self.rounds for count in kept) if self.rounds else ()

    @property
    def spine_hit_rate(self) -> float:
        """Share of rounds whose path follows rank 0 only."""
        return self.spine_rounds / self.rounds if self.rounds else 0.0

    @property
    def branch_gain(self) -> float:
        """Tokens a round that the drafter's branches beside the spine add."""
        return (self.tokens - self.spine_tokens - self.lookup_tokens) / self.rounds if self.rounds else 0.0

    @property
    def lookup_share(self) -> float:
        """Of the tokens kept, those that only the lookup had proposed."""
        return self.lookup_tokens / self.tokens if self.tokens else 0.0

    @property
    def calibration(self) -> float | None:
        """Accepted draft tokens over those promised; None where nothing was promised."""
        return (self.tokens - self.rounds) / self.predicted if self.predicted else None


@torch.inference_mode()
def replay(
    drafter: Drafter,
    target: Decoder,
    head: DraftHead,
    passage: Passage,
    budgets: Sequence[int],
    *,
    lookup: bool = False,
) -> Mapping[int, RoundCount]:
    """Rounds over one passage of greedy text, for each tree budget; budget 0 stands for the chain.

    With `lookup` the text's own repetition competes for the budget, as the engine's setting "auto" has it.

    A round whose draft reaches past the end of the text is not counted.
    """
    anchors = list(anchor_positions(passage))
    ranks = head.ranks(max(budgets, default=1) or 1)
    candidates: list[Candidates] = []
    for first in range(0, len(anchors), BLOCKS_A_FORWARD):
        packed = pack_blocks([passage], [anchors[first : first + BLOCKS_A_FORWARD]], drafter.config.block_size)
        blocks = packed.on(target.device)
        for hidden in draft_hidden(drafter, target, blocks)[:, 1:].to(target.dtype):
            places, log_probs = draft_topk(head.logits(target, hidden), ranks)
            candidates.append((head.tokens(places).tolist(), log_probs.tolist()))
    return {
        budget: _count_rounds(passage.token_ids, anchors, candidates, budget, Lookup(adapts=True) if lookup else None)
        for budget in budgets
    }


def _count_rounds(
    token_ids: Sequence[int],
    anchors: Sequence[int],
    candidates: Sequence[Candidates],
    budget: int,
    lookup: Lookup | None,
) -> RoundCount:
    count = RoundCount()
    position = anchors[0] if anchors else 0
    if lookup is not None:
        lookup.read(token_ids[: position + 1])
    while anchors and position <= anchors[-1]:
        block = candidates[position - anchors[0]]
        if position + len(block[0]) + 1 >= len(token_ids):
            break
        tree = _draft(token_ids[position], block, budget)
        if lookup is not None:
            most = budget or len(block[0])
            tree = graft(tree, lookup.branches(tree, most), most)
        one = _one_round(tree, token_ids[position + 1 :], len(block[0]))
        count += one
        if lookup is not None:
            lookup.learn(token_ids[position + 1 : position + 1 + one.tokens])
        position += one.tokens
    return count


def _draft(seed: int, block: Candidates, budget: int) -> DraftTree:
    if budget:
        return build_tree(seed, *block, budget)
    first_only = [level[:1] for level in block[0]], [level[:1] for level in block[1]]
    return build_tree(seed, *first_only, len(block[0]))


def _one_round(tree: DraftTree, following: Sequence[int], depth: int) -> RoundCount:
    """What a round keeps of `tree` where the target's tokens are `following`; the text's end keeps nothing."""
    path, _ = walk(tree, lambda node: following[tree.depths[node]] if tree.depths[node] < len(following) else -1)
    spine = spine_length(tree, path)
    return RoundCount(
        tokens=len(path),
        rounds=1,
        hist=tuple(int(kept == len(path)) for kept in range(1, max(depth + 1, len(path)) + 1)),
        spine_tokens=spine,
        spine_rounds=int(spine == len(path)),
        lookup_tokens=sum(node in tree.grafted for node in path),
        predicted=sum(math.exp(weight) for weight in tree.log_weights[1:]),
    )
