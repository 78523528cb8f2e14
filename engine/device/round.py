"""ONE decode round on the device, read top to bottom: draft -> build -> verify -> walk -> commit.

The same round as `engine.round`, with the same tokens, in tensors of fixed shape: nothing here reads a value back, so a GPU
can run it from one captured graph. The chain is the tree of one rank a depth, autoregressive decoding the tree of budget 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    `keeps_up`: the drafter takes in what the target has read, as it must where this round or a later one drafts.
    `costs` float32 [budget + 1] makes the budget adaptive (`kernels.tree_build`), None leaves it fixed.
    """

    budget: int
    ranks: int
    longest: int
    keeps_up: bool
    costs: Tensor | None = None

    @property
    def nodes(self) -> int:
        """Rows of the verify pass."""
        return self.budget + 1


@dataclass(frozen=True)
class Outcome:
    """What a round leaves beside the state it moved on: the tree it verified, and `sound` bool [1]: every choice on the
    accepted path was made from finite logits.
    """

    tree: TreeTensors
    sound: Tensor


def plan_of(mode: str, tree_budget: int, model: DeviceModel, longest: int, *, keeps_up: bool = True) -> Plan:
    """The plan of a mode: "off", "dflash" (the block as one chain) or "ddtree" with `tree_budget` nodes."""
    horizon = model.block_size - 1
    if mode == "off" or model.drafting is None:
        return Plan(0, 0, longest, keeps_up and model.drafting is not None)
    if mode == "dflash":
        return Plan(horizon, 1, longest, keeps_up=True)
    ranks = model.drafting.head.ranks(min(tree_budget, model.target.config.vocab_size))
    return Plan(tree_budget, ranks, longest, keeps_up=True)


def no_mark() -> None:
    """Nobody wants to know when a stage ends."""


def device_round(model: DeviceModel, state: DeviceState, plan: Plan, mark: Callable[[], None] = no_mark) -> Outcome:
    """One round, all in place: `state.accepted` holds what it adds. Pages for the tree and for a draft block are reserved.

    The length must not pass `plan.longest` by the round's end. `mark` is called at the start and after each of the five stages.
    """
    return verified(model, state, plan, drafted(model, state, plan, mark), mark)


@torch.inference_mode()
def drafted(model: DeviceModel, state: DeviceState, plan: Plan, mark: Callable[[], None] = no_mark) -> TreeTensors:
    """A round's first half: its tree."""
    mark()
    candidates = _draft(model, state, plan)
    mark()
    return _build(model, state, plan, candidates)


@torch.inference_mode()
def verified(
    model: DeviceModel, state: DeviceState, plan: Plan, tree: TreeTensors, mark: Callable[[], None] = no_mark
) -> Outcome:
    """A round's second half, for whatever tree of the plan's size."""
    mark()
    extent = torch.cat((state.length, tree.live))
    rows = Rows(extent, tree.depths, tree.ancestors, state.page_table, plan.longest)
    taps = model.taps if plan.keeps_up else ()
    hidden, features = target_pass(model, tree.token_ids, rows, taps)
    logits = model.target.logits(hidden)
    mark()
    choices = token_choice(logits, rows.positions + 1, state.sampling)
    accepted = accept_walk(tree.token_ids, tree.parents, tree.live, choices, model.most_accepted - 1, state.accepted)
    sound = _sound(logits, accepted.path)
    mark()
    _commit(model, state, extent, accepted, features)
    mark()
    return Outcome(tree, sound)


def _draft(model: DeviceModel, state: DeviceState, plan: Plan) -> tuple[Tensor, Tensor] | None:
    """Candidates (token ids, log-probabilities) [depths, ranks]; None where nothing is drafted.

    The drafter takes in what it has missed even where this round drafts nothing: a later one may.
    """
    if plan.keeps_up:
        missed = torch.cat((state.length - state.waiting, state.waiting))
        take_in_context(model, state.features, missed, state.page_table)
    if plan.budget == 0 or model.drafting is None:
        return None
    depths = torch.arange(model.block_size, dtype=torch.int32, device=model.device)
    extent = torch.cat((state.length, torch.full_like(state.length, model.block_size)))
    rows = Rows(extent, depths, model.block_words, state.page_table, plan.longest)
    head, hidden = model.drafting.head, draft_pass(model, state.seed, rows)
    places, log_probs = draft_topk(head.logits(model.target, hidden[1:]), plan.ranks)
    return head.tokens(places), log_probs


def _build(model: DeviceModel, state: DeviceState, plan: Plan, candidates: tuple[Tensor, Tensor] | None) -> TreeTensors:
    if candidates is not None:
        return tree_build(state.seed, *candidates, plan.budget, costs=plan.costs)
    root = root_tree(model.device)
    root.token_ids.copy_(state.seed)
    return root


def _sound(logits: Tensor, path: Tensor) -> Tensor:
    """bool [1]: the rows of the path have finite peaks. A NaN anywhere in a row is its peak."""
    finite = logits.amax(dim=-1).float().isfinite()
    return (finite[path.clamp(min=0).long()] | (path < 0)).all(dim=0, keepdim=True)


def _commit(model: DeviceModel, state: DeviceState, extent: Tensor, accepted: Accepted, features: Tensor) -> None:
    """Keep the path's rows, its features, the bonus token as the next seed, and the new length."""
    caches = (model.target_cache.keys, model.target_cache.values)
    kept = tuple(cache for cache in caches if cache.numel())
    path_commit(kept, state.page_table, extent, accepted.path, page_size=model.page_size)
    if features.shape[1]:
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
        hidden, features = target_pass(model, chunk, Rows(extent, depths, words, state.page_table, first), model.taps)
        if model.drafting is not None:
            take_in_context(model, features, extent, state.page_table)
    state.length.fill_(len(prompt_ids))
    state.waiting.zero_()
    position = torch.tensor([len(prompt_ids)], device=model.device)
    state.seed.copy_(token_choice(model.target.logits(hidden[-1:]), position, state.sampling))
    return int(state.seed)


def read_accepted(state: DeviceState) -> list[int]:
    """The tokens the last round added: the one read-back of a round."""
    return state.accepted.token_ids[: int(state.accepted.count)].tolist()
