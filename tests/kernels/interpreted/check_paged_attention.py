"""Paged tree attention in the interpreter against its reference in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.launch import KNOWN_GPUS
from kernels.paged_attention import Tile, launches, paged_attention, reference
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


class Scene:
    """Queries, a poisoned pool with just the needed slots filled, a shuffled page table and a random tree."""

    def __init__(
        self, *, nodes: int, live: int, length: int, heads: int, kv_heads: int, dim: int, page: int, dtype: torch.dtype
    ) -> None:
        self.page_size, self.length = page, length
        pool_pages = -(-(length + live) // page) + 3
        self.table = random_pages(length + live, page, pool_pages, seed=length)
        slots = slots_of(self.table, torch.arange(length + live), page)
        self.keys, self.key_guard = guarded(pool_pages * page, kv_heads, dim, dtype=dtype, fill=math.nan)
        self.values, self.value_guard = guarded(pool_pages * page, kv_heads, dim, dtype=dtype, fill=math.nan)
        self.keys[slots] = numbers(length + live, kv_heads, dim, dtype=dtype, seed=1)
        self.values[slots] = numbers(length + live, kv_heads, dim, dtype=dtype, seed=2)
        self.q = numbers(nodes, heads, dim, dtype=dtype, seed=3)
        self.q[live:] = math.nan
        visible, depths = tree_of(random_parents(nodes, seed=nodes))
        self.words, self.depths = words_of(visible), torch.tensor(depths, dtype=torch.int32)
        self.extent = torch.tensor([length, live], dtype=torch.int32)
        self.scale = 1 / math.sqrt(dim)

    def exact(self, window: int = 0) -> Tensor:
        wide = (self.q.double(), self.keys.double(), self.values.double())
        rest = (self.table, self.extent, self.words, self.page_size, self.scale, window, self.depths)
        return reference(*wide, *rest)

    def ours(self, tile: Tile | None, split: int | None, window: int = 0) -> Tensor:
        out, guard = guarded(self.q.shape[0], self.q.shape[1] * self.q.shape[2], dtype=self.q.dtype, fill=math.nan)
        given = (self.q, self.keys, self.values, self.table, self.extent, self.words, self.depths, out)
        gpu = KNOWN_GPUS[90]
        for launch in launches(*given, self.page_size, self.length, self.scale, window, gpu, tile, split):
            launch.run()
        assert guard.isnan().all()
        return out


@pytest.mark.parametrize(("page", "tile"), [(1, 16), (7, 16), (16, 16), (16, 32), (64, 32), (256, 16)])
@pytest.mark.parametrize(("nodes", "length", "heads", "kv_heads", "dim", "split", "dtype"), [
    (1, 37, 4, 4, 16, 1, torch.float32), (5, 0, 6, 2, 16, 2, torch.float16), (9, 61, 6, 2, 24, 4, torch.float32),
    (40, 23, 1, 1, 16, 2, torch.float16),
])  # fmt: skip
def test_nodes_see_the_context_and_their_ancestors_through_any_page_table(
    page: int, tile: int, nodes: int, length: int, heads: int, kv_heads: int, dim: int, split: int, dtype: torch.dtype
) -> None:
    scene = Scene(
        nodes=nodes, live=nodes, length=length, heads=heads, kv_heads=kv_heads, dim=dim, page=page, dtype=dtype
    )
    close(scene.ours(Tile(16, tile, 4, 2), split), scene.exact())


def test_splits_without_keys_weigh_nothing() -> None:
    scene = Scene(nodes=3, live=3, length=18, heads=2, kv_heads=1, dim=16, page=4, dtype=torch.float32)
    close(scene.ours(Tile(16, 16, 4, 2), 8), scene.exact())  # two tiles of keys, eight splits


@pytest.mark.parametrize("split", [1, 2])
def test_padding_nodes_give_nought_and_disturb_nobody(split: int) -> None:
    scene = Scene(nodes=20, live=6, length=45, heads=4, kv_heads=2, dim=16, page=7, dtype=torch.float32)
    ours = scene.ours(Tile(16, 16, 4, 2), split)
    close(ours, scene.exact())
    assert ours[6:].count_nonzero() == 0


@pytest.mark.parametrize(("length", "window"), [(50, 20), (50, 1), (5, 20), (64, 33)])
@pytest.mark.parametrize("split", [1, 2])
def test_a_window_is_counted_from_a_nodes_depth(length: int, window: int, split: int) -> None:
    scene = Scene(nodes=6, live=6, length=length, heads=2, kv_heads=1, dim=16, page=7, dtype=torch.float32)
    close(scene.ours(Tile(16, 16, 4, 2), split, window), scene.exact(window))


def test_program_order_does_not_matter() -> None:
    scene = Scene(nodes=12, live=12, length=70, heads=8, kv_heads=2, dim=16, page=7, dtype=torch.float32)
    in_order = scene.ours(Tile(16, 16, 4, 2), 4)
    with programs_in_another_order(seed=1):
        assert torch.equal(scene.ours(Tile(16, 16, 4, 2), 4), in_order)


def test_slots_whose_offset_passes_two_to_the_31_are_found() -> None:
    scene = Scene(nodes=2, live=2, length=17, heads=2, kv_heads=1, dim=16, page=1, dtype=torch.float16)
    stride = 2**31 // 20  # elements a slot, so that the last of 22 slots begins past 2^31
    memory = torch.empty(22 * stride, dtype=torch.float16)  # never touched but for the slots
    far = [memory[16 * part :].as_strided((22, 1, 16), (stride, 16, 1)) for part in range(2)]
    far[0].copy_(scene.keys[:22])
    far[1].copy_(scene.values[:22])
    near, exact = scene.ours(None, 1), scene.exact()
    assert int(scene.table.max()) >= 20
    scene.keys, scene.values = far
    assert torch.equal(scene.ours(None, 1), near)
    close(near, exact)


def test_the_public_function_runs_the_kernel_and_names_what_is_wrong() -> None:
    scene = Scene(nodes=5, live=5, length=30, heads=4, kv_heads=2, dim=16, page=16, dtype=torch.float32)
    given = (scene.q, scene.keys, scene.values, scene.table, scene.extent, scene.words)
    ours = paged_attention(*given, page_size=16, longest=30)
    assert 0 < error_ratio(ours, scene.exact()) < 3e-6  # not the reference's own answer
    with pytest.raises(ValueError, match="page_table must be contiguous int32"):
        paged_attention(*given[:3], scene.table.long(), *given[4:], page_size=16, longest=30)
    with pytest.raises(ValueError, match="depths must be given with a window"):
        paged_attention(*given, page_size=16, longest=30, window=4)
    with pytest.raises(ValueError, match="q must be of a multiple of 2 heads, not 3"):
        paged_attention(scene.q[:, :3], *given[1:], page_size=16, longest=30)
