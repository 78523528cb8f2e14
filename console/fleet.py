"""Several hosts at a glance: each is connected to and asked by a loop of its own, so that a dead one holds up no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from console.errors import OperatorError
from console.operations import Operations
from console.snapshot import Snapshot

GLANCE_EVERY_S = 5.0
CONNECT_AGAIN_S = 30.0

Standing = Literal["listed", "connecting", "up", "down"]
OpenHost = Callable[[str], Awaitable[Operations]]


@dataclass(frozen=True)
class Glance:
    """What is known of one host. `listed`: it has a name, and nobody has asked to connect to it."""

    name: str
    standing: Standing
    since_s: float  # when it came to stand so
    snapshot: Snapshot | None = None  # the last there was, kept when the host is down
    trouble: str | None = None


class Fleet:
    """The hosts there are names for. `watched` ones are connected to once `watch` runs for them, `listed` ones on demand."""

    def __init__(
        self,
        watched: Iterable[str],
        listed: Iterable[str],
        open_host: OpenHost,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watched = tuple(dict.fromkeys(watched))
        self.changed: Callable[[], None] = lambda: None
        self._open_host = open_host
        self._clock = clock
        now_s = clock()
        names = dict.fromkeys((*self.watched, *listed))
        self.glances: dict[str, Glance] = {name: Glance(name, "listed", now_s) for name in names}
        self._opened: dict[str, Operations] = {}

    async def watch(self, name: str) -> None:
        """Connect and look again and again; what goes wrong stands in the glance. Ends only when it is cancelled."""
        while True:
            try:
                operations = await self.connect(name)
                self._put(name, "up", snapshot=await operations.snapshot(), trouble=None)
                pause_s = GLANCE_EVERY_S
            except OperatorError as error:
                self._put(name, "down", trouble=str(error))
                pause_s = GLANCE_EVERY_S if name in self._opened else CONNECT_AGAIN_S
            await asyncio.sleep(pause_s)

    async def connect(self, name: str) -> Operations:
        """The host's operations, connected to now if they were not before. Raises OperatorError."""
        if name not in self._opened:
            self._put(name, "connecting")
            try:
                self._opened[name] = await self._open_host(name)
            except OperatorError as error:
                self._put(name, "down", trouble=str(error))
                raise
        return self._opened[name]

    async def close(self) -> None:
        """End every connection that was opened here."""
        opened, self._opened = self._opened, {}
        for operations in opened.values():
            await operations.close()

    def _put(
        self, name: str, standing: Standing, *, snapshot: Snapshot | None = None, trouble: str | None = None
    ) -> None:
        before = self.glances.get(name)
        since_s = before.since_s if before is not None and before.standing == standing else self._clock()
        kept = snapshot or (before.snapshot if before else None)
        self.glances[name] = Glance(name, standing, since_s, kept, trouble)
        self.changed()
