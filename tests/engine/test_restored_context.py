"""What the drafter knows of a text: the same whether it was computed here or found in shared pages, near or far, whole or
narrowed to a window; and how far a run in bfloat16 may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from small_models import VOCAB, write_models
from torch import Tensor

import engine.draft
from engine.config import config_from_toml
from engine.generate import generate
from engine.prefill import begin, prefill, prefill_chunk, release
from engine.round import Generation, decode_round
from engine.runtime import Runtime, Sampling, Speculation, load_runtime

BEGINNING = [(7 * i + 3) % VOCAB for i in range(70)]
TREE = Speculation("ddtree", 13)

Load = Callable[..., Runtime]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A Llama with its drafter under some settings; equal ones share a runtime."""
    target, drafter = write_models("llama", tmp_path_factory.mktemp("llama"))

    @cache
    def make(page_size: int, window: int = 0, prefixes: bool = True, dtype: str = "float32") -> Runtime:
        return load_runtime(
            config_from_toml(
                f'[model]\npath = "{target}"\ndrafter = "{drafter}"\ndtype = "{dtype}"\n[context]\ncontext_length = 160\n'
                f"[kv]\npage_size = {page_size}\npages = {800 // page_size + 1}\nprefix_cache = {str(prefixes).lower()}\n"
                f"[speculation]\ndraft_window = {window}\n"
            )
        )

    return make


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every draft's logits, in order."""
    seen: list[Tensor] = []
    plain = engine.draft.draft_topk

    def capture(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        seen.append(logits.clone())
        return plain(logits, k)

    monkeypatch.setattr(engine.draft, "draft_topk", capture)
    return seen


def run(runtime: Runtime, prompt: list[int], chunk: int, tokens: int = 16) -> Generation:
    """Prefill in chunks and decode; no position of the text may ever be missing from what the drafter has or awaits."""
    generation = begin(runtime, prompt, Sampling(), TREE)
    while prefill_chunk(runtime, generation, chunk) is None:
        pass
    while len(generation.token_ids) < tokens:
        decode_round(runtime, [generation])
        assert generation.draft is not None
        assert generation.draft.rows + len(generation.draft.features) == generation.position
    release(runtime, generation)
    return generation


@pytest.mark.parametrize("window", [0, 8, 30])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("known", [41, 64, 70])
def test_drafts_over_a_restored_beginning_are_those_of_a_cold_run(
    load: Load, drafts: list[Tensor], page_size: int, window: int, known: int
) -> None:
    cold, warm = load(page_size, window, prefixes=False), load(page_size, window)
    prompt = [*BEGINNING[:known], 5, page_size % VOCAB, window]
    run(warm, [*BEGINNING[:known], 1], chunk=17)
    del drafts[:]
    plain = run(cold, prompt, chunk=512)
    of_plain = list(drafts)
    del drafts[:]
    for chunk in (512, page_size, page_size + 1):
        again = run(warm, prompt, chunk)
        assert again.cached_tokens >= known - page_size + 1 if page_size > 1 else again.cached_tokens >= known - 1
        assert again.token_ids == plain.token_ids
        assert len(drafts) == len(of_plain)
        for ours, theirs in zip(drafts, of_plain, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-3)
        del drafts[:]


def test_a_second_turn_that_shares_all_but_the_last_tokens_drafts_as_a_fresh_one(
    load: Load, drafts: list[Tensor]
) -> None:
    cold, warm = load(16, prefixes=False), load(16)
    first = run(warm, BEGINNING[:40], chunk=512, tokens=30)
    turn_two = [*BEGINNING[:40], *first.token_ids[:-3], 8, 9, 10]
    del drafts[:]
    plain = run(cold, turn_two, chunk=512)
    of_plain = list(drafts)
    del drafts[:]
    again = run(warm, turn_two, chunk=512)
    assert again.cached_tokens >= 40 and again.token_ids == plain.token_ids
    assert all(torch.allclose(ours, theirs, atol=1e-3) for ours, theirs in zip(drafts, of_plain, strict=True))


@pytest.mark.parametrize(("window", "reaches"), [(0, True), (8, False), (69, False), (70, True)])
def test_a_window_hides_from_the_drafter_what_is_older_and_changes_no_token(
    load: Load, drafts: list[Tensor], window: int, reaches: bool
) -> None:
    runtime = load(16, window, prefixes=False)
    assert runtime.drafting is not None
    plain = generate(load(16, prefixes=False), BEGINNING, Sampling(), Speculation("off"), max_tokens=16)
    assert run(runtime, BEGINNING, chunk=512).token_ids[:16] == plain.token_ids
    del drafts[:]
    for disturbed in (False, True):
        generation = prefill(runtime, BEGINNING, Sampling(), TREE)
        if disturbed:  # the seed stands at position 70, so a window of 70 begins at position 1
            runtime.drafting.kv.values[:, generation.table.slots(0, 2)] += 10.0
        decode_round(runtime, [generation])
        release(runtime, generation)
    assert torch.allclose(drafts[0], drafts[1], atol=1e-4) is not reaches


def test_target_and_drafter_have_rows_of_their_own(load: Load) -> None:
    runtime = load(16, prefixes=False)
    assert runtime.drafting is not None
    theirs = runtime.drafting.kv.keys.clone(), runtime.drafting.kv.values.clone()
    runtime.target_kv.keys.fill_(7.0)
    runtime.target_kv.values.fill_(7.0)
    assert torch.equal(runtime.drafting.kv.keys, theirs[0]) and torch.equal(runtime.drafting.kv.values, theirs[1])


NEAR = 0.25


@pytest.mark.parametrize("speculation", [Speculation("dflash"), TREE, Speculation("ddtree", 40)], ids=str)
def test_in_bfloat16_a_run_may_only_part_from_the_plain_one_where_two_tokens_were_nearly_equal(
    load: Load, speculation: Speculation
) -> None:
    runtime, parted = load(16, prefixes=False, dtype="bfloat16"), 0
    for start in range(12):
        prompt = [(start * 11 + 5 * i) % VOCAB for i in range(20)]
        told = begin(runtime, prompt, Sampling(), Speculation("off"), logprobs=2)
        while prefill_chunk(runtime, told) is None:
            pass
        gaps = []
        while len(told.token_ids) < 40:
            (step,) = decode_round(runtime, [told])
            best = step.logprobs[0].best
            gaps.append(best[0][1] - best[1][1])
        release(runtime, told)
        ours = generate(runtime, prompt, Sampling(), speculation, max_tokens=40).token_ids
        differing = [place for place in range(40) if ours[place] != told.token_ids[place]]
        if differing:
            parted += 1
            assert differing[0] > 0, "the first token comes from the same prefill"
            assert gaps[differing[0] - 1] < NEAR, "the choice was clear, and yet it differs"
    assert parted < 12, "not every answer is near a tie"
