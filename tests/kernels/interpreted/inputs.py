"""Inputs of the interpreter tests: numbers, trees, page tables, memory that must not be touched, programs out of order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from triton.runtime import interpreter


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error_ratio(ours: Tensor, exact: Tensor) -> float:
    """RMS of the difference over RMS of the exact values; nan where either holds a nan."""
    return ((ours.double() - exact.double()).square().mean() / exact.double().square().mean()).sqrt().item()


def close(ours: Tensor, exact: Tensor) -> None:
    """Assert that `ours` has the precision of its dtype."""
    limit = {torch.float32: 3e-6, torch.float16: 2e-3}[ours.dtype]
    ratio = error_ratio(ours, exact)
    assert ratio <= limit, f"error ratio {ratio:.2e} over {limit:.0e}"


def guarded(*shape: int, dtype: torch.dtype, fill: float | int, guard: int = 64) -> tuple[Tensor, Tensor]:
    """(a contiguous tensor of `fill`, the memory around it of the same `fill`): what must stay unread and unwritten."""
    size = torch.Size(shape).numel()
    memory = torch.full((size + 2 * guard,), fill, dtype=dtype)
    return memory[guard : guard + size].view(shape), torch.stack((memory[:guard], memory[guard + size :]))


def far_slots(width: int) -> Tensor:
    """float16 [22, width] whose last slots begin past 2^31 elements; memory is taken only where it is touched."""
    stride = 2**31 // 20
    return torch.empty(22 * stride, dtype=torch.float16).as_strided((22, width), (stride, 1))


def random_parents(nodes: int, seed: int) -> list[int]:
    """Parents of a random tree in topological order, -1 for the root."""
    dice = random.Random(seed)
    return [-1, *(dice.randrange(node) for node in range(1, nodes))]


def tree_of(parents: list[int]) -> tuple[Tensor, list[int]]:
    """(visible bool [nodes, nodes], depths)."""
    visible, depths = torch.eye(len(parents), dtype=torch.bool), [0] * len(parents)
    for node in range(1, len(parents)):
        visible[node] |= visible[parents[node]]
        depths[node] = depths[parents[node]] + 1
    return visible, depths


def words_of(visible: Tensor) -> Tensor:
    """bool [nodes, columns] -> its bits, int32 [nodes, ceil(columns / 32)]."""
    nodes, columns = visible.shape
    bits = torch.zeros(nodes, -(-columns // 32) * 32, dtype=torch.int64)
    bits[:, :columns] = visible
    return (bits.view(nodes, -1, 32) << torch.arange(32)).sum(-1).to(torch.int32)  # bit 31 wraps to the sign


def random_pages(tokens: int, page_size: int, pool_pages: int, seed: int) -> Tensor:
    """A page table, int32, of distinct pages in no order, for `tokens` positions."""
    order = torch.randperm(pool_pages, generator=torch.Generator().manual_seed(seed))
    return order[: -(-tokens // page_size)].to(torch.int32)


def slots_of(table: Tensor, positions: Tensor, page_size: int) -> Tensor:
    """Slots of positions, int64."""
    return table[positions // page_size].long() * page_size + positions % page_size


@contextmanager
def programs_in_another_order(seed: int) -> Iterator[None]:
    """The interpreter runs programs in a fixed order; here every axis of the grid runs in a shuffled one."""
    builder = interpreter.interpreter_builder
    kept = builder.set_grid_idx
    orders: dict[tuple[int, int], list[int]] = {}

    def shuffled(axis: int, size: int, index: int) -> int:
        if (axis, size) not in orders:
            orders[axis, size] = random.Random(seed + axis).sample(range(size), size)
        return orders[axis, size][index]

    def set_shuffled(*place: int) -> None:
        kept(*(shuffled(axis, builder.grid_dim[axis], index) for axis, index in enumerate(place)))

    builder.set_grid_idx = set_shuffled
    try:
        yield
    finally:
        builder.set_grid_idx = kept
