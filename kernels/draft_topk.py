"""The best candidates of each drafted position, with log-probabilities over the whole vocabulary."""

from __future__ import annotations

from torch import Tensor


def draft_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """logits [depths, vocab] -> (token ids int64, log-probabilities float32), each [depths, k], best first.

    Neither temperature nor any filter applies: the draft side stays the drafter's own distribution.
    """
    wide = logits.float()
    best = wide.topk(k, dim=-1)
    return best.indices, best.values - wide.logsumexp(dim=-1, keepdim=True)
