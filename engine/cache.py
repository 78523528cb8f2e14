"""The paged KV cache: who owns which page, where a sequence's tokens lie, and the keys and values themselves.

A page is `page_size` consecutive slots, any size from 1 up. One page table serves the target's and the drafter's cache:
a token has the same slot in both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.models.layers import Attend
from engine.prefix import PrefixIndex
from kernels.kv_commit import kv_commit
from kernels.kv_write import kv_write
from kernels.tree_attention import stacked_attention, tree_attention

Slots = slice | Tensor
"""Rows of a cache in position order: a slice where pages are consecutive (read in place), else int64 indices."""


class PagePool:
    """Pages 0..total-1, each free or held by one sequence or more.

    A free page may still be kept: the prefix index knows its text, and the next prompt that begins so holds it again. Kept
    pages go to others only when no blank one is left, the least recently used first. Blank pages go lowest first, or the
    one after a sequence's last, which keeps a lone sequence consecutive.
    """

    def __init__(self, pages: int, page_size: int, *, keep_prefixes: bool = False) -> None:
        self.total = pages
        self.page_size = page_size
        self.index = PrefixIndex(page_size) if keep_prefixes else None
        self._blank = list(range(pages))  # ascending
        self._kept: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._holders: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Pages nobody holds, kept ones included; free + used == total, always."""
        return len(self._blank) + len(self._kept)

    @property
    def used(self) -> int:
        """Pages held by sequences, each counted once."""
        return len(self._holders)

    @property
    def kept(self) -> int:
        """Free pages whose text is known."""
        return len(self._kept)

    def take(self, count: int, after: int = -1) -> list[int]:
        """Hold `count` pages alone; fewer where there are fewer. `after`: the page the first should follow if it can."""
        taken: list[int] = []
        while len(taken) < count and self.free:
            if not self._blank:
                self._reclaim()
            following = (taken[-1] if taken else after) + 1
            first = bisect_left(self._blank, following) if taken or after >= 0 else 0
            if first == len(self._blank) or self._blank[first] != following:
                first = 0
            run = 1
            while run < min(count - len(taken), len(self._blank) - first) and (
                self._blank[first + run] == self._blank[first] + run
            ):
                run += 1
            taken += self._blank[first : first + run]
            del self._blank[first : first + run]
        self._holders.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """Hold pages that others hold too, or that are kept. Nothing may be written into them."""
        for page in pages:
            self._kept.pop(page, None)
            self._holders[page] = self._holders.get(page, 0) + 1

    def give_back(self, pages: Sequence[int]) -> None:
        """Let go of held pages. Raises ValueError for one that is not: it would be handed out twice."""
        strangers = [page for page in pages if page not in self._holders]
        if strangers or len(set(pages)) != len(pages):
            raise ValueError(f"pages given back that are not owned: {strangers or list(pages)}")
        blank = []
        for page in reversed(pages):  # a text's first page is then its most recently used: its end is reclaimed first
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if self.index is not None and page in self.index:
                self._kept[page] = None
            else:
                blank.append(page)
        self._make_blank(blank)

    def _reclaim(self) -> None:
        """Make the least recently used kept page blank, and every page that hangs from it."""
        page, _ = self._kept.popitem(last=False)
        hanging = self.index.forget(page) if self.index is not None else []
        dropped = [other for other in hanging if other in self._kept]
        for other in dropped:
            del self._kept[other]
        self._make_blank([page, *dropped])

    def _make_blank(self, pages: Sequence[int]) -> None:
        self._blank += pages
        self._blank.sort()


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
            self._append(self._pool.take(missing, self.pages[-1] if self.pages else -1))
        return self.capacity

    def share(self, pages: Sequence[int]) -> None:
        """Begin with pages whose text is known."""
        self._pool.share(pages)
        self._append(pages)

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
        """Let go of every page."""
        self._pool.give_back(self.pages)
        self.pages = []
        self._consecutive, self._slots = True, self._slots[:0]

    def _append(self, pages: Sequence[int]) -> None:
        following = self.pages[-1] + 1 if self.pages else pages[0] if pages else 0
        self._consecutive = self._consecutive and list(pages) == list(range(following, following + len(pages)))
        self.pages += pages
        offsets = torch.arange(self._pool.page_size)
        fresh = torch.tensor(pages, dtype=torch.int64)[:, None] * self._pool.page_size + offsets
        self._slots = torch.cat((self._slots, fresh.flatten()))


def on_device(slots: Slots, device: torch.device) -> Slots:
    """The same slots where a cache on `device` reads them without a copy each time."""
    return slots if isinstance(slots, slice) else slots.to(device)


def joined(parts: Sequence[Slots]) -> Slots:
    """Several stretches of slots as one, a slice where they follow each other."""
    slices = [part for part in parts if isinstance(part, slice) and part.stop > part.start]
    tensors = [part for part in parts if isinstance(part, Tensor) and len(part)]
    if not tensors and all(left.stop == right.start for left, right in pairwise(slices)):
        return slice(slices[0].start, slices[-1].stop) if slices else slice(0, 0)
    if len(tensors) == 1 and not slices:
        return tensors[0]
    return torch.cat([torch.arange(part.start, part.stop) if isinstance(part, slice) else part for part in parts])


@dataclass(frozen=True)
class Reading:
    """What some of a pass's queries see: query `rows` look at `slots`, in position order, under `bias`."""

    rows: slice
    slots: Slots
    bias: Tensor | None

    @property
    def nodes(self) -> int:
        """How many queries it has."""
        return int(self.rows.stop - self.rows.start)

    @property
    def length(self) -> int:
        """How many slots they look at."""
        return self.slots.stop - self.slots.start if isinstance(self.slots, slice) else len(self.slots)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What its queries see of one layer's cache; q [rows of the pass, heads, head_dim]."""
        return tree_attention(q[self.rows], keys, values, self.slots, self.bias)


STACKED_LENGTH, STACKED_NODES = 1024, 64
"""Readings of more slots or queries than these are answered one by one: a call of their own costs them next to nothing, copying
their rows does.
"""


@dataclass(frozen=True)
class Stack:
    """Readings of as many queries each and of similar length, answered by one call. Calls of their own would cost more than their
    arithmetic and leave threads without work.

    `slots` int64 [readings, longest]: shorter ones are filled up with their own first slot, which `bias` [readings, 1, nodes *
    group or 1, longest] then hides. So no reading ever touches what another request computed.
    """

    rows: Tensor
    slots: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, readings: Sequence[Reading], dtype: torch.dtype, device: torch.device) -> Stack:
        """The readings as they are given, in that order."""
        longest = max(reading.length for reading in readings)
        slots = torch.empty(len(readings), longest, dtype=torch.int64, device=device)
        for row, reading in zip(slots, readings, strict=True):
            own = reading.slots
            row[: reading.length] = torch.arange(own.start, own.stop) if isinstance(own, slice) else own
            row[reading.length :] = row[0].clone()
        bias = None
        if any(reading.bias is not None or reading.length < longest for reading in readings):
            folded = max(1 if reading.bias is None else len(reading.bias) for reading in readings)
            bias = torch.full((len(readings), 1, folded, longest), -torch.inf, dtype=dtype, device=device)
            for hidden, reading in zip(bias, readings, strict=True):
                hidden[..., : reading.length] = 0.0 if reading.bias is None else reading.bias
        rows = torch.cat([torch.arange(reading.rows.start, reading.rows.stop) for reading in readings])
        return cls(rows.to(device), slots, bias)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As a reading's, in the order of `rows`."""
        own = q if len(self.rows) == len(q) else q.index_select(0, self.rows)
        return stacked_attention(own.unflatten(0, (len(self.slots), -1)), keys, values, self.slots, self.bias)


def alike(readings: Sequence[Reading]) -> list[list[Reading]]:
    """The readings in groups: of as many queries, the longest in a group at most half again and 64 slots longer than the shortest."""
    groups: list[list[Reading]] = []
    for reading in sorted(readings, key=lambda reading: (reading.nodes, reading.length)):
        first = groups[-1][0] if groups else reading
        small = reading.length <= STACKED_LENGTH and reading.nodes <= STACKED_NODES
        if groups and small and reading.nodes == first.nodes and reading.length <= first.length * 3 // 2 + 64:
            groups[-1].append(reading)
        else:
            groups.append([reading])
    return [sorted(group, key=lambda reading: reading.rows.start) for group in groups]


class KvStore:
    """Keys and values of every layer, [layers, slots, kv_heads, head_dim].

    With `latent_rank` the values are the first so many elements of the keys, and `values` has no width of its own.
    """

    def __init__(
        self,
        slots: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        latent_rank: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self._latent_rank = latent_rank
        value_dim = 0 if latent_rank else head_dim
        try:
            self.keys = torch.empty(layers, slots, kv_heads, head_dim, dtype=dtype, device=device)
            self.values = torch.empty(layers, slots, kv_heads, value_dim, dtype=dtype, device=device)
        except RuntimeError as error:
            size = layers * slots * kv_heads * (head_dim + value_dim) * dtype.itemsize
            raise EngineError(
                f"no memory for a KV pool of {size:,} bytes", mend="lower context_length or pages"
            ) from error

    def attend(self, write: Slots, readings: Sequence[Reading]) -> Attend:
        """An `Attend` that writes new rows at `write`, then lets the queries of each reading see what it says."""
        write = on_device(write, self.keys.device)
        readings = [replace(reading, slots=on_device(reading.slots, self.keys.device)) for reading in readings]
        parts = [
            Stack.of(group, self.keys.dtype, self.keys.device) if len(group) > 1 else group[0]
            for group in alike(readings)
        ]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.write(layer, write, k, v)
            keys = self.keys[layer]
            values = keys[..., : self._latent_rank] if self._latent_rank else self.values[layer]
            if len(parts) == 1:
                return parts[0].attend(q, keys, values)
            out = q.new_empty(len(q), q.shape[1] * values.shape[-1])
            for part in parts:
                out[part.rows] = part.attend(q, keys, values)
            return out

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
            targets, device = table.indices([start + i for i in moved]), self.keys.device
            kv_commit(self.keys, self.values, sources.to(device), targets.to(device))

    def zero(self) -> None:
        """Noughts everywhere: what is timed over rows that nobody has written must not be timed over NaN."""
        self.keys.zero_()
        self.values.zero_()

    def copy(self, sources: Slots, targets: Slots) -> None:
        """Rows `sources` go to `targets` as well, in every layer."""
        self.keys[:, targets], self.values[:, targets] = self.keys[:, sources], self.values[:, sources]
