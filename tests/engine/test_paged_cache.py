"""Pages are never lost, never owned twice, and an accepted path ends up where a chain would have put it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from torch import Tensor

from engine.cache import KvStore, PagePool, PageTable


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, grow and go in any order."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(pages=13, page_size=3)
        self.alive: list[PageTable] = []

    @rule(target=tables)
    def start(self) -> PageTable:
        self.alive.append(PageTable(self.pool))
        return self.alive[-1]

    @rule(table=tables, tokens=st.integers(0, 45))
    def grow(self, table: PageTable, tokens: int) -> None:
        before, free = table.capacity, self.pool.free
        capacity = table.grow(tokens)
        assert capacity == table.capacity >= before
        assert capacity >= tokens or self.pool.free == 0
        assert capacity - before <= max(0, -(-(tokens - before) // 3) * 3)
        assert free - self.pool.free == (capacity - before) // 3

    @rule(table=consumes(tables))
    def end(self, table: PageTable) -> None:
        table.release()
        self.alive.remove(table)
        assert table.capacity == 0

    @invariant()
    def every_page_is_free_or_owned_once(self) -> None:
        owned = [page for table in self.alive for page in table.pages]
        assert len(owned) == len(set(owned)) == self.pool.used
        assert self.pool.used + self.pool.free == self.pool.total

    @invariant()
    def positions_have_slots_of_their_own(self) -> None:
        slots = [slot for table in self.alive for slot in slots_of(table, 0, table.capacity)]
        assert len(slots) == len(set(slots))
        assert all(0 <= slot < 13 * 3 for slot in slots)

    @invariant()
    def position_p_lies_in_page_p_over_page_size(self) -> None:
        for table in self.alive:
            for position, slot in enumerate(slots_of(table, 0, table.capacity)):
                assert slot == table.pages[position // 3] * 3 + position % 3


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def slots_of(table: PageTable, start: int, stop: int) -> list[int]:
    found = table.slots(start, stop)
    return found.tolist() if isinstance(found, Tensor) else list(range(found.start, found.stop))


def test_giving_back_a_page_twice_is_refused() -> None:
    pool = PagePool(4, 16)
    pages = pool.take(2)
    pool.give_back(pages)
    with pytest.raises(ValueError, match="not owned"):
        pool.give_back(pages)
    assert pool.free == 4


def test_a_lone_sequence_reads_its_cache_in_place() -> None:
    pool = PagePool(8, 4)
    table = PageTable(pool)
    table.grow(5)
    table.grow(17)
    assert table.slots(2, 17) == slice(2, 17)
    other = PageTable(pool)
    other.grow(1)
    table.grow(28)
    assert isinstance(table.slots(0, 28), Tensor)
    assert slots_of(table, 19, 28) == [19, *range(24, 32)]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([1, 3, 7, 16]), st.integers(0, 20), st.integers(1, 12), st.booleans())
def test_commit_gathers_the_path_in_order_and_touches_nothing_else(
    data: st.DataObject, page_size: int, start: int, nodes: int, scattered: bool
) -> None:
    pool = PagePool(64, page_size)
    table, other = PageTable(pool), PageTable(pool)
    for tokens in range(page_size, start + nodes + page_size, page_size):
        table.grow(tokens)
        if scattered:  # a second sequence takes every other page
            other.grow(tokens)
    path = (0, *sorted(data.draw(st.sets(st.integers(1, nodes - 1)) if nodes > 1 else st.just(set()))))
    store = KvStore(64 * page_size, layers=2, kv_heads=1, head_dim=2, dtype=torch.float32)
    store.keys.copy_(torch.arange(store.keys.numel()).view_as(store.keys))
    store.values.copy_(-store.keys)
    keys = store.keys.clone()

    store.commit(table, start, path)

    after = keys.clone()
    for i, node in enumerate(path):
        after[:, slots_of(table, start + i, start + i + 1)] = keys[:, slots_of(table, start + node, start + node + 1)]
    kept = slots_of(table, 0, start + len(path))
    assert torch.equal(store.keys[:, kept], after[:, kept])
    assert torch.equal(store.values[:, kept], -after[:, kept])
    untouched = [slot for slot in range(64 * page_size) if slot not in kept]
    assert torch.equal(store.keys[:, untouched], keys[:, untouched])
