"""The engine's HTTP endpoints on the box, through the SSH connection's forward. Never a proxy, always a time-out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from console.box.connection import Connection
from console.box.errors import TransferError
from console.deployment.base import Endpoint

TIMES = httpx.Timeout(5.0, connect=2.0)
STREAM_TIMES = httpx.Timeout(60.0, connect=2.0)  # the engine sends a comment every 15 s when it has nothing to show


class EngineHttp:
    """One engine's endpoint, reached again by each call: the local port may change after a reconnect."""

    def __init__(self, connection: Connection, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._connection = connection
        self._client = httpx.AsyncClient(trust_env=False, timeout=TIMES)

    async def server_info(self) -> Mapping[str, Any] | None:
        """The object of `/server_info`; None while the engine does not answer. Raises LinkError."""
        try:
            answer = await self._client.get(await self._url("/server_info"))
            found = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None  # down, loading, or not the engine: the service manager knows which
        return found if isinstance(found, dict) else None

    async def trees(self) -> AsyncIterator[Mapping[str, Any]]:
        """Events of `/trees` until the engine ends them; none at all where it has no such endpoint. Raises LinkError."""
        try:
            headers = await self._authorization()
            url = await self._url("/trees")
            async with self._client.stream("GET", url, headers=headers, timeout=STREAM_TIMES) as answer:
                if answer.status_code != 200:
                    return
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield json.loads(line.removeprefix("data: "))
        except (httpx.HTTPError, ValueError, TransferError):
            return  # it stopped, or its key may not be read; the caller comes back

    async def _authorization(self) -> dict[str, str]:
        if not self.endpoint.api_key_file:
            return {}
        key = await self._connection.read(self.endpoint.api_key_file)
        return {"Authorization": f"Bearer {key.decode().strip()}"}

    async def close(self) -> None:
        """End its connections."""
        await self._client.aclose()

    async def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{await self._connection.forward(self.endpoint.port)}{path}"
