"""The engine's HTTP endpoints on the box, through the SSH connection's forward. Never a proxy, always a time-out.

Over httpcore and not httpx, which would load a terminal UI library with its own command line on every `ddtree status`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpcore

from console.box.connection import Connection
from console.box.errors import TransferError
from console.box.stream import LineSplitter
from console.deployment.base import Deployment, Endpoint
from console.deployment.bundled import BUNDLED

TIMES_S = {"connect": 2.0, "write": 5.0, "read": 5.0, "pool": 5.0}
STREAM_TIMES_S = {**TIMES_S, "read": 60.0}  # the engine sends a comment every 15 s when it has nothing to show
_BROKEN = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)


class EngineHttp:
    """One engine's endpoint, reached again by each call: the local port may change after a reconnect."""

    def __init__(self, connection: Connection, endpoint: Endpoint, deployment: Deployment = BUNDLED) -> None:
        self.endpoint = endpoint
        self._deployment = deployment
        self._connection = connection
        self._pool = httpcore.AsyncConnectionPool()

    async def server_info(self) -> Mapping[str, Any] | None:
        """What the engine says of itself, in the shape of the bundled one's `/server_info`; None while it does not answer.
        Raises LinkError."""
        answers: dict[str, bytes] = {}
        try:
            headers = (
                await self._authorization() if len(self._deployment.info_paths) > 1 else []
            )  # the bundled one asks none
            for path in self._deployment.info_paths:
                answer = await self._pool.request(
                    "GET", await self._url(path), headers=headers, extensions={"timeout": TIMES_S}
                )
                if answer.status == 200:
                    answers[path] = answer.content
        except (*_BROKEN, ValueError, TransferError):
            return None  # down, loading, or not the engine: the service manager knows which
        return self._deployment.server_info(answers)

    async def trees(self) -> AsyncIterator[Mapping[str, Any]]:
        """Events of `/trees` until the engine ends them; none at all where it has no such endpoint. Raises LinkError."""
        lines = LineSplitter()
        try:
            url, headers = await self._url("/trees"), await self._authorization()
            times = {"timeout": STREAM_TIMES_S}
            async with self._pool.stream("GET", url, headers=headers, extensions=times) as answer:
                if answer.status != 200:
                    return
                async for chunk in answer.aiter_stream():
                    for line in lines.feed(chunk):
                        if line.startswith(b"data: {"):
                            yield json.loads(line.removeprefix(b"data: "))
        except (*_BROKEN, ValueError, TransferError):
            return  # it stopped, or its key may not be read; the caller comes back

    async def close(self) -> None:
        """End its connections."""
        await self._pool.aclose()

    async def _authorization(self) -> list[tuple[str, str]]:
        if self.endpoint.api_key:
            return [("Authorization", f"Bearer {self.endpoint.api_key}")]
        if not self.endpoint.api_key_file:
            return []
        key = await self._connection.read(self.endpoint.api_key_file)
        return [("Authorization", f"Bearer {key.decode().strip()}")]

    async def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{await self._connection.forward(self.endpoint.port)}{path}"
