"""Drafting for one request: the drafter's cache kept in step with the target's, and candidates for the next block.

The drafter caches one context row a position, made from the target's features of that position. Rows it has not seen
yet wait as features; each draft takes them in along with its block, whose own rows are dropped again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import KvStore, PageTable
from engine.drafter import Drafter
from engine.models.decoder import Decoder
from engine.models.layers import Attend
from kernels.draft_topk import draft_topk
from kernels.tree_attention import tree_bias


@dataclass(frozen=True)
class Drafting:
    """A loaded drafter, its cache, and how many tokens a block has, the seed included."""

    drafter: Drafter
    kv: KvStore
    block_size: int

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers whose output the drafter reads."""
        return self.drafter.config.target_layer_ids


@dataclass
class DraftState:
    """A request's draft context: `rows` positions are cached, `features` [n, taps * hidden] are of the n positions after."""

    features: Tensor
    rows: int = 0


def draft_candidates(
    drafting: Drafting, target: Decoder, table: PageTable, state: DraftState, seed: int, ranks: int
) -> tuple[list[list[int]], list[list[float]]]:
    """One draft forward -> tokens and log-probabilities [block_size - 1][ranks] of the positions after the seed's.

    Takes in the waiting features. The table must have slots for the whole block.
    """
    drafter, first, start = drafting.drafter, state.rows, state.rows + len(state.features)
    stop = start + drafting.block_size
    block = torch.full((drafting.block_size,), drafter.config.mask_token_id)
    block[0] = seed
    hidden = drafter(
        target.embed(block),
        torch.arange(start, stop),
        drafter.context(state.features),
        torch.arange(first, start),
        _attend(drafting, table, target, first, start, stop),
    )
    state.rows, state.features = start, state.features[:0]
    token_ids, log_probs = draft_topk(target.logits(hidden[1:]), ranks)
    return token_ids.tolist(), log_probs.tolist()


def take_in_context(drafting: Drafting, table: PageTable, state: DraftState) -> None:
    """Cache the context rows of the waiting features without drafting: a prefill's way, so that features do not pile up."""
    first, stop = state.rows, state.rows + len(state.features)
    context = drafting.drafter.context(state.features)
    slots = table.slots(first, stop)
    for layer, (k, v) in enumerate(drafting.drafter.context_keys_values(context, torch.arange(first, stop))):
        drafting.kv.write(layer, slots, k, v)
    state.rows, state.features = stop, state.features[:0]


def _attend(drafting: Drafting, table: PageTable, target: Decoder, first: int, start: int, stop: int) -> Attend:
    """Writes rows first..stop-1; full layers then see all positions, windowed layers the latest of each query."""
    config = drafting.drafter.config
    written = table.slots(first, stop)
    by_window = {0: drafting.kv.attend(written, table.slots(0, stop), None)}
    for window in set(config.windows) - {0}:
        oldest = max(0, start - window + 1)
        visible = window_visibility(start, stop, oldest, window, causal=config.causal_windows)
        bias = tree_bias(visible, stop - oldest, config.heads // config.kv_heads, target.dtype)
        by_window[window] = drafting.kv.attend(written, table.slots(oldest, stop), bias)
    return lambda layer, q, k, v: by_window[config.windows[layer]](layer, q, k, v)


def window_visibility(start: int, stop: int, oldest: int, window: int, *, causal: bool) -> Tensor:
    """bool [stop - start, stop - oldest]: the query at p sees keys after p - window, and none after p if `causal`."""
    queries, keys = torch.arange(start, stop)[:, None], torch.arange(oldest, stop)
    visible = keys > queries - window
    return visible & (keys <= queries) if causal else visible
