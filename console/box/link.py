"""LinkKeeper: keeps one SSH link up, and says in one value how it stands.

CONNECTING -> LIVE <-> DEGRADED -> LOST -> RETRY -> CONNECTING …, and CLOSED at the end. A refused host key or login
stays in LOST until the operator asks again: hammering on it only fills the box's log and locks accounts.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import asyncssh

from console.box.credentials import Credentials
from console.box.errors import BoxError, HostUnknown, LinkError
from console.box.login import Link, log_in
from console.box.target import Target
from console.box.timing import Timing, retry_delays
from console.box.values import LinkName, LinkState

CLOSE_S = 1.0
NOTICE_S = 0.01


class LinkKeeper:
    """`prepare(ssh)` runs after each login, before the link counts as up; `ping(ssh)` returns after one round trip."""

    def __init__(
        self,
        target: Target,
        credentials: Credentials,
        timing: Timing,
        prepare: Callable[[asyncssh.SSHClientConnection], Awaitable[None]],
        ping: Callable[[asyncssh.SSHClientConnection], Awaitable[None]],
    ) -> None:
        self.state = LinkState("CONNECTING", time.monotonic())
        self._target = target
        self._credentials = credentials
        self._timing = timing
        self._prepare = prepare
        self._ping = ping
        self._link: Link | None = None
        self._callbacks: list[Callable[[LinkState], None]] = []
        self._up = asyncio.Event()  # set while the link is up, and for good once closed
        self._wake = asyncio.Event()  # the operator asked for an attempt now
        self._keeper: asyncio.Task[None] | None = None

    def ssh(self) -> asyncssh.SSHClientConnection:
        """The connection to send over now. Raises LinkError while there is none."""
        if self._link is None or not self._up.is_set() or self._link.ssh.is_closed():
            raise LinkError(
                f"not connected ({self.state.name}{': ' + self.state.reason if self.state.reason else ''})",
                where=self._target.name,
            )
        return self._link.ssh

    async def wait_up(self) -> None:
        """Return once the link is up. Raises LinkError when it has been closed for good."""
        while True:
            await self._up.wait()
            if self.state.name == "CLOSED":
                self.ssh()
            if self._link is not None and not self._link.ssh.is_closed():
                return
            await asyncio.sleep(NOTICE_S)  # it has just broken, and the keeper is about to notice

    def on_state(self, callback: Callable[[LinkState], None]) -> Callable[[], None]:
        """Call `callback` with every new state; the function returned ends that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def reconnect(self) -> None:
        """Try again at once: ends a waiting time, and gives up a link that has become slow."""
        self._wake.set()

    async def start(self, keep_trying: bool) -> None:
        """First login, then keep the link up until closed. An unreachable box is an error unless `keep_trying`."""
        try:
            await self._log_in()
        except LinkError as error:
            if not keep_trying:
                raise
            self._set_state("LOST", reason=str(error))
        self._keeper = asyncio.create_task(self._keep(), name=f"link to {self._target.name}")
        self._keeper.add_done_callback(self._keeper_ended)

    async def close(self) -> None:
        """End it within about a second, whatever state the link is in."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            if not self._keeper.cancelled():
                self._keeper.result()  # it ends by itself only through an error of ours
        if self._link is not None:
            self._link.ssh.close()
            closing = asyncio.create_task(self._link.ssh.wait_closed())
            await asyncio.wait([closing], timeout=CLOSE_S)
            closing.cancel()
        self._drop()
        self._set_state("CLOSED")
        self._up.set()

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled():
            self._drop()
            self._set_state("CLOSED", reason=f"{keeper.exception()!r}")
            self._up.set()

    async def _log_in(self) -> None:
        self._set_state("CONNECTING", reason=self.state.reason)
        self._link = await log_in(self._target, self._credentials, self._timing)
        try:
            await self._prepare(self._link.ssh)
        except BaseException:
            self._drop()
            raise
        self._up.set()
        self._set_state("LIVE")

    def _drop(self) -> None:
        self._up.clear()
        link, self._link = self._link, None
        if link is not None:
            link.abort()

    async def _keep(self) -> None:
        delays = retry_delays(self._timing, random.Random())
        while True:
            if self._link is not None:
                up_since_s = time.monotonic()
                reason = await self._watch(self._link)
                self._drop()
                self._set_state("LOST", reason=reason)
                if time.monotonic() - up_since_s >= self._timing.healthy_s:
                    delays = retry_delays(self._timing, random.Random())
            await self._pause(next(delays))
            try:
                await self._log_in()
            except (LinkError, HostUnknown) as error:
                self._set_state("LOST", reason=str(error))
            except BoxError as error:
                self._set_state("LOST", reason=str(error))
                await self._wake.wait()

    async def _pause(self, seconds: float) -> None:
        """Wait for the next attempt, or until the operator wants it now."""
        self._set_state("RETRY", retry_at_s=time.monotonic() + seconds, reason=self.state.reason)
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def _watch(self, link: Link) -> str:
        """Return why the link is no good any more."""
        watchers = [
            asyncio.create_task(watch)
            for watch in (self._closed(link), self._asleep(), self._beat(link), self._given_up())
        ]
        try:
            done, _ = await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for watcher in watchers:
                watcher.cancel()

    async def _closed(self, link: Link) -> str:
        await link.ssh.wait_closed()
        return link.reason

    async def _asleep(self) -> str:
        """After a suspend the monotonic clock is behind the wall clock, and the far end has long given us up."""
        while True:
            wall_s, steady_s = time.time(), time.monotonic()
            await asyncio.sleep(self._timing.heartbeat_s)
            if time.time() - wall_s - (time.monotonic() - steady_s) > self._timing.jump_s:
                return "this machine was asleep"

    async def _beat(self, link: Link) -> str:
        """Measure the round trip; a slow one makes the link DEGRADED. Whether it is dead is for the keepalive to say."""
        while True:
            started_s = time.monotonic()
            ping = asyncio.ensure_future(self._ping(link.ssh))
            try:
                await asyncio.wait([ping], timeout=self._timing.slow_s)
                if not ping.done():
                    self._set_state("DEGRADED", reason=f"no answer for {self._timing.slow_s:g} s")
                await ping
                self._set_state("LIVE", latency_ms=(time.monotonic() - started_s) * 1000.0)
            except (asyncssh.Error, OSError, BoxError):
                if link.ssh.is_closed():
                    return await self._closed(link)
                self._set_state("LIVE")  # the link is up; there is only nothing to measure it by
            finally:
                ping.cancel()
            await asyncio.sleep(self._timing.heartbeat_s)

    async def _given_up(self) -> str:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.state.name == "DEGRADED":
                return "given up for a new connection"

    def _set_state(
        self,
        name: LinkName,
        *,
        latency_ms: float | None = None,
        retry_at_s: float | None = None,
        reason: str | None = None,
    ) -> None:
        since_s = self.state.since_s if name == self.state.name else time.monotonic()
        self.state = LinkState(name, since_s, latency_ms, retry_at_s, reason)
        for callback in tuple(self._callbacks):
            callback(self.state)
