"""The console as a client: it reads the streams a playbook offers through its own forwarded port, and stamps what arrives."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import httpx

from console.box.connection import Connection
from console.box.errors import BoxError
from console.errors import OperatorError

TIMES = httpx.Timeout(600.0, connect=10.0)


class ClientSideError(OperatorError):
    """The streams could not be read; the playbook says so too."""


async def read_streams(connection: Connection, offered: Mapping[str, Any]) -> int:
    """Read every stream of a `client` event and hand the stamps back; how many were read. Raises ClientSideError.

    A stamp is the time of a chunk since its request was sent, by this machine's clock; both sides count from their own
    request, so that clocks need not agree.
    """
    count = 0
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=TIMES) as client:
            port = await connection.forward(int(offered["port"]))
            for number in range(int(offered["streams"])):
                url = f"http://127.0.0.1:{port}{offered['path']}/{number}"
                stamps = await _stamps(client, url)
                (await client.post(url, content=json.dumps(stamps).encode())).raise_for_status()
                count += 1
    except (httpx.HTTPError, BoxError) as error:
        raise ClientSideError(f"stream {count + 1} could not be read: {error}", where=connection.target.name) from error
    return count


async def _stamps(client: httpx.AsyncClient, url: str) -> list[float]:
    """Seconds from the request to each chunk."""
    stamps: list[float] = []
    sent = time.perf_counter()
    rest = b""
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        async for piece in response.aiter_raw():
            now = time.perf_counter() - sent
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            stamps += [now for line in lines if line.startswith(b"data:")]
    return [round(stamp, 6) for stamp in stamps]
