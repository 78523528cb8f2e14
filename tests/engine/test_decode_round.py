"""One round at a time: what is verified, kept, moved and given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import engine.draft
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.generate import generate
from engine.prefill import begin, prefill, prefill_chunk, release
from engine.round import Generation, Round, decode_round
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.tree import DraftTree

MODES = [Speculation("off"), Speculation("dflash"), Speculation("ddtree", 7), Speculation("ddtree", 64)]
PROMPT = [9, 33, 2, 58, 17, 41]


def finish(runtime: Runtime, generation: Generation, tokens: int) -> list[int]:
    """Decode until `tokens` are there, then release."""
    while len(generation.token_ids) < tokens:
        decode_round(runtime, [generation])[0]
    release(runtime, generation)
    return generation.token_ids[:tokens]


def round_and_logits(runtime: Runtime, generation: Generation) -> tuple[Round, Tensor]:
    """One round, and the target's logits it verified by, [nodes, vocab]."""
    plain, seen = runtime.target.logits, []

    def capture(hidden: Tensor) -> Tensor:
        seen.append(plain(hidden))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.target, "logits", capture)
        step = decode_round(runtime, [generation])[0]
    return step, seen[-1]


def logits_of_chain(runtime: Runtime, token_ids: list[int]) -> Tensor:
    """The target's logits [vocab] after the last of `token_ids`, run as one plain prompt and one plain step."""
    generation = prefill(runtime, token_ids[:-1], Sampling(), Speculation("off"))
    generation.token_ids = [token_ids[-1]]
    _, logits = round_and_logits(runtime, generation)
    release(runtime, generation)
    return logits[0]


@pytest.mark.parametrize("page_size", [1, 7, 16])
def test_every_node_of_a_branching_tree_has_the_logits_of_its_own_path(
    tiny: Callable[..., Runtime], page_size: int
) -> None:
    runtime = tiny(page_size=page_size)
    generation = prefill(runtime, PROMPT, Sampling(), Speculation("ddtree", 20))
    decode_round(runtime, [generation])[0]
    context = PROMPT + generation.token_ids[:-1]
    step, logits = round_and_logits(runtime, generation)
    tree = step.tree
    release(runtime, generation)
    assert len(logits) == 21 and max(tree.depths) > 1 and tree.parents.count(0) > 1
    for node in range(len(tree)):
        alone = logits_of_chain(runtime, context + tokens_to(tree, node))
        assert torch.allclose(logits[node], alone, atol=1e-4), node


def tokens_to(tree: DraftTree, node: int) -> list[int]:
    before = tokens_to(tree, tree.parents[node]) if node else []
    return [*before, tree.token_ids[node]]


@pytest.mark.parametrize("speculation", MODES, ids=str)
def test_the_cache_holds_what_a_plain_prompt_would_have_put_there(
    tiny: Callable[..., Runtime], speculation: Speculation
) -> None:
    runtime = tiny(page_size=7)
    generation = prefill(runtime, PROMPT, Sampling(), speculation)
    while len(generation.token_ids) < 40:
        decode_round(runtime, [generation])[0]
    whole = PROMPT + generation.token_ids
    rows = generation.table.slots(0, generation.position)
    decoded = runtime.target_kv.keys[:, rows].clone(), runtime.target_kv.values[:, rows].clone()
    assert generation.position == len(whole) - 1
    release(runtime, generation)

    fresh = prefill(runtime, whole[:-1], Sampling(), speculation)
    rows = fresh.table.slots(0, fresh.position)
    assert torch.allclose(decoded[0], runtime.target_kv.keys[:, rows], atol=1e-4)
    assert torch.allclose(decoded[1], runtime.target_kv.values[:, rows], atol=1e-4)
    release(runtime, fresh)


def test_drafts_do_not_depend_on_the_budget_and_draw_on_features_of_the_accepted_path(
    tiny: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    runtime, case = tiny(), expected["cases"][5]
    seen: list[Tensor] = []
    plain = engine.draft.draft_topk

    def capture(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        seen.append(logits)
        return plain(logits, k)

    monkeypatch.setattr(engine.draft, "draft_topk", capture)
    by_position: dict[int, list[Tensor]] = {}
    off_the_spine = 0
    for speculation in (Speculation("dflash"), *(Speculation("ddtree", budget) for budget in (1, 7, 64))):
        generation = prefill(runtime, case["prompt"], Sampling(), speculation)
        while len(generation.token_ids) < 60:
            position = generation.position
            step = decode_round(runtime, [generation])[0]
            by_position.setdefault(position, []).append(seen[-1])
            off_the_spine += step.path != tuple(range(len(step.path)))
        release(runtime, generation)
    assert off_the_spine > 0
    compared = [drafts for drafts in by_position.values() if len(drafts) > 1]
    assert len(compared) > 20
    for first, *others in compared:
        assert first.shape == (7, 64)
        assert all(torch.allclose(first, other, atol=1e-3) for other in others)


def test_a_round_reports_what_it_did(tiny: Callable[..., Runtime], expected: dict[str, Any]) -> None:
    runtime, case = tiny(), expected["cases"][4]
    generation = prefill(runtime, case["prompt"], Sampling(), Speculation("ddtree", 16))
    before = list(generation.token_ids)
    step = decode_round(runtime, [generation])[0]
    assert before == case["autoregressive"][:1]
    assert generation.token_ids == before + step.tokens == case["autoregressive"][: 1 + len(step.tokens)]
    assert step.nodes == len(step.tree) == 17
    assert list(step.stages_ms) == ["draft", "build", "verify", "walk", "commit"]
    assert all(milliseconds > 0 for milliseconds in step.stages_ms.values())
    assert len(step.tokens) == len(step.path) >= step.spine_length >= 1
    release(runtime, generation)


def test_the_spine_length_is_the_chains_commit_length(tiny: Callable[..., Runtime], expected: dict[str, Any]) -> None:
    runtime, case = tiny(), expected["cases"][5]
    tree_run = prefill(runtime, case["prompt"], Sampling(), Speculation("ddtree", 64))
    while len(tree_run.token_ids) < 40:
        position, seed = tree_run.position, tree_run.token_ids[-1]
        step = decode_round(runtime, [tree_run])[0]
        chain = prefill(runtime, (case["prompt"] + tree_run.token_ids)[:position], Sampling(), Speculation("dflash"))
        assert chain.token_ids == [seed]
        kept = len(decode_round(runtime, [chain])[0].tokens)
        # A tree may stop short of the chain's depth; where its whole spine was right, the chain can go on.
        spine_ended = step.spine_length == len(step.path) and step.path[-1] not in step.tree.parents
        assert kept >= step.spine_length if spine_ended else kept == step.spine_length
        release(runtime, chain)
    release(runtime, tree_run)


@pytest.mark.parametrize("speculation", MODES, ids=str)
def test_an_end_token_at_each_place_ends_the_answer_there_and_gives_every_page_back(
    tiny: Callable[..., Runtime], expected: dict[str, Any], speculation: Speculation
) -> None:
    runtime, case = tiny(page_size=7), expected["cases"][4]
    whole = case["autoregressive"]
    for last in range(1, 26):
        token = whole[last]
        if token not in whole[:last]:
            answer = generate(runtime, case["prompt"], Sampling(), speculation, max_tokens=96, stop_ids={token})
            assert (answer.token_ids, answer.finish_reason) == (whole[: last + 1], "stop")
            assert 1 + sum(answer.commit_lengths) == len(answer.token_ids)
            assert runtime.pages_used == 0
    ignoring = generate(
        runtime, case["prompt"], Sampling(), speculation, max_tokens=26, stop_ids=set(whole), ignore_eos=True
    )
    assert ignoring.token_ids == whole[:26]


@pytest.mark.parametrize("speculation", MODES, ids=str)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9])
def test_max_tokens_is_met_exactly(
    tiny: Callable[..., Runtime], expected: dict[str, Any], speculation: Speculation, max_tokens: int
) -> None:
    case = expected["cases"][4]
    answer = generate(tiny(), case["prompt"], Sampling(), speculation, max_tokens=max_tokens)
    assert (answer.token_ids, answer.finish_reason) == (case["autoregressive"][:max_tokens], "length")
    assert answer.steps == len(answer.commit_lengths) <= max_tokens - 1


@pytest.mark.parametrize("speculation", MODES, ids=str)
@pytest.mark.parametrize(("page_size", "pages"), [(16, 0), (1, 40), (8, 5)])
def test_the_context_is_filled_to_the_last_token_even_from_a_pool_with_no_room_to_spare(
    tiny: Callable[..., Runtime], expected: dict[str, Any], speculation: Speculation, page_size: int, pages: int
) -> None:
    runtime, case = tiny(context_length=40, page_size=page_size, pages=pages), expected["cases"][4]
    answer = generate(runtime, case["prompt"], Sampling(), speculation, max_tokens=96)
    room = 40 - len(case["prompt"])
    assert (answer.token_ids, answer.finish_reason) == (case["autoregressive"][:room], "length")


def test_prompts_and_requests_that_cannot_run_are_refused(tiny: Callable[..., Runtime]) -> None:
    runtime, without = tiny(context_length=40), tiny(drafter=False)
    for prompt, mode, loaded, says in (
        ([], "off", runtime, "the prompt holds no token"),
        ([3, 64], "off", runtime, "token id 64 lies outside the vocabulary of 64"),
        ([-1], "off", runtime, "token id -1 lies outside the vocabulary of 64"),
        ([1] * 40, "off", runtime, "the prompt of 40 tokens leaves no room in a context of 40"),
        ([1], "ddtree", without, 'mode "ddtree" needs a drafter, and none is loaded'),
    ):
        with pytest.raises(EngineError) as caught:
            prefill(loaded, prompt, Sampling(), Speculation(mode))  # type: ignore[arg-type]
        assert says in str(caught.value)
        assert loaded.pages_used == 0


def test_a_pool_shared_by_too_many_requests_says_that_it_is_full(tiny: Callable[..., Runtime]) -> None:
    runtime = tiny(context_length=32, page_size=8, pages=4)
    first = prefill(runtime, [1] * 20, Sampling(), Speculation("off"))
    with pytest.raises(EngineError, match="the KV pool of 32 tokens is full"):
        prefill(runtime, [1] * 20, Sampling(), Speculation("off"))
    assert runtime.pages_used == 3
    release(runtime, first)
    assert runtime.pages_used == 0


def test_a_request_that_had_no_room_to_draft_drafts_as_well_as_ever_once_there_is(
    tiny: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    runtime, case = tiny(context_length=60, page_size=4, pages=15), expected["cases"][4]
    seen: list[Tensor] = []
    plain = engine.draft.draft_topk

    def capture(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        seen.append(logits)
        return plain(logits, k)

    monkeypatch.setattr(engine.draft, "draft_topk", capture)
    generation = prefill(runtime, case["prompt"], Sampling(), Speculation("ddtree", 4))
    other = prefill(runtime, [1] * (4 * runtime.pool.free - 8), Sampling(), Speculation("off"))
    widths = []
    while len(generation.token_ids) < 9:
        widths.append(decode_round(runtime, [generation])[0].nodes)
        assert generation.draft is not None
        assert generation.draft.rows + len(generation.draft.features) == generation.position
    release(runtime, other)
    assert widths[-1] == 1
    assert decode_round(runtime, [generation])[0].nodes == 5
    late, done = seen[-1], len(case["prompt"]) + 9
    release(runtime, generation)
    fresh = prefill(
        runtime, (case["prompt"] + case["autoregressive"])[: done - 1], Sampling(), Speculation("ddtree", 4)
    )
    decode_round(runtime, [fresh])[0]
    release(runtime, fresh)
    assert torch.allclose(late, seen[-1], atol=1e-3)


def test_requests_in_turn_over_scattered_pages_do_not_disturb_each_other(
    tiny: Callable[..., Runtime], expected: dict[str, Any]
) -> None:
    runtime, cases = tiny(page_size=7, context_length=320, pages=120), expected["cases"][3:6]
    under_way = [
        prefill(runtime, case["prompt"], Sampling(), speculation)
        for case, speculation in zip(cases, (MODES[0], MODES[1], MODES[3]), strict=True)
    ]
    while min(len(generation.token_ids) for generation in under_way) < 60:
        for generation in under_way:
            decode_round(runtime, [generation])[0]
    for generation, case in zip(under_way, cases, strict=True):
        length = min(96, len(generation.token_ids))
        assert generation.token_ids[:length] == case["autoregressive"][:length]
        release(runtime, generation)


def test_a_long_prompt_goes_in_chunks_and_can_be_given_up_between_them(tiny: Callable[..., Runtime]) -> None:
    runtime = tiny(page_size=7)
    prompt = [(5 * i + 2) % 64 for i in range(50)]
    whole = finish(runtime, prefill(runtime, prompt, Sampling(), MODES[2]), 20)
    generation, positions = begin(runtime, prompt, Sampling(), MODES[2]), []
    while prefill_chunk(runtime, generation, 16) is None:
        positions.append(generation.position)
    assert positions == [16, 32, 48]
    assert finish(runtime, generation, 20) == whole
    given_up = begin(runtime, prompt, Sampling(), MODES[2])
    assert prefill_chunk(runtime, given_up, 16) is None
    release(runtime, given_up)
    assert runtime.pages_used == 0


def test_a_shorter_block_drafts_less_far_and_changes_no_token(
    tiny_config: Callable[..., EngineConfig], expected: dict[str, Any]
) -> None:
    config = tiny_config()
    short = load_runtime(replace(config, speculation=replace(config.speculation, block_size=3)))
    case = expected["cases"][4]
    answer = generate(short, case["prompt"], Sampling(), Speculation("dflash"), max_tokens=96)
    assert answer.token_ids == case["autoregressive"]
    assert max(answer.commit_lengths) == 3
    with pytest.raises(EngineError, match="block_size = 9 is outside 2-8"):
        load_runtime(replace(config, speculation=replace(config.speculation, block_size=9)))


def test_the_runtime_tells_what_it_came_to(tiny: Callable[..., Runtime]) -> None:
    runtime = tiny(page_size=7, context_length=100)
    # context and one block or tree beyond it, in whole pages: ceil((100 + 17) / 7)
    assert (runtime.pages_total, runtime.pages_used, runtime.capacity_tokens) == (17, 0, 119)
    assert runtime.max_context == 100
    # float32 keys and values: target 6 layers, drafter 2 layers, 2 heads of 16 each
    assert runtime.kv_bytes_per_token == 2 * (6 + 2) * 2 * 16 * 4
    assert runtime.config.model.dtype == "float32"
    assert runtime.config.speculation.block_size == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"context_length": 4096}, "context_length = 4096 is more than the model's 2048; lower it to 2048"),
        (
            {"context_length": 100, "page_size": 8, "pages": 12},
            "context_length = 100 is more than the 96 tokens the KV pool holds; lower it to 96, or raise pages",
        ),
        ({"pages": 10**12}, f"pages = {10**12} take {10**12 * 16 * 2048:,} bytes, and "),
    ],
)
def test_a_context_nothing_holds_is_refused_with_both_numbers(
    tiny_config: Callable[..., EngineConfig], arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineError) as caught:
        load_runtime(tiny_config(**arguments))
    assert says in str(caught.value)


def test_an_unsaid_context_is_what_model_and_pool_both_hold(tiny: Callable[..., Runtime]) -> None:
    assert tiny(context_length=0).max_context == 2048
    assert tiny(context_length=0, pages=10, page_size=16).max_context == 160
