"""View: all that a widget draws from, frozen: the newest Snapshot, the moment of drawing, and how to draw."""

from __future__ import annotations

from dataclasses import dataclass

from console.box.values import LinkState
from console.snapshot import Snapshot
from console.tui.glyphs import UNICODE, Glyphs

STALE_AFTER_S = 4.0
"""Figures come once a second; older than this they are shown as stale, in words and dimmed."""


@dataclass(frozen=True)
class View:
    """One moment of one host as the operator's screen shows it.

    `now_s` is the clock of `Snapshot.taken_s`; `wall_s` is seconds since the epoch, for times that the box gives.
    """

    host: str
    now_s: float
    wall_s: float
    snapshot: Snapshot | None = None
    glyphs: Glyphs = UNICODE
    read_only: bool = False
    unread: int = 0  # events that nobody has read yet
    word_left_s: float | None = None  # for the operator to confirm or revert a settings change that waits for it

    @property
    def link(self) -> LinkState | None:
        """The SSH link's state, or None before the first Snapshot."""
        return self.snapshot.link if self.snapshot else None

    @property
    def stale_s(self) -> float | None:
        """Age in seconds of the newest figure when it is too old to be taken for live; None when it is fresh or absent."""
        if self.snapshot is None or self.snapshot.data_s is None:
            return None
        age = self.now_s - self.snapshot.data_s
        return age if age > STALE_AFTER_S else None
