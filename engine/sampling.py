"""Choosing the next token from the target's logits, greedily or sampled, the same whatever the draft tree was.

A sampled token is argmax(log p - log E) with exponential noise E keyed by (seed, absolute position, token): a draw depends on
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
from engine.grammar.constraint import Form

Fits = Callable[[int], bool]
"""Whether a token may be chosen."""
GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy."""


class NoChoiceError(EngineError):
    """No token can be chosen for a request: it fails alone."""


class NonFiniteLogitsError(NoChoiceError):
    """The target gave NaN or infinity where a token was to be chosen."""

    def __init__(self) -> None:
        super().__init__("the target's logits are not finite", mend="check its weights, or run it in float32")


class NothingFitsError(NoChoiceError):
    """No token of the vocabulary goes on with the form that the answer must have."""

    def __init__(self) -> None:
        super().__init__("no token of this model goes on with the form that the answer must have")


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `seed` None: one is drawn for the request. `top_k` 0, `top_p` 1, `min_p` 0 filter nothing.

    Penalties look at what stands before the token: `repetition_penalty` at prompt and answer (positive logits divided by
    it, negative ones multiplied), `presence_penalty` and `frequency_penalty` at the answer alone (subtracted once, or once
    for each time). `logit_bias` adds to single tokens' logits. Of what all that leaves, the best token is taken that goes on with
    `form`; where none is left, the best of all that does.
    """

    temperature: float = 0.0
    seed: int | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    form: Form | None = None

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", 0 <= self.temperature < math.inf, "a finite number of 0 or above"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 or above"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "a finite number above 0"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "between -2 and 2"),
        )
        for name, fits, wanted in ranges:
            if not fits:
                raise EngineError(f"{name} = {getattr(self, name)} is not {wanted}")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken each time."""
        return self.temperature < GREEDY_BELOW

    @property
    def counts_tokens(self) -> bool:
        """Whether a choice depends on which tokens stand before it."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True)
class TokenCounts:
    """Which tokens a text holds: `prompt` bool [vocab], and how often its answer holds each, `answer` float32 [vocab]."""

    prompt: Tensor
    answer: Tensor

    @classmethod
    def of(cls, prompt_ids: Sequence[int], vocab: int) -> TokenCounts:
        """Counts at the start of an answer."""
        prompt = torch.zeros(vocab, dtype=torch.bool)
        prompt[torch.tensor(prompt_ids, dtype=torch.int64)] = True
        return cls(prompt, torch.zeros(vocab))

    def add(self, token_ids: Sequence[int]) -> None:
        """The answer goes on with `token_ids`."""
        ids = torch.tensor(token_ids, dtype=torch.int64)
        self.answer.index_add_(0, ids, torch.ones(len(ids)))

    def after(self, token_ids: Sequence[int]) -> TokenCounts:
        """The counts if the answer went on with `token_ids`."""
        longer = TokenCounts(self.prompt, self.answer.clone())
        longer.add(token_ids)
        return longer


def chooser(
    logits: Tensor,
    positions: Sequence[int],
    sampling: Sampling,
    counts_before: Callable[[int], TokenCounts] | None = None,
    fits_at: Callable[[int], Fits] | None = None,
) -> Callable[[int], int]:
    """The target's choice after each row, computed when asked for.

    logits [rows, vocab]; positions[row]: absolute position of the token that row chooses. A sampled run needs a seed, one with
    penalties `counts_before`: what stands before that token; one with a form `fits_at`: what may stand there. Raises
    NonFiniteLogitsError and NothingFitsError.
    """

    def choose(row: int) -> int:
        values = logits[row].float().cpu()  # in bfloat16 argmax is four times as slow
        if not math.isfinite(float(values[values.argmax()])):  # argmax gives the place of a NaN, where there is one
            raise NonFiniteLogitsError
        values = adjusted(values, sampling, counts_before(row) if counts_before is not None else None)
        fits = None if fits_at is None else fits_at(row)
        if not sampling.greedy:
            return sample(values, sampling, positions[row], fits)
        return _best(range(len(values)), values, fits)

    return choose


def _best(tokens: Sequence[int], scores: Tensor, fits: Fits | None) -> int:
    """The token with the highest score, among those that fit; looked for from the top, where it nearly always is.

    Raises NothingFitsError.
    """
    best = tokens[int(scores.argmax())]
    if fits is None or fits(best):
        return best
    for places in scores.argsort(descending=True).split(1024):
        for place in places.tolist():
            if fits(tokens[place]):
                return tokens[place]
    raise NothingFitsError


def adjusted(logits: Tensor, sampling: Sampling, counts: TokenCounts | None) -> Tensor:
    """float32 logits [vocab] under bias and penalties, in that order; `logits` itself is left as it is."""
    if sampling.logit_bias:
        logits = logits.clone()
        for token, bias in sampling.logit_bias:
            logits[token] += bias
    if counts is None or not sampling.counts_tokens:
        return logits
    if sampling.repetition_penalty != 1.0:
        penalised = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits = torch.where(counts.prompt | (counts.answer > 0), penalised, logits)
    return logits - sampling.frequency_penalty * counts.answer - sampling.presence_penalty * (counts.answer > 0).float()


def sample(logits: Tensor, sampling: Sampling, position: int, fits: Fits | None = None) -> int:
    """One token for absolute `position` from logits [vocab], under temperature, then top_k, top_p and min_p, then `fits`.

    Raises NothingFitsError.
    """
    log_probs = torch.log_softmax(logits.float() / sampling.temperature, dim=-1)
    kept = (filter_log_probs(log_probs, sampling) > -torch.inf).nonzero()[:, 0]
    try:
        return _best_drawn(log_probs, kept, sampling, position, fits)
    except NothingFitsError:  # of what the filters leave; of all there is something may
        return _best_drawn(log_probs, torch.arange(len(log_probs)), sampling, position, fits)


def _best_drawn(log_probs: Tensor, tokens: Tensor, sampling: Sampling, position: int, fits: Fits | None) -> int:
    scores = log_probs[tokens] - noise(tokens, sampling.seed or 0, position).log_()
    return _best(tokens.tolist(), scores, fits)


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


def noise(tokens: Tensor, seed: int, position: int) -> Tensor:
    """Exponential noise, float64, a function of (seed, position, token) alone, for token ids int64 [tokens].

    Philox4x32-10 as in `kernels.token_choice`, so that a draw is the same on a GPU. In float32 some of it would come out as
    nought, and a nought would win whatever its token's probability.
    """
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, nought = tokens.numpy().astype(np.uint64), np.zeros(1, dtype=np.uint64)
    c1, c2, c3 = nought + np.uint64(position & 0xFFFFFFFF), nought, nought
    key_0, key_1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = second >> half ^ c1 ^ np.uint64(key_0), second & low
        c2, c3 = first >> half ^ c3 ^ np.uint64(key_1), first & low
        key_0, key_1 = key_0 + 0x9E3779B9 & 0xFFFFFFFF, key_1 + 0xBB67AE85 & 0xFFFFFFFF
    uniform = c0.astype(np.float64) * 2.0**-32 + c1.astype(np.float64) * 2.0**-64
    return torch.from_numpy(-np.log1p(-uniform.clip(2.0**-64, 1 - 2.0**-24)))


@dataclass(frozen=True)
class TokenLogprob:
    """A token's natural log-probability under the model's own distribution, before anything of `Sampling` is applied.

    `best`: the most probable tokens with theirs, best first.
    """

    token: int
    logprob: float
    best: tuple[tuple[int, float], ...]


def token_logprobs(logits: Tensor, token_ids: Sequence[int], alternatives: int) -> tuple[TokenLogprob, ...]:
    """logits [tokens, vocab] and the token chosen from each row -> their log-probabilities."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    best = log_probs.topk(min(alternatives, logits.shape[-1]), dim=-1)
    return tuple(
        TokenLogprob(token, float(row[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
        for token, row, ids, values in zip(token_ids, log_probs, best.indices, best.values, strict=True)
    )
