"""Whatever the model, page size, budget, chunk, company and known beginnings: a tree's answer is the plain one.

Requests of all modes come at any time and share one pool; each must give what it gives alone, token by token, and leave
the pool as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import KINDS, VOCAB, write_models

from engine.config import config_from_toml
from engine.generate import generate
from engine.prefill import begin, prefill, prefill_chunk, release
from engine.round import Generation, decode_round
from engine.runtime import Runtime, Sampling, Speculation, load_runtime

Load = Callable[[str, int, bool], Runtime]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """(model kind or "tiny", page size, whether prefixes are kept) -> a runtime, one for equal arguments."""
    folders = {kind: write_models(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}

    @cache
    def make(kind: str, page_size: int, prefixes: bool) -> Runtime:
        target, drafter = folders[kind]
        return load_runtime(
            config_from_toml(
                f'[model]\npath = "{target}"\ndrafter = "{drafter}"\n[context]\ncontext_length = 96\n'
                f"[kv]\npage_size = {page_size}\npages = {700 // page_size + 1}\nprefix_cache = {str(prefixes).lower()}\n"
            )
        )

    return make


@dataclass(frozen=True)
class Request:
    """One request of a mix: it comes before round `arrives`, and ends after `tokens`."""

    prompt: tuple[int, ...]
    speculation: Speculation
    sampling: Sampling
    tokens: int
    arrives: int


BEGINNINGS = [tuple((7 * i + 3) % VOCAB for i in range(40)), tuple((5 * i + 1) % VOCAB for i in range(40))]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8, seed=11),
    Sampling(temperature=1.3, seed=5, top_p=0.9, top_k=20, min_p=0.02),
    Sampling(repetition_penalty=1.4, frequency_penalty=0.6, presence_penalty=0.4),
    Sampling(temperature=0.9, seed=3, repetition_penalty=1.2, logit_bias=((4, 3.0), (9, -100.0))),
]
SPECULATIONS = [
    Speculation("off"),
    Speculation("dflash"),
    Speculation("dflash", lookup="on"),
    *(Speculation("ddtree", budget) for budget in (1, 4, 13, 40)),
    *(Speculation("ddtree", budget, "auto") for budget in (4, 40)),
    Speculation("ddtree", 13, "on"),
]

requests = st.builds(
    lambda beginning, length, ending, speculation, sampling, tokens, arrives: Request(
        (*beginning[:length], *ending), speculation, sampling, tokens, arrives
    ),
    st.sampled_from(BEGINNINGS),
    st.integers(0, 40),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6).map(tuple),
    st.sampled_from(SPECULATIONS),
    st.sampled_from(SAMPLINGS),
    st.integers(1, 24),
    st.integers(0, 8),
)


def serve_together(runtime: Runtime, mix: list[Request], chunk: int) -> list[Generation]:
    """Run a mix to its end: each turn one chunk of one prompt, and one round of all that decode."""
    found: dict[int, Generation] = {}
    turn = 0
    while len(found) < len(mix) or any(len(g.token_ids) < mix[n].tokens for n, g in found.items()):
        for number, request in enumerate(mix):
            if number not in found and request.arrives <= turn:
                found[number] = begin(runtime, request.prompt, request.sampling, request.speculation)
        filling = [generation for generation in found.values() if not generation.token_ids]
        if filling:
            prefill_chunk(runtime, filling[0], chunk)
        decoding = [g for n, g in found.items() if g.token_ids and g.table.pages and len(g.token_ids) < mix[n].tokens]
        if decoding:
            decode_round(runtime, decoding)
        for number, generation in found.items():
            if len(generation.token_ids) >= mix[number].tokens and generation.table.pages:
                release(runtime, generation)
        turn += 1
    return [found[number] for number in range(len(mix))]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    mix=st.lists(requests, min_size=1, max_size=5),
    page_size=st.sampled_from([1, 3, 16]),
    chunk=st.sampled_from([1, 7, 16, 17, 512]),
    prefixes=st.booleans(),
)
def test_every_answer_of_any_mix_is_the_plain_answer_and_the_pool_is_whole_at_the_end(
    load: Load, kind: str, mix: list[Request], page_size: int, chunk: int, prefixes: bool
) -> None:
    runtime, plain = load(kind, page_size, prefixes), load(kind, 16, False)
    generations = serve_together(runtime, mix, chunk)
    for request, generation in zip(mix, generations, strict=True):
        alone = generate(plain, request.prompt, request.sampling, Speculation("off"), max_tokens=request.tokens)
        assert generation.token_ids[: request.tokens] == alone.token_ids, request
    pool = runtime.pool
    assert pool.used == 0
    assert pool.free == pool.total
    assert pool.kept == (len(pool.index) if pool.index is not None else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_known_beginning_changes_neither_tokens_nor_commit_lengths(load: Load, kind: str, page_size: int) -> None:
    cold, warm = load(kind, page_size, False), load(kind, page_size, True)
    for prompt in ((*BEGINNINGS[0], 9, 9), (*BEGINNINGS[0], 9, 4), BEGINNINGS[0][:32]):
        for speculation in (Speculation("ddtree", 13), Speculation("dflash"), Speculation("off")):
            alone = generate(cold, prompt, Sampling(), speculation, max_tokens=14)
            for _ in range(2):
                again = generate(warm, prompt, Sampling(), speculation, max_tokens=14)
                assert (again.token_ids, again.commit_lengths) == (alone.token_ids, alone.commit_lengths)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_second_run_of_a_prompt_computes_its_last_token_alone(load: Load, page_size: int) -> None:
    runtime = load("llama", page_size, True)
    prompt = [(3 * i + page_size) % VOCAB for i in range(42)]
    known = []
    for _ in range(2):
        generation = begin(runtime, prompt, Sampling(), Speculation("ddtree", 4))
        known.append(generation.cached_tokens)
        while prefill_chunk(runtime, generation) is None:
            pass
        while len(generation.token_ids) < 20:
            decode_round(runtime, [generation])
        release(runtime, generation)
    assert known[0] < 3 and known[1] == 41
    follow_up = prompt + generation.token_ids[:12] + [5, 6]
    turn_two = begin(runtime, follow_up, Sampling(), Speculation("ddtree", 4))
    assert turn_two.cached_tokens >= len(prompt) + 12 - page_size + 1, "an answer is known as well as its prompt"
    release(runtime, turn_two)


def test_pages_of_a_request_that_did_not_draft_are_no_beginning_for_one_that_does(load: Load) -> None:
    runtime = load("llama", 4, True)
    prompt = [(11 * i + 2) % VOCAB for i in range(30)]
    release(runtime, prefill(runtime, prompt, Sampling(), Speculation("off")))
    drafting = begin(runtime, prompt, Sampling(), Speculation("ddtree", 4))
    assert drafting.cached_tokens == 0
    while prefill_chunk(runtime, drafting) is None:
        pass
    release(runtime, drafting)
    plain = begin(runtime, [*prompt, 1], Sampling(), Speculation("off"))
    assert plain.cached_tokens >= 28
    release(runtime, plain)


def test_what_a_failed_request_left_in_its_pages_is_never_found(load: Load) -> None:
    runtime = load("llama", 4, True)
    prompt = [(19 * i + 7) % VOCAB for i in range(30)]
    failed = begin(runtime, prompt, Sampling(), Speculation("off"))
    assert failed.cached_tokens < 4
    while prefill_chunk(runtime, failed) is None:
        pass
    known = len(runtime.pool.index or ())
    while len(failed.token_ids) < 20:
        decode_round(runtime, [failed])
    release(runtime, failed, sound=False)
    assert len(runtime.pool.index or ()) == known, (
        "the prompt's pages were known before it failed, the answer's are not"
    )
    assert runtime.pool.used == 0


def test_chunks_are_smaller_where_their_masks_would_be_large(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = load("deepseek", 16, False)
    monkeypatch.setattr("engine.prefill.MASK_BYTES", 4 * 4 * 40 * 8)  # eight tokens of four heads at forty positions
    generation, sizes = begin(runtime, BEGINNINGS[0], Sampling(), Speculation("off")), [0]
    while prefill_chunk(runtime, generation, 10) is None:
        sizes.append(generation.position)
    assert sizes[1] == 10 and all(a < b for a, b in pairwise(sizes))
    assert sizes[-1] - sizes[-2] < 10
    plain = generate(runtime, BEGINNINGS[0], Sampling(), Speculation("off"), max_tokens=1)
    assert generation.token_ids == plain.token_ids
    release(runtime, generation)


def test_a_shared_page_is_never_written(load: Load) -> None:
    runtime = load("deepseek", 4, True)
    prompt = [(13 * i + 5) % VOCAB for i in range(33)]
    release(runtime, prefill(runtime, prompt, Sampling(), Speculation("ddtree", 13)))
    batch = [prefill(runtime, [*prompt, tail], Sampling(), Speculation("ddtree", 13)) for tail in (1, 2, 3)]
    shared = set(batch[0].table.pages) & set(batch[1].table.pages) & set(batch[2].table.pages)
    assert len(shared) == 8, "33 tokens fill eight pages of four"
    slots = [page * 4 + offset for page in shared for offset in range(4)]
    assert runtime.drafting is not None
    stores = (runtime.target_kv.keys, runtime.drafting.kv.keys, runtime.drafting.kv.values)
    before = [store[:, slots].clone() for store in stores]
    for _ in range(30):
        decode_round(runtime, [generation for generation in batch if len(generation.token_ids) < 40])
    assert all((store[:, slots] == then).all() for store, then in zip(stores, before, strict=True))
    for generation in batch:
        release(runtime, generation)


def test_kept_pages_make_room_for_others_and_are_then_forgotten(load: Load) -> None:
    runtime = load("llama", 16, True)
    pool, seen = runtime.pool, Sampling()
    for number in range(30):
        prompt = [(number * 17 + 3 * i) % VOCAB for i in range(64)]
        release(runtime, prefill(runtime, prompt, seen, Speculation("ddtree", 4)))
        assert pool.used + pool.free == pool.total and pool.used == 0
        assert pool.index is not None and pool.kept == len(pool.index) <= pool.total
    first = begin(runtime, [3 * i % VOCAB for i in range(64)], replace(seen), Speculation("ddtree", 4))
    assert first.cached_tokens < 16, "it was used least recently"
    release(runtime, first)
