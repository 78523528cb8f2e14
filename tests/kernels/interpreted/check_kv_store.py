"""The fused norm, rotation and cache write in the interpreter against its reference in float64."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.kv_store import kv_store, reference
from kernels.rope import rope_frequencies, tables_reference
from tests.kernels.interpreted.inputs import (
    close,
    far_slots,
    guarded,
    numbers,
    programs_in_another_order,
    random_pages,
    slots_of,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("page", [1, 7, 16, 64, 256])
@pytest.mark.parametrize(("rows", "live", "heads", "kv_heads", "dim", "normed"), [
    (3, 3, 4, 2, 16, True), (5, 2, 3, 1, 24, False), (1, 1, 9, 3, 64, True),
])  # fmt: skip
def test_queries_keys_and_values_are_normed_turned_and_stored(
    dtype: torch.dtype, page: int, rows: int, live: int, heads: int, kv_heads: int, dim: int, normed: bool
) -> None:
    first, pool_pages = 29, 29 // page + 4
    table = random_pages(first + rows, page, pool_pages, seed=page)
    keys, key_guard = guarded(pool_pages * page, kv_heads, dim, dtype=dtype, fill=math.nan)
    values, value_guard = guarded(pool_pages * page, kv_heads, dim, dtype=dtype, fill=math.nan)
    qkv = numbers(rows, heads + 2 * kv_heads, dim, dtype=dtype)
    qkv[live:] = math.nan
    norms = (numbers(dim, dtype=dtype, seed=1), numbers(dim, dtype=dtype, seed=2)) if normed else None
    depths = torch.tensor([0, 1, 1, 2, 2])[:rows]
    tables = tables_reference(first + depths, rope_frequencies(dim, 1e4), dtype)
    extent = torch.tensor([first, live], dtype=torch.int32)

    with programs_in_another_order(seed=3):
        q = kv_store(qkv, norms, 1e-6, tables, table, extent, keys, values, page_size=page)

    wide_keys, wide_values = torch.zeros(2, *keys.shape, dtype=torch.float64)
    wide_tables = (tables[0].double(), tables[1].double())
    wide_norms = norms and (norms[0].double(), norms[1].double())
    exact = reference(qkv.double(), wide_norms, 1e-6, wide_tables, table, extent, wide_keys, wide_values, page)
    written = slots_of(table, torch.arange(first, first + live), page)
    close(q, exact)
    assert q[live:].count_nonzero() == 0
    close(keys[written], wide_keys[written])
    assert torch.equal(values[written], qkv[:live, heads + kv_heads :])
    untouched = torch.ones(len(keys), dtype=torch.bool).index_fill(0, written, False)
    assert keys[untouched].isnan().all() and values[untouched].isnan().all()
    assert key_guard.isnan().all() and value_guard.isnan().all()


def test_a_cache_with_gaps_inside_a_slot_is_refused() -> None:
    qkv, table = numbers(1, 4, 16), torch.zeros(1, dtype=torch.int32)
    cache = numbers(4, 1, 32)[:, :, ::2]
    tables = (torch.ones(1, 1, 16), torch.zeros(1, 1, 16))
    with pytest.raises(ValueError, match="keys must be contiguous within a slot"):
        kv_store(qkv, None, 1e-6, tables, table, torch.tensor([0, 1], dtype=torch.int32), cache, cache, page_size=16)


def test_slots_past_two_to_the_31_are_written() -> None:
    far, near = far_slots(16).view(22, 1, 16), numbers(22, 1, 16, dtype=torch.float16)
    qkv, table = numbers(2, 3, 16, dtype=torch.float16), torch.tensor([21, 20], dtype=torch.int32)
    tables, extent = (
        tables_reference(torch.tensor([0, 1]), rope_frequencies(16, 1e4), torch.float16),
        torch.tensor([0, 2]),
    )
    for keys in (far, near):
        values = numbers(22, 1, 16, dtype=torch.float16)
        kv_store(qkv, None, 1e-6, tables, table, extent.to(torch.int32), keys, values, page_size=1)
    assert torch.equal(far[20:], near[20:])
