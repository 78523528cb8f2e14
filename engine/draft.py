"""Drafting: each request's drafter cache kept in step with the target's, and candidates for the next block of all at once.

The drafter caches one context row a position, made from the target's features of that position. Rows it has not seen
yet wait as features; each draft takes them in along with its block, whose own rows are dropped again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.cache import KvStore, PageTable, Reading, joined
from engine.draft_head import DraftHead
from engine.drafter import Drafter
from engine.models.decoder import Decoder
from engine.models.layers import Attend
from kernels.draft_topk import draft_topk
from kernels.tree_attention import tree_bias

if TYPE_CHECKING:
    from engine.device.sizes import TreeSize


@dataclass(frozen=True)
class Drafting:
    """A loaded drafter, its cache, and how many tokens a block has, the seed included. `window`: how many of the latest
    positions a block sees at most, 0 for all. `head`: the words it may propose.
    """

    drafter: Drafter
    kv: KvStore
    block_size: int
    window: int = 0
    head: DraftHead = field(default_factory=DraftHead)

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers whose output the drafter reads."""
        return self.drafter.config.target_layer_ids


@dataclass
class DraftState:
    """A request's draft context: `rows` positions are cached, `features` [n, taps * hidden] are of the n positions after.

    `size`: how large its next tree is to be, where that is settled before the draft (on a GPU).
    """

    features: Tensor
    rows: int = 0
    size: TreeSize | None = None


@dataclass(frozen=True)
class DraftRequest:
    """One request's part of a draft: its `seed` is the last committed token. The table has slots for the whole block."""

    table: PageTable
    state: DraftState
    seed: int
    ranks: int

    @property
    def start(self) -> int:
        """The seed's position."""
        return self.state.rows + len(self.state.features)


Candidates = tuple[list[list[int]], list[list[float]]]
"""Tokens and log-probabilities, [block_size - 1][ranks], of the positions after a seed's; best first."""


def draft_candidates(drafting: Drafting, target: Decoder, requests: Sequence[DraftRequest]) -> list[Candidates]:
    """One draft forward for all `requests`, each taking in its waiting features."""
    drafter, size, device = drafting.drafter, drafting.block_size, target.device
    blocks = torch.full((len(requests), size), drafter.config.mask_token_id, device=device)
    blocks[:, 0] = torch.tensor([request.seed for request in requests], device=device)
    hidden = drafter(
        target.embed(blocks.flatten()),
        torch.cat([torch.arange(request.start, request.start + size, device=device) for request in requests]),
        drafter.context(torch.cat([request.state.features for request in requests])),
        torch.cat([torch.arange(request.state.rows, request.start, device=device) for request in requests]),
        _attend(drafting, target, requests),
    )
    for request in requests:
        request.state.rows, request.state.features = request.start, request.state.features[:0]
    predicted = hidden.unflatten(0, (-1, size))[:, 1:].flatten(0, 1)
    ranks = drafting.head.ranks(max(request.ranks for request in requests))
    places, log_probs = draft_topk(drafting.head.logits(target, predicted), ranks)
    each = zip(requests, drafting.head.tokens(places).split(size - 1), log_probs.split(size - 1), strict=True)
    return [(ids[:, : request.ranks].tolist(), logs[:, : request.ranks].tolist()) for request, ids, logs in each]


def take_in_context(drafting: Drafting, table: PageTable, state: DraftState) -> None:
    """Cache the context rows of the waiting features without drafting: a prefill's way, so that features do not pile up."""
    first, stop = state.rows, state.rows + len(state.features)
    if first == stop:
        return
    context = drafting.drafter.context(state.features)
    slots, positions = table.slots(first, stop), torch.arange(first, stop, device=context.device)
    for layer, (k, v) in enumerate(drafting.drafter.context_keys_values(context, positions)):
        drafting.kv.write(layer, slots, k, v)
    state.rows, state.features = stop, state.features[:0]


def _attend(drafting: Drafting, target: Decoder, requests: Sequence[DraftRequest]) -> Attend:
    """Writes all new context rows, then all blocks; a block sees its own request's rows, those its layer's window allows."""
    config, size = drafting.drafter.config, drafting.block_size
    contexts = [request.table.slots(request.state.rows, request.start) for request in requests]
    blocks = [request.table.slots(request.start, request.start + size) for request in requests]
    written = joined([*contexts, *blocks])
    views = [(narrower(own, drafting.window), config.causal_windows and own > 0) for own in config.windows]

    def reading(number: int, window: int, causal: bool) -> Reading:
        request, rows = requests[number], slice(number * size, (number + 1) * size)
        start, stop = request.start, request.start + size
        if not window:
            return Reading(rows, request.table.slots(0, stop), None)
        oldest = max(0, start - window + 1)
        visible = window_visibility(start, stop, oldest, window, causal=causal)
        bias = tree_bias(visible.to(target.device), stop - oldest, config.heads // config.kv_heads, target.dtype)
        return Reading(rows, request.table.slots(oldest, stop), bias)

    by_view = {
        view: drafting.kv.attend(written, [reading(number, *view) for number in range(len(requests))])
        for view in set(views)
    }
    return lambda layer, q, k, v: by_view[views[layer]](layer, q, k, v)


def narrower(own: int, asked: int) -> int:
    """The smaller of two windows, of which 0 is none."""
    return min(own, asked) if own and asked else own or asked


def window_visibility(start: int, stop: int, oldest: int, window: int, *, causal: bool) -> Tensor:
    """bool [stop - start, stop - oldest]: the query at p sees keys after p - window, and none after p if `causal`."""
    queries, keys = torch.arange(start, stop)[:, None], torch.arange(oldest, stop)
    visible = keys > queries - window
    return visible & (keys <= queries) if causal else visible
