"""From a prompt to the first token: a known beginning is shared, the rest goes through the target chunk by chunk."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.cache import PageTable
from engine.draft import DraftState, take_in_context
from engine.errors import EngineError
from engine.grammar.constraint import Constraint
from engine.lookup import Lookup
from engine.round import Generation, Rows, grow, run_target
from engine.runtime import Runtime, Sampling, Speculation
from engine.sampling import TokenCounts, TokenLogprob, chooser, token_logprobs

CHUNK_TOKENS = 512
"""Prompt tokens a prefill pass takes at a time."""
MASK_BYTES = 64 * 2**20
"""A chunk's attention mask takes no more: deep in a long context chunks are smaller."""


def begin(
    runtime: Runtime,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    speculation: Speculation,
    *,
    logprobs: int | None = None,
) -> Generation:
    """A generation that has shared what is known of its prompt and computed nothing yet.

    Raises EngineError for a prompt that does not fit and for a mode the runtime cannot run.
    """
    check_request(runtime, prompt_ids, speculation)
    if sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbits(62))
    drafts = runtime.drafting is not None and speculation.mode != "off"
    vocab = runtime.target.config.vocab_size
    generation = Generation(
        list(prompt_ids),
        sampling,
        speculation,
        PageTable(runtime.pool),
        DraftState(torch.empty(0)) if drafts else None,
        TokenCounts.of(prompt_ids, vocab) if sampling.counts_tokens else None,
        logprobs,
        Lookup(adapts=speculation.lookup == "auto") if drafts and speculation.looks_up else None,
        Constraint(sampling.form) if sampling.form is not None else None,
    )
    _share_beginning(runtime, generation)
    return generation


@torch.inference_mode()
def prefill_chunk(
    runtime: Runtime, generation: Generation, tokens: int = CHUNK_TOKENS
) -> tuple[TokenLogprob, ...] | None:
    """Run the next `tokens` of the prompt; with the last of them the first token is chosen: `token_ids` then holds it.

    Gives None while there is more to run, then the first token's log-probability, if asked for. Raises EngineError where
    the pool is full and NoChoiceError; the caller then releases the generation.
    """
    first, config = generation.position, runtime.target.config
    token_bytes = config.heads // config.kv_heads * (first + tokens) * runtime.target.dtype.itemsize
    chunk = generation.prompt_ids[first : first + max(1, min(tokens, MASK_BYTES // token_bytes))]
    grow(runtime, generation, first + len(chunk))
    causal = torch.ones(len(chunk), len(chunk), dtype=torch.bool).tril()
    positions = range(first, first + len(chunk))
    hidden, features = run_target(runtime, [Rows(generation, chunk, positions, causal)])
    if runtime.drafting is not None and generation.draft is not None:
        generation.draft.features = features
        take_in_context(runtime.drafting, generation.table, generation.draft)
    generation.position += len(chunk)
    if generation.position < len(generation.prompt_ids):
        return None
    logits, counts = runtime.target.logits(hidden[-1:]), generation.counts
    constraint = generation.constraint
    before = None if counts is None else lambda row: counts
    fits = None if constraint is None else lambda row: constraint.fits_after(())
    token = chooser(logits, [generation.position], generation.sampling, before, fits)(0)
    generation.token_ids.append(token)
    if counts is not None:
        counts.add([token])
    if constraint is not None:
        constraint.add([token])
    if generation.lookup is not None:
        generation.lookup.read([*generation.prompt_ids, token])
    _make_known(runtime, generation)
    return () if generation.logprobs is None else token_logprobs(logits, [token], generation.logprobs)


def prefill(
    runtime: Runtime,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    speculation: Speculation,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Generation:
    """The whole prompt at once; `token_ids` of what is returned holds the first token. Raises EngineError as `begin` does."""
    generation = begin(runtime, prompt_ids, sampling, speculation)
    try:
        while prefill_chunk(runtime, generation, chunk_tokens) is None:
            pass
    except BaseException:
        release(runtime, generation)
        raise
    return generation


def release(runtime: Runtime, generation: Generation, *, sound: bool = True) -> None:
    """Give back what the request owns; it cannot decode any further.

    Its text is known to those that come after, unless it failed: what broke it may stand in its pages.
    """
    if generation.token_ids and sound:
        _make_known(runtime, generation)
    generation.table.release()


def check_request(runtime: Runtime, prompt_ids: Sequence[int], speculation: Speculation) -> None:
    """Raise EngineError for a request that cannot run."""
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


def _share_beginning(runtime: Runtime, generation: Generation) -> None:
    """Hold the pages of the longest known beginning, and copy what is known of the page after them.

    The last prompt token is always computed: its logits choose the first token. A page is only shared whole, so nothing is
    ever written into it; one that is known in part is copied, and the copy written on.
    """
    pool = runtime.pool
    if pool.index is None:
        return
    match = pool.index.find(generation.prompt_ids[:-1], drafted=generation.draft is not None)
    generation.table.share(match.pages)
    if match.rows:
        pool.share([match.partial])  # it must not be reclaimed for its own copy
        if generation.table.grow((len(match.pages) + 1) * pool.page_size) == (len(match.pages) + 1) * pool.page_size:
            _copy_rows(runtime, match.partial, generation.table.pages[-1], match.rows)
            generation.position = match.rows
        pool.give_back([match.partial])
    generation.position += len(match.pages) * pool.page_size
    generation.cached_tokens = generation.position
    if generation.draft is not None:
        generation.draft.rows = generation.position


def _copy_rows(runtime: Runtime, source: int, target: int, rows: int) -> None:
    size = runtime.pool.page_size
    sources, targets = (slice(page * size, page * size + rows) for page in (source, target))
    runtime.target_kv.copy(sources, targets)
    if runtime.drafting is not None:
        runtime.drafting.kv.copy(sources, targets)


def _make_known(runtime: Runtime, generation: Generation) -> None:
    """Tell the prefix index of the full pages whose rows are all in the caches."""
    if runtime.pool.index is None:
        return
    filled = generation.position if generation.draft is None else min(generation.position, generation.draft.rows)
    text = generation.text[:filled]
    runtime.pool.index.insert(text, generation.table.pages, drafted=generation.draft is not None)
