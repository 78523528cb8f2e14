"""What happened while the console was open: kept until read, failures above all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Weight = Literal["info", "success", "warning", "failure"]
KEPT = 500


@dataclass(frozen=True)
class Happening:
    """One thing that happened; `wall_s` is seconds since the epoch."""

    wall_s: float
    weight: Weight
    text: str
    read: bool = False


@dataclass(frozen=True)
class Happenings:
    """All of them, oldest first."""

    items: tuple[Happening, ...] = ()

    @property
    def unread(self) -> int:
        """Failures and warnings that nobody has looked at; the rest needs no looking at."""
        return sum(1 for item in self.items if not item.read and item.weight in ("warning", "failure"))

    def with_one(self, wall_s: float, weight: Weight, text: str) -> Happenings:
        """These and one more."""
        return Happenings((*self.items, Happening(wall_s, weight, text))[-KEPT:])

    def all_read(self) -> Happenings:
        """These, each of them read."""
        return Happenings(tuple(replace(item, read=True) for item in self.items))
