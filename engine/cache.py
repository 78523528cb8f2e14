"""The paged KV cache: who owns which page, where a sequence's tokens lie, and the keys and values themselves.

A page is `page_size` consecutive slots, any size from 1 up. One page table serves the target's and the drafter's cache:
a token has the same slot in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.models.layers import Attend
from kernels.kv_commit import kv_commit
from kernels.kv_write import kv_write
from kernels.tree_attention import tree_attention

Slots = slice | Tensor
"""Rows of a cache in position order: a slice where pages are consecutive (read in place), else int64 indices."""


class PagePool:
    """Pages 0..total-1, each free or owned. The lowest free pages go first, which keeps a lone sequence consecutive."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.total = pages
        self.page_size = page_size
        self._free = list(range(pages))
        self._owned: set[int] = set()

    @property
    def free(self) -> int:
        """Pages nobody owns; free + used == total, always."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages owned by sequences."""
        return len(self._owned)

    def take(self, count: int) -> list[int]:
        """Own `count` pages, lowest first; fewer where there are fewer."""
        taken = [heappop(self._free) for _ in range(min(count, len(self._free)))]
        self._owned.update(taken)
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages that are owned. Raises ValueError for one that is not: it would be handed out twice."""
        strangers = [page for page in pages if page not in self._owned]
        if strangers or len(set(pages)) != len(pages):
            raise ValueError(f"pages given back that are not owned: {strangers or list(pages)}")
        self._owned.difference_update(pages)
        self._free.extend(pages)
        heapify(self._free)


class PageTable:
    """One sequence's pages, in position order: position p lies in page p // page_size."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self._consecutive = True
        self._slots = torch.empty(0, dtype=torch.int64)

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self.pages) * self._pool.page_size

    def grow(self, tokens: int) -> int:
        """Take pages until `tokens` positions have slots or the pool is empty; gives the capacity reached."""
        missing = -(-tokens // self._pool.page_size) - len(self.pages)
        if missing > 0:
            taken = self._pool.take(missing)
            following = self.pages[-1] + 1 if self.pages else taken[0] if taken else 0
            self._consecutive = self._consecutive and taken == list(range(following, following + len(taken)))
            self.pages += taken
            offsets = torch.arange(self._pool.page_size)
            fresh = torch.tensor(taken, dtype=torch.int64)[:, None] * self._pool.page_size + offsets
            self._slots = torch.cat((self._slots, fresh.flatten()))
        return self.capacity

    def slots(self, start: int, stop: int) -> Slots:
        """Where positions start..stop-1 lie."""
        if self._consecutive and self.pages:
            first = self.pages[0] * self._pool.page_size
            return slice(first + start, first + stop)
        return self._slots[start:stop]

    def indices(self, positions: Sequence[int]) -> Tensor:
        """Slots of single positions, int64 [positions]."""
        return self._slots[torch.tensor(positions, dtype=torch.int64)]

    def release(self) -> None:
        """Give every page back."""
        self._pool.give_back(self.pages)
        self.pages = []
        self._consecutive, self._slots = True, self._slots[:0]


class KvStore:
    """Keys and values of every layer, [layers, slots, kv_heads, head_dim].

    With `latent_rank` the values are the first so many elements of the keys, and `values` has no width of its own.
    """

    def __init__(
        self, slots: int, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, latent_rank: int = 0
    ) -> None:
        self._latent_rank = latent_rank
        value_dim = 0 if latent_rank else head_dim
        try:
            self.keys = torch.empty(layers, slots, kv_heads, head_dim, dtype=dtype)
            self.values = torch.empty(layers, slots, kv_heads, value_dim, dtype=dtype)
        except RuntimeError as error:
            size = layers * slots * kv_heads * (head_dim + value_dim) * dtype.itemsize
            raise EngineError(
                f"no memory for a KV pool of {size:,} bytes", mend="lower context_length or pages"
            ) from error

    def attend(self, write: Slots, read: Slots, bias: Tensor | None) -> Attend:
        """An `Attend` that writes new rows at `write`, then lets each query see `read` under `bias`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.write(layer, write, k, v)
            keys = self.keys[layer]
            values = keys[..., : self._latent_rank] if self._latent_rank else self.values[layer]
            return tree_attention(q, keys, values, read, bias)

        return attend

    def write(self, layer: int, slots: Slots, k: Tensor, v: Tensor) -> None:
        """k, v [rows, kv_heads, head_dim] into `slots`."""
        kv_write(self.keys[layer], self.values[layer], slots, k, v)

    def commit(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Keep the rows of an accepted path: node path[i], written at position start + path[i], moves to start + i.

        Path ids increase, so a row only ever moves down; leading nodes already in place are not touched.
        """
        moved = [i for i, node in enumerate(path) if node != i]
        if moved:
            sources = table.indices([start + path[i] for i in moved])
            kv_commit(self.keys, self.values, sources, table.indices([start + i for i in moved]))
