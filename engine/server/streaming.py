"""Server-sent events: the wire format, and a response that always tells when its reader has gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

DONE = "data: [DONE]\n\n"
KEEP_ALIVE = ": keep-alive\n\n"


def event(data: Mapping[str, Any]) -> str:
    """One event; the JSON has no raw line breaks, so one data line holds it."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


class EventStream(StreamingResponse):
    """A stream of events. `on_close` is called once, however the stream ends, even if its reader left before it began."""

    def __init__(self, events: AsyncIterator[str], on_close: Callable[[], None]) -> None:
        # no-transform and X-Accel-Buffering keep proxies from collecting events.
        headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream to the reader; see the class."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()
