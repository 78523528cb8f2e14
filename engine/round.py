"""ONE decode round, read top to bottom: draft -> build -> verify -> walk -> commit.

The chain of DFlash is the tree of width one, and autoregressive decoding is the tree of budget 0: there is one path
through this file. Positions count from 0 over prompt and answer; `position` of a generation is that of its last token,
whose own keys and values are not in the cache yet: it is the root of the next tree.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from torch import Tensor

from engine.cache import PageTable
from engine.draft import DraftState, draft_candidates, take_in_context
from engine.errors import EngineError
from engine.runtime import Runtime, Sampling, Speculation
from engine.sampling import chooser
from engine.tree import DraftTree, build_tree, spine_length, visibility, walk
from kernels.tree_attention import tree_bias

CHUNK_TOKENS = 512
"""Prompt tokens a prefill pass takes at a time."""


@dataclass
class Generation:
    """One request under way. `token_ids` are the tokens generated so far; `position` is that of the last of them, which
    is also the number of tokens in the cache. `draft` is None where the request does not draft.
    """

    prompt_ids: list[int]
    sampling: Sampling
    speculation: Speculation
    table: PageTable
    draft: DraftState | None
    token_ids: list[int] = field(default_factory=list)
    position: int = 0


@dataclass(frozen=True)
class Round:
    """What one round did. `tokens`: what it adds, the bonus last. `nodes`: rows verified, the root included.

    `path`: accepted node ids of `tree`, root first. `spine_length`: tokens the tree's rank-0 nodes alone would have added.
    `stages_ms`: milliseconds in draft, build, verify, walk, commit.
    """

    tokens: list[int]
    nodes: int
    stages_ms: dict[str, float]
    tree: DraftTree
    path: tuple[int, ...]
    spine_length: int


class PrefillStoppedError(Exception):
    """`should_stop` said so; the request owns nothing any more."""


@torch.inference_mode()
def decode_round(runtime: Runtime, generation: Generation) -> Round:
    """One round: adds 1 to depth + 1 tokens to `generation.token_ids`. The caller decides where to stop among them."""
    stages: dict[str, float] = {}
    start, seed = generation.position, generation.token_ids[-1]
    budget = _reserve(runtime, generation)
    with _timed(stages, "draft"):
        token_ids, log_probs = _draft(runtime, generation, seed, budget)
    with _timed(stages, "build"):
        tree = build_tree(seed, token_ids, log_probs, budget)
        positions = [start + depth for depth in tree.depths]
        visible = visibility(tree)
    with _timed(stages, "verify"):
        hidden, features = _run_target(runtime, generation, tree.token_ids, positions, visible)
        logits = runtime.target.logits(hidden)
    with _timed(stages, "walk"):
        choose = chooser(logits, [position + 1 for position in positions], generation.sampling)
        path, bonus = walk(tree, choose)
    with _timed(stages, "commit"):
        runtime.target_kv.commit(generation.table, start, path)
        if generation.draft is not None:
            generation.draft.features = features[list(path)]
        tokens = [*(tree.token_ids[node] for node in path[1:]), bonus]
        generation.token_ids += tokens
        generation.position += len(path)
    return Round(tokens, len(tree), stages, tree, path, spine_length(tree, path))


@torch.inference_mode()
def prefill(
    runtime: Runtime,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    speculation: Speculation,
    on_chunk: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Generation:
    """Run the prompt and choose the first token; `token_ids` of what is returned holds just that one.

    `on_chunk` hears how many prompt tokens are done after each chunk; `should_stop` is asked before each. Raises
    EngineError for a prompt that does not fit and for a mode the runtime cannot run, PrefillStoppedError when stopped.
    """
    _check_request(runtime, prompt_ids, speculation)
    if sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbits(62))
    drafting = runtime.drafting if speculation.mode != "off" else None
    draft = DraftState(torch.empty(0)) if drafting else None
    generation = Generation(list(prompt_ids), sampling, speculation, PageTable(runtime.pool), draft)
    try:
        _grow(runtime, generation, len(prompt_ids))
        while generation.position < len(prompt_ids):
            if should_stop is not None and should_stop():
                raise PrefillStoppedError
            first = generation.position
            chunk = generation.prompt_ids[first : first + CHUNK_TOKENS]
            causal = torch.ones(len(chunk), len(chunk), dtype=torch.bool).tril()
            hidden, features = _run_target(runtime, generation, chunk, range(first, first + len(chunk)), causal)
            if drafting and draft:
                draft.features = features
                take_in_context(drafting, generation.table, draft)
            generation.position += len(chunk)
            if on_chunk is not None:
                on_chunk(generation.position)
        choose = chooser(runtime.target.logits(hidden[-1:]), [generation.position], sampling)
        generation.token_ids.append(choose(0))
    except BaseException:
        release(runtime, generation)
        raise
    return generation


def release(runtime: Runtime, generation: Generation) -> None:
    """Give back what the request owns; it cannot decode any further."""
    generation.table.release()


def _draft(
    runtime: Runtime, generation: Generation, seed: int, budget: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Candidates [depth][rank] for a tree of `budget` nodes; none where the request does not draft."""
    if runtime.drafting is None or generation.draft is None:
        return [], []
    if budget == 0:  # no room to draft this time: the drafter must not miss the context it will need later
        take_in_context(runtime.drafting, generation.table, generation.draft)
        return [], []
    ranks = 1 if generation.speculation.mode == "dflash" else min(budget, runtime.target.config.vocab_size)
    return draft_candidates(runtime.drafting, runtime.target, generation.table, generation.draft, seed, ranks)


def _run_target(
    runtime: Runtime, generation: Generation, token_ids: Sequence[int], positions: Sequence[int], visible: Tensor
) -> tuple[Tensor, Tensor]:
    """One target forward over tokens written after the cached ones -> (hidden [tokens, hidden], features).

    Each token sees everything cached, and of the new tokens what `visible` says.
    """
    config, start = runtime.target.config, generation.position
    stop = start + len(token_ids)
    bias = tree_bias(visible, stop, config.heads // config.kv_heads, runtime.target.dtype)
    written, read = generation.table.slots(start, stop), generation.table.slots(0, stop)
    taps = runtime.drafting.taps if runtime.drafting and generation.draft else ()
    return runtime.target(
        torch.tensor(token_ids), torch.tensor(positions), runtime.target_kv.attend(written, read, bias), taps
    )


def _check_request(runtime: Runtime, prompt_ids: Sequence[int], speculation: Speculation) -> None:
    vocab = runtime.target.config.vocab_size
    if not prompt_ids:
        raise EngineError("the prompt holds no token")
    outside = [token for token in prompt_ids if not 0 <= token < vocab]
    if outside:
        raise EngineError(f"token id {outside[0]} lies outside the vocabulary of {vocab}")
    if len(prompt_ids) >= runtime.max_context:
        raise EngineError(
            f"the prompt of {len(prompt_ids)} tokens leaves no room in a context of {runtime.max_context}",
            mend="shorten it, or raise context_length",
        )
    if speculation.mode != "off" and runtime.drafting is None:
        raise EngineError(f'mode "{speculation.mode}" needs a drafter, and none is loaded', mend='use mode "off"')


def _reserve(runtime: Runtime, generation: Generation) -> int:
    """Slots for this round; gives the tree budget they allow, 0 where the draft block itself has no room.

    Near the end of a full pool trees shrink: that costs speed, never a token.
    """
    if generation.draft is None:
        _grow(runtime, generation, generation.position + 1)
        return 0
    horizon = runtime.block_size - 1
    wanted = horizon if generation.speculation.mode == "dflash" else generation.speculation.tree_budget
    room = generation.table.grow(generation.position + 1 + max(wanted, horizon)) - generation.position - 1
    if room < 0:
        _grow(runtime, generation, generation.position + 1)
    return min(wanted, room) if room >= horizon else 0


def _grow(runtime: Runtime, generation: Generation, tokens: int) -> None:
    if generation.table.grow(tokens) < tokens:
        mend = "wait for a running request to end, or raise pages"
        raise EngineError(f"the KV pool of {runtime.capacity_tokens} tokens is full", mend=mend)


@contextmanager
def _timed(stages: dict[str, float], stage: str) -> Iterator[None]:
    """Notes the milliseconds its block takes."""
    began = perf_counter()
    yield
    stages[stage] = (perf_counter() - began) * 1e3
