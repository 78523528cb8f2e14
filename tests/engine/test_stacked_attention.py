"""Many requests' attention in one call gives each what a call of its own gives, and nothing of another's cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache import STACKED_LENGTH, KvStore, Reading, Stack, alike

SLOTS, HEADS, KV_HEADS, DIM = 400, 6, 2, 8
GROUP = HEADS // KV_HEADS


def filled(latent_rank: int = 0) -> KvStore:
    store = KvStore(SLOTS, 1, 1 if latent_rank else KV_HEADS, DIM, torch.float32, latent_rank)
    generator = torch.Generator().manual_seed(3)
    store.keys.normal_(generator=generator)
    store.values.normal_(generator=generator)
    return store


@st.composite
def passes(draw: st.DrawFn) -> list[Reading]:
    """Requests with trees of different sizes, some consecutive in the cache, some scattered, some with a mask."""
    readings, first, order = (
        [],
        0,
        torch.randperm(SLOTS, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))),
    )
    free = 0
    for _ in range(draw(st.integers(1, 6))):
        nodes = draw(st.sampled_from([1, 1, 3, 4]))
        length = nodes + draw(st.integers(0, 60))
        slots = order[free : free + length] if draw(st.booleans()) else slice(free, free + length)
        bias = None
        if draw(st.booleans()):
            hidden = torch.rand(nodes, length, generator=torch.Generator().manual_seed(length)) < 0.3
            hidden[:, 0] = False
            bias = torch.zeros(nodes, length).masked_fill_(hidden, -torch.inf).repeat_interleave(GROUP, dim=0)
        readings.append(Reading(slice(first, first + nodes), slots, bias))
        first, free = first + nodes, free + length
    return readings


@settings(max_examples=80, deadline=None)
@given(passes())
def test_a_pass_gives_each_request_what_it_gets_alone(readings: list[Reading]) -> None:
    store, rows = filled(), readings[-1].rows.stop
    q = torch.randn(rows, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    new = torch.randn(2, KV_HEADS, DIM)
    together = store.attend(slice(398, 400), readings)(0, q, new, new)
    alone = torch.cat([reading.attend(q, store.keys[0], store.values[0]) for reading in readings])
    assert together.shape == (rows, HEADS * DIM)
    torch.testing.assert_close(together, alone, rtol=2e-6, atol=2e-6)


@settings(max_examples=80, deadline=None)
@given(passes())
def test_groups_hold_every_request_once_and_only_what_is_alike(readings: list[Reading]) -> None:
    groups = alike(readings)
    assert sorted(reading.rows.start for group in groups for reading in group) == [r.rows.start for r in readings]
    for group in groups:
        assert len({reading.nodes for reading in group}) == 1
        lengths = [reading.length for reading in group]
        assert max(lengths) <= 1.5 * min(lengths) + 64
        assert [reading.rows.start for reading in group] == sorted(reading.rows.start for reading in group)


def test_eight_short_contexts_are_one_call_and_long_ones_are_their_own() -> None:
    short = [Reading(slice(n, n + 1), slice(50 * n, 50 * n + 40 + n), None) for n in range(8)]
    assert [len(group) for group in alike(short)] == [8]
    long = [Reading(slice(n, n + 1), slice(0, STACKED_LENGTH + n), None) for n in range(3)]
    assert [len(group) for group in alike(long)] == [1, 1, 1]


def test_equal_lengths_without_masks_need_none() -> None:
    readings = [Reading(slice(n, n + 1), slice(10 * n, 10 * n + 10), None) for n in range(3)]
    assert Stack.of(readings, torch.float32, torch.device("cpu")).bias is None


@pytest.mark.parametrize("latent_rank", [0, 6])
def test_what_another_request_broke_stays_with_it(latent_rank: int) -> None:
    """Its rows may hold no numbers at all: the others' answers are not touched by it."""
    store = filled(latent_rank)
    q = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    readings = [Reading(slice(n, n + 1), slice(100 * n, 100 * n + 30 + 5 * n), None) for n in range(3)]
    store.keys[:, 200:] = torch.nan
    store.values[:, 200:] = torch.nan
    heads = 1 if latent_rank else KV_HEADS
    new = torch.full((1, heads, DIM), torch.nan)
    told = store.attend(slice(399, 400), readings)(0, q, new, new[..., : 0 if latent_rank else DIM])
    assert told[:2].isfinite().all()
    assert told[2].isnan().all()
