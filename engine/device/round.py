"""ONE decode round on the device, read top to bottom: draft -> build -> verify -> walk -> commit.

The same round as `engine.round`, with the same tokens, in tensors of fixed shape: nothing here reads a value back, so a GPU
can run it from one captured graph. The chain is the tree of one rank a depth, autoregressive decoding the tree of budget 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device.model import DeviceModel, DeviceState, root_tree
from engine.device.passes import Rows, draft_pass, take_in_context, target_pass
from kernels.accept_walk import Accepted, accept_walk
from kernels.draft_topk import draft_topk
from kernels.path_commit import path_commit
from kernels.token_choice import token_choice
from kernels.tree_build import TreeTensors, ancestor_words, tree_build

PREFILL_ROWS = 512
"""Prompt tokens a prefill pass takes at a time."""


@dataclass(frozen=True)
class Plan:
    """The shape of a round: a tree of `budget` drafted nodes from `ranks` candidates a depth, in contexts up to `longest`.

    `costs` float32 [budget + 1] makes the budget adaptive (`kernels.tree_build`), None leaves it fixed.
    """

    budget: int
    ranks: int
    longest: int
    costs: Tensor | None = None

    @property
    def nodes(self) -> int:
        """Rows of the verify pass."""
        return self.budget + 1


def plan_of(mode: str, tree_budget: int, model: DeviceModel, longest: int) -> Plan:
    """The plan of a mode: "off", "dflash" (the block as one chain) or "ddtree" with `tree_budget` nodes."""
    horizon = model.block_size - 1
    if mode == "off" or not horizon:
        return Plan(0, 0, longest)
    if mode == "dflash":
        return Plan(horizon, 1, longest)
    return Plan(tree_budget, min(tree_budget, model.target.config.vocab_size), longest)


@torch.inference_mode()
def device_round(model: DeviceModel, state: DeviceState, plan: Plan) -> None:
    """One round, all in place: `state.accepted` holds what it adds. Pages for the tree and for a draft block are reserved.

    The length must not pass `plan.longest` by the round's end.
    """
    tree = _draft_and_build(model, state, plan)
    extent = torch.cat((state.length, tree.live))
    rows = Rows(extent, tree.depths, tree.ancestors, state.page_table, plan.longest)
    hidden, features = target_pass(model, tree.token_ids, rows)
    choices = token_choice(model.target.logits(hidden), rows.positions + 1, state.sampling)
    accepted = accept_walk(tree.token_ids, tree.parents, tree.live, choices, model.most_accepted - 1, state.accepted)
    _commit(model, state, extent, accepted, features)


def _draft_and_build(model: DeviceModel, state: DeviceState, plan: Plan) -> TreeTensors:
    """The drafter takes in what it has missed, even where this round drafts nothing: a later one may."""
    if model.drafter is not None:
        missed = torch.cat((state.length - state.waiting, state.waiting))
        take_in_context(model, state.features, missed, state.page_table)
    if plan.budget == 0:
        root = root_tree(model.device)
        root.token_ids.copy_(state.seed)
        return root
    depths = torch.arange(model.block_size, dtype=torch.int32, device=model.device)
    extent = torch.cat((state.length, torch.full_like(state.length, model.block_size)))
    rows = Rows(extent, depths, model.block_words, state.page_table, plan.longest)
    hidden = draft_pass(model, state.seed, rows)
    token_ids, log_probs = draft_topk(model.target.logits(hidden[1:]), plan.ranks)
    return tree_build(state.seed, token_ids, log_probs, plan.budget, costs=plan.costs)


def _commit(model: DeviceModel, state: DeviceState, extent: Tensor, accepted: Accepted, features: Tensor) -> None:
    """Keep the path's rows, its features, the bonus token as the next seed, and the new length."""
    caches = (model.target_cache.keys, model.target_cache.values)
    kept = tuple(cache for cache in caches if cache.numel())
    path_commit(kept, state.page_table, extent, accepted.path, page_size=model.page_size)
    state.features.copy_(features[accepted.path.clamp(min=0).long()])
    state.waiting.copy_(accepted.count)
    state.seed.copy_(accepted.token_ids[(accepted.count - 1).long()])
    state.length.add_(accepted.count)


@torch.inference_mode()
def device_prefill(model: DeviceModel, state: DeviceState, prompt_ids: Sequence[int]) -> int:
    """Run the prompt from position 0 and choose the first token, which is returned and is the next round's seed.

    Pages for the prompt are in `state.page_table`. Eager, and a read-back at the end: a prompt's shape is its own.
    """
    hidden = torch.empty(0)
    state.length.zero_()
    for first in range(0, len(prompt_ids), PREFILL_ROWS):
        chunk = torch.tensor(prompt_ids[first : first + PREFILL_ROWS], dtype=torch.int64, device=model.device)
        extent = torch.tensor([first, len(chunk)], dtype=torch.int32, device=model.device)
        depths = torch.arange(len(chunk), dtype=torch.int32, device=model.device)
        words = ancestor_words(list(range(-1, len(chunk) - 1))).to(model.device)  # causal
        hidden, features = target_pass(model, chunk, Rows(extent, depths, words, state.page_table, first))
        if model.drafter is not None:
            take_in_context(model, features, extent, state.page_table)
    state.length.fill_(len(prompt_ids))
    state.waiting.zero_()
    position = torch.tensor([len(prompt_ids)], device=model.device)
    state.seed.copy_(token_choice(model.target.logits(hidden[-1:]), position, state.sampling))
    return int(state.seed)


def read_accepted(state: DeviceState) -> list[int]:
    """The tokens the last round added: the one read-back of a round."""
    return state.accepted.token_ids[: int(state.accepted.count)].tolist()
