"""Commit length without running the engine: replay known greedy text and count what each round would have kept.

The greedy continuation is known, so every anchor's draft can be computed in a few large forwards, and rounds are then only counted:
as many tokens as the real round keeps, at a small part of its cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.drafter import Drafter
from engine.models.decoder import Decoder
from engine.training.blocks import Passage, anchor_positions, pack_blocks
from engine.training.objective import draft_hidden
from engine.tree import build_tree, walk
from kernels.draft_topk import draft_topk

BLOCKS_A_FORWARD = 64


@dataclass(frozen=True)
class RoundCount:
    """Tokens kept over rounds; commit length is their ratio."""

    tokens: int = 0
    rounds: int = 0

    def __add__(self, other: "RoundCount") -> "RoundCount":
        return RoundCount(self.tokens + other.tokens, self.rounds + other.rounds)

    @property
    def commit_length(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0


@torch.inference_mode()
def replay(drafter: Drafter, target: Decoder, passage: Passage, budgets: Sequence[int]) -> Mapping[int, RoundCount]:
    """Rounds over one passage of greedy text, for each tree budget; budget 0 stands for the chain.

    A round whose draft reaches past the end of the text is not counted.
    """
    anchors = list(anchor_positions(passage))
    ranks = max(budgets, default=1) or 1
    candidates: list[tuple[list[list[int]], list[list[float]]]] = []
    for first in range(0, len(anchors), BLOCKS_A_FORWARD):
        blocks = pack_blocks([passage], [anchors[first : first + BLOCKS_A_FORWARD]], drafter.config.block_size)
        for hidden in draft_hidden(drafter, target, blocks)[:, 1:].to(target.dtype):
            token_ids, log_probs = draft_topk(target.logits(hidden), ranks)
            candidates.append((token_ids.tolist(), log_probs.tolist()))
    return {budget: _count_rounds(passage.token_ids, anchors, candidates, budget) for budget in budgets}


def _count_rounds(
    token_ids: Sequence[int],
    anchors: Sequence[int],
    candidates: Sequence[tuple[list[list[int]], list[list[float]]]],
    budget: int,
) -> RoundCount:
    count = RoundCount()
    position = anchors[0] if anchors else 0
    while anchors and position <= anchors[-1]:
        block_tokens, block_weights = candidates[position - anchors[0]]
        if position + len(block_tokens) + 1 >= len(token_ids):
            break
        if budget:
            tree = build_tree(token_ids[position], block_tokens, block_weights, budget)
        else:
            first_only = [level[:1] for level in block_tokens], [level[:1] for level in block_weights]
            tree = build_tree(token_ids[position], *first_only, len(block_tokens))
        here = position
        path, _ = walk(tree, lambda node: token_ids[here + tree.depths[node] + 1])  # noqa: B023 - used in this turn only
        count += RoundCount(len(path), 1)
        position += len(path)
    return count
