"""Choosing the next token from the target's logits, greedily or sampled, the same whatever the draft tree was.

A sampled token is argmax(log p - log E) with exponential noise E keyed by (seed, absolute position): a draw depends on
nothing else, so a sampled run with a tree equals the sampled autoregressive run, up to rounding of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy."""


class NonFiniteLogitsError(EngineError):
    """The target gave NaN or infinity where a token was to be chosen."""

    def __init__(self) -> None:
        super().__init__("the target's logits are not finite", mend="check its weights, or run it in float32")


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `seed` None: one is drawn for the request. `top_k` 0, `top_p` 1, `min_p` 0 filter nothing."""

    temperature: float = 0.0
    seed: int | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", 0 <= self.temperature < float("inf"), "a finite number of 0 or above"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 or above"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
        )
        for name, fits, wanted in ranges:
            if not fits:
                raise EngineError(f"{name} = {getattr(self, name)} is not {wanted}")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken each time."""
        return self.temperature < GREEDY_BELOW


def chooser(logits: Tensor, positions: Sequence[int], sampling: Sampling) -> Callable[[int], int]:
    """The target's choice after each row, computed when asked for.

    logits [rows, vocab]; positions[row]: absolute position of the token that row chooses. A sampled run needs a seed.
    """

    def choose(row: int) -> int:
        values = logits[row].float()  # in bfloat16 argmax is four times as slow
        best = int(values.argmax())  # the place of a NaN, where there is one
        if not math.isfinite(float(values[best])):
            raise NonFiniteLogitsError
        return best if sampling.greedy else sample(values, sampling, positions[row])

    return choose


def sample(logits: Tensor, sampling: Sampling, position: int) -> int:
    """One token for absolute `position` from logits [vocab], under temperature, then top_k, top_p and min_p."""
    log_probs = torch.log_softmax(logits.float() / sampling.temperature, dim=-1)
    kept = filter_log_probs(log_probs, sampling)
    return int((kept - noise(len(logits), sampling.seed or 0, position).log_()).argmax())


def filter_log_probs(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities [vocab] with the tokens that top_k, top_p and min_p leave out at -inf, in that order.

    top_p keeps the fewest most probable tokens whose sum reaches it; the most probable token always stays.
    """
    if sampling.top_k and sampling.top_k < len(log_probs):
        smallest_kept = log_probs.topk(sampling.top_k).values[-1]
        log_probs = log_probs.masked_fill(log_probs < smallest_kept, -torch.inf)
    if sampling.top_p < 1:
        by_rank, order = log_probs.sort(descending=True)
        probs = by_rank.softmax(dim=-1)
        beyond = probs.cumsum(dim=-1) - probs >= sampling.top_p
        beyond[0] = False
        log_probs = log_probs.masked_fill(torch.zeros_like(beyond).scatter(0, order, beyond), -torch.inf)
    if sampling.min_p > 0:
        log_probs = log_probs.masked_fill(log_probs.exp() < sampling.min_p * log_probs.max().exp(), -torch.inf)
    return log_probs


def noise(vocab: int, seed: int, position: int) -> Tensor:
    """Exponential noise, float64 [vocab], a function of (seed, position) alone: Philox keyed by the two.

    In float32 some of it would come out as nought, and a nought would win whatever its token's probability.
    """
    philox = np.random.Philox(key=(seed % 2**64) << 64 | position)
    return torch.from_numpy(np.random.Generator(philox).standard_exponential(vocab))
