"""ONE decode round, read top to bottom: draft -> build -> verify -> walk -> commit.

The chain of DFlash is the tree of width one, and autoregressive decoding is the tree of budget 0: there is one path
through this file, for one request or many, each with a tree of its own size. Positions count from 0 over prompt and answer;
`position` of a generation is that of its last token, whose own keys and values are not in the cache yet: it is the root of
the next tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from engine.budget import sizes_worth_their_time
from engine.cache import PageTable, Reading, joined
from engine.draft import Candidates, DraftRequest, DraftState, draft_candidates, take_in_context
from engine.errors import EngineError
from engine.grammar.constraint import Constraint
from engine.lookup import Lookup, graft
from engine.runtime import Runtime, Sampling, Speculation
from engine.sampling import NoChoiceError, TokenCounts, TokenLogprob, chooser, token_logprobs
from engine.tree import DraftTree, build_tree, spine_length, visibility, walk
from kernels.tree_attention import tree_bias


@dataclass
class Generation:
    """One request under way. `token_ids` are the tokens generated so far; `position` is that of the last of them, which
    is also the number of tokens in the cache. `draft` is None where the request does not draft, `counts` where no penalty
    asks for them, `logprobs` (how many alternatives to tell of) where none are wanted, `lookup` where nothing is looked up,
    `constraint` where the answer may be any text.
    """

    prompt_ids: list[int]
    sampling: Sampling
    speculation: Speculation
    table: PageTable
    draft: DraftState | None
    counts: TokenCounts | None = None
    logprobs: int | None = None
    lookup: Lookup | None = None
    constraint: Constraint | None = None
    cached_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    position: int = 0

    @property
    def text(self) -> list[int]:
        """Prompt and answer."""
        return self.prompt_ids + self.token_ids


@dataclass(frozen=True)
class Round:
    """What one round did for one request. `tokens`: what it adds, the bonus last; none where it came to `failure`. `nodes`: rows
    verified, the root included.

    `path`: accepted node ids of `tree`, root first. `spine_length`: tokens the tree's rank-0 nodes alone would have added.
    `stages_ms`: milliseconds the whole batch took in draft, build, verify, walk, commit. `captured`: it was a captured graph.
    """

    tokens: list[int]
    nodes: int
    stages_ms: dict[str, float]
    tree: DraftTree
    path: tuple[int, ...]
    spine_length: int
    logprobs: tuple[TokenLogprob, ...] = ()
    failure: EngineError | None = None
    captured: bool = False


@torch.inference_mode()
def decode_round(runtime: Runtime, batch: Sequence[Generation]) -> list[Round]:
    """One round for all of `batch`: adds 1 to depth + 1 tokens to each one's `token_ids`; callers decide where to stop.

    A request whose logits are not finite gets a Round with `failure` and is left as it was; it takes no other with it.
    """
    stages: dict[str, float] = {}
    budgets = [reserve(runtime, generation) for generation in batch]
    with _timed(stages, "draft"):
        candidates = _draft(runtime, batch, budgets)
    with _timed(stages, "build"):
        whole = [
            _with_lookup(generation, build_tree(generation.token_ids[-1], *drafted, budget), budget)
            for generation, drafted, budget in zip(batch, candidates, budgets, strict=True)
        ]
        trees = _worth_their_time(runtime, batch, whole)
        sees = [visibility(tree) for tree in trees]
    with _timed(stages, "verify"):
        hidden, features = run_target(
            runtime,
            [
                Rows(generation, tree.token_ids, [generation.position + depth for depth in tree.depths], visible)
                for generation, tree, visible in zip(batch, trees, sees, strict=True)
            ],
        )
        sizes = [len(tree) for tree in trees]
        logits = runtime.target.logits(hidden).split(sizes)
    with _timed(stages, "walk"):
        walks = [_walk(*each) for each in zip(batch, trees, logits, strict=True)]
    with _timed(stages, "commit"):
        return [
            _commit(runtime, generation, tree, walked, kept_features, rows, stages)
            for generation, tree, walked, kept_features, rows in zip(
                batch, trees, walks, features.split(sizes), logits, strict=True
            )
        ]


def reserve(runtime: Runtime, generation: Generation) -> int:
    """Slots for this round; gives the tree budget they allow, 0 where the draft block itself has no room.

    Near the end of a full pool trees shrink: that costs speed, never a token.
    """
    if generation.draft is None:
        grow(runtime, generation, generation.position + 1)
        return 0
    horizon = runtime.block_size - 1
    wanted = horizon if generation.speculation.mode == "dflash" else generation.speculation.tree_budget
    room = generation.table.grow(generation.position + 1 + max(wanted, horizon)) - generation.position - 1
    if room < 0:
        grow(runtime, generation, generation.position + 1)
    return min(wanted, room) if room >= horizon else 0


def _draft(runtime: Runtime, batch: Sequence[Generation], budgets: Sequence[int]) -> list[Candidates]:
    """Candidates [depth][rank] for each request's tree; none where a request does not draft."""
    drafted: list[Candidates] = [([], []) for _ in batch]
    asked: dict[int, DraftRequest] = {}
    for number, (generation, budget) in enumerate(zip(batch, budgets, strict=True)):
        if runtime.drafting is None or generation.draft is None:
            continue
        if budget == 0:  # no room to draft this time: the drafter must not miss the context it will need later
            take_in_context(runtime.drafting, generation.table, generation.draft)
            continue
        ranks = 1 if generation.speculation.mode == "dflash" else min(budget, runtime.target.config.vocab_size)
        asked[number] = DraftRequest(generation.table, generation.draft, generation.token_ids[-1], ranks)
    if runtime.drafting is not None and asked:
        found = draft_candidates(runtime.drafting, runtime.target, list(asked.values()))
        for number, candidates in zip(asked, found, strict=True):
            drafted[number] = candidates
    return drafted


def _with_lookup(generation: Generation, tree: DraftTree, budget: int) -> DraftTree:
    """The tree with what the text's own repetition suggests, within the same budget."""
    return tree if generation.lookup is None else graft(tree, generation.lookup.branches(tree, budget), budget)


def _worth_their_time(runtime: Runtime, batch: Sequence[Generation], trees: Sequence[DraftTree]) -> Sequence[DraftTree]:
    """The trees, where costs were measured cut to what raises the batch's expected tokens a second."""
    cost = runtime.cost
    if cost is None or all(generation.speculation.mode != "ddtree" for generation in batch):
        return trees
    context = sum(generation.position for generation in batch) // len(batch)
    # Chains are what their request asked for: whole.
    fixed = sum(
        len(tree) - 1 for generation, tree in zip(batch, trees, strict=True) if generation.speculation.mode != "ddtree"
    )
    weights = [
        tree.log_weights[1:] if generation.speculation.mode == "ddtree" else ()
        for generation, tree in zip(batch, trees, strict=True)
    ]
    sizes = sizes_worth_their_time(weights, cost.draft_ms, lambda rows: cost.verify_ms(rows + fixed, context))
    return [
        tree.cut(size) if generation.speculation.mode == "ddtree" else tree
        for generation, tree, size in zip(batch, trees, sizes, strict=True)
    ]


@dataclass(frozen=True)
class Rows:
    """One request's part of a target forward: tokens written after its cached ones. Each sees everything cached, and of
    the new tokens what `visible` says.
    """

    generation: Generation
    token_ids: Sequence[int]
    positions: Sequence[int]
    visible: Tensor  # bool [tokens, tokens]


def run_target(runtime: Runtime, parts: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """One target forward over all parts' tokens -> (hidden [tokens, hidden], features [tokens, taps * hidden])."""
    config, device = runtime.target.config, runtime.target.device
    written, readings, first = [], [], 0
    for part in parts:
        table, start = part.generation.table, part.generation.position
        stop = start + len(part.token_ids)
        bias = tree_bias(part.visible.to(device), stop, config.heads // config.kv_heads, runtime.target.dtype)
        written.append(table.slots(start, stop))
        readings.append(Reading(slice(first, first + len(part.token_ids)), table.slots(0, stop), bias))
        first += len(part.token_ids)
    taps = runtime.drafting.taps if runtime.drafting and any(part.generation.draft for part in parts) else ()
    return runtime.target(
        torch.tensor([token for part in parts for token in part.token_ids], device=device),
        torch.tensor([position for part in parts for position in part.positions], device=device),
        runtime.target_kv.attend(joined(written), readings),
        taps,
    )


Walked = tuple[tuple[int, ...], int] | NoChoiceError


def _walk(generation: Generation, tree: DraftTree, logits: Tensor) -> Walked:
    """Accepted node ids and the bonus token after them; each choice under what stands before it on its own path."""
    positions = [generation.position + depth + 1 for depth in tree.depths]
    counts, constraint = generation.counts, generation.constraint

    def path_to(node: int) -> list[int]:
        return [tree.token_ids[n] for n in tree.path_to(node)[1:]]

    before = None if counts is None else lambda node: counts.after(path_to(node))
    fits = None if constraint is None else lambda node: constraint.fits_after(path_to(node))
    try:
        return walk(tree, chooser(logits, positions, generation.sampling, before, fits))
    except NoChoiceError as failure:
        return failure


def _commit(
    runtime: Runtime,
    generation: Generation,
    tree: DraftTree,
    walked: Walked,
    features: Tensor,
    logits: Tensor,
    stages_ms: dict[str, float],
) -> Round:
    """Keep the accepted path in cache, features and answer."""
    if isinstance(walked, NoChoiceError):
        return Round([], len(tree), stages_ms, tree, (), 0, failure=walked)
    path, bonus = walked
    runtime.target_kv.commit(generation.table, generation.position, path)
    if generation.draft is not None:
        generation.draft.features = features[list(path)]
    tokens = [*(tree.token_ids[node] for node in path[1:]), bonus]
    generation.token_ids += tokens
    generation.position += len(path)
    if generation.counts is not None:
        generation.counts.add(tokens)
    if generation.lookup is not None:
        generation.lookup.learn(tokens)
    if generation.constraint is not None:
        generation.constraint.add(tokens)
    told = () if generation.logprobs is None else token_logprobs(logits[list(path)], tokens, generation.logprobs)
    return Round(tokens, len(tree), stages_ms, tree, path, spine_length(tree, path), told)


def grow(runtime: Runtime, generation: Generation, tokens: int) -> None:
    """Slots for `tokens` positions. Raises EngineError where the pool has not as many."""
    if generation.table.grow(tokens) < tokens:
        mend = "wait for a running request to end, or raise pages"
        raise EngineError(f"the KV pool of {runtime.capacity_tokens} tokens is full", mend=mend)


@contextmanager
def _timed(stages: dict[str, float], stage: str) -> Iterator[None]:
    """Notes the milliseconds its block takes."""
    began = perf_counter()
    yield
    stages[stage] = (perf_counter() - began) * 1e3
