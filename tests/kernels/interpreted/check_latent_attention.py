"""Latent attention in the interpreter against its reference in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.latent_attention import latent_attention, launches, reference
from kernels.launch import KNOWN_GPUS
from kernels.paged_attention import Tile
from tests.kernels.interpreted.inputs import (
    close,
    error_ratio,
    guarded,
    numbers,
    programs_in_another_order,
    random_pages,
    random_parents,
    slots_of,
    tree_of,
    words_of,
)

RANK, ROTARY, SCALE = 40, 8, 0.3


def scene(nodes: int, live: int, length: int, heads: int, page: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """(q, cache, page table, extent, ancestors): a poisoned pool with just the needed slots filled."""
    pool_pages = -(-(length + live) // page) + 3
    table = random_pages(length + live, page, pool_pages, seed=length)
    cache, _ = guarded(pool_pages * page, RANK + ROTARY, dtype=dtype, fill=math.nan)
    cache[slots_of(table, torch.arange(length + live), page)] = numbers(
        length + live, RANK + ROTARY, dtype=dtype, seed=1
    )
    q = numbers(nodes, heads, RANK + ROTARY, dtype=dtype, seed=3)
    q[live:] = math.nan
    words = words_of(tree_of(random_parents(nodes, seed=nodes))[0])
    return q, cache, table, torch.tensor([length, live], dtype=torch.int32), words


@pytest.mark.parametrize(("page", "tile"), [(1, 16), (7, 16), (16, 16), (64, 32), (256, 16)])
@pytest.mark.parametrize(("nodes", "live", "length", "heads", "split", "dtype"), [
    (1, 1, 40, 2, 4, torch.float32), (9, 9, 50, 3, 2, torch.float16), (37, 35, 0, 1, 1, torch.float32), (5, 2, 16, 4, 3, torch.float32),
])  # fmt: skip
def test_nodes_see_the_context_and_their_ancestors(
    page: int, tile: int, nodes: int, live: int, length: int, heads: int, split: int, dtype: torch.dtype
) -> None:
    given = scene(nodes, live, length, heads, page, dtype)
    out, guard = guarded(nodes, heads * RANK, dtype=dtype, fill=math.nan)
    with programs_in_another_order(seed=page):
        for launch in launches(*given, out, SCALE, page, length, KNOWN_GPUS[90], Tile(16, tile, 4, 2), split):
            launch.run()
    close(out, reference(given[0].double(), given[1].double(), *given[2:], RANK, SCALE, page))
    assert guard.isnan().all() and out[live:].count_nonzero() == 0


def test_the_public_function_runs_the_kernel_and_names_what_is_wrong() -> None:
    given = scene(4, 4, 30, 2, 16, torch.float32)
    ours = latent_attention(*given, rank=RANK, scale=SCALE, page_size=16, longest=30)
    exact = reference(given[0].double(), given[1].double(), *given[2:], RANK, SCALE, 16)
    assert 0 < error_ratio(ours, exact) < 3e-6
    with pytest.raises(ValueError, match=r"cache must be \[slots, 48\]"):
        latent_attention(given[0], given[1][:, :40], *given[2:], rank=RANK, scale=SCALE, page_size=16, longest=30)
