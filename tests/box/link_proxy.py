"""A TCP proxy between the console and the box's sshd: the network, which a test can cut, freeze or restore."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class LinkProxy:
    """Listens on loopback; `cut` resets what is open and refuses what comes, `freeze` lets nothing through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0
        self.accepted = 0  # connections made through it so far

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Every connection is reset, and new ones are refused until `open`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        self._flowing.set()  # what is held back meets the closed end, and the servers end
        if self._serving:
            await asyncio.wait(self._serving)

    def freeze(self) -> None:
        """Connections stay open, and nothing gets through: a half-open link."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                end.transport.abort()
                self._writers.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            writer.transport.abort()
        except OSError:
            writer.transport.abort()


async def eventually(condition: Callable[[], bool | Awaitable[bool]], limit_s: float = 10.0) -> None:
    """Return as soon as `condition` holds; TimeoutError after `limit_s`."""
    async with asyncio.timeout(limit_s):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.02)
