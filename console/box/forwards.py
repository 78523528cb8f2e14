"""Ports on this machine's loopback that lead to ports of the box, kept over reconnects."""

from __future__ import annotations

import asyncio

import asyncssh

from console.box.errors import LinkError

LOOPBACK = "127.0.0.1"


class Forwards:
    """Which port there is reached by which port here. A forward dies with its link and is made anew on the next."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._made: dict[int, tuple[asyncssh.SSHClientConnection, int]] = {}  # port there -> (link, port here)
        self._lock = asyncio.Lock()

    async def local_port(self, ssh: asyncssh.SSHClientConnection, port: int) -> int:
        """The port here that leads to `port` there over `ssh`. Raises LinkError."""
        async with self._lock:
            if port not in self._made or self._made[port][0] is not ssh:
                await self._make(ssh, port)
            return self._made[port][1]

    async def renew(self, ssh: asyncssh.SSHClientConnection) -> None:
        """Make all of them again over a new link, on the ports they had. Raises LinkError."""
        for port in tuple(self._made):
            await self.local_port(ssh, port)

    async def _make(self, ssh: asyncssh.SSHClientConnection, port: int) -> None:
        last = self._made[port][1] if port in self._made else 0
        try:
            try:
                listener = await ssh.forward_local_port(LOOPBACK, last, LOOPBACK, port)
            except OSError:
                if not last:
                    raise
                listener = await ssh.forward_local_port(LOOPBACK, 0, LOOPBACK, port)  # somebody took the old one
        except (asyncssh.Error, OSError) as error:
            raise LinkError(f"no forward to port {port}: {error}", where=self._where) from error
        self._made[port] = ssh, listener.get_port()
