"""GET /trees: sampled draft trees as server-sent events, for the console's live picture."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response

from engine.events import Event, StepTaken
from engine.server.streaming import KEEP_ALIVE, EventStream, event
from engine.tokenizer import Tokenizer

EVERY_S = 0.25
"""One tree in this time is told: a picture, not a record."""
QUIET_S = 15.0
"""After so long without a tree a comment is sent, so that a reader who has gone is noticed."""

Feed = asyncio.Queue[dict[str, Any] | None]


class TreeFeed:
    """Observes steps on the engine's thread and tells one in a while to whoever listens; free while nobody does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokenizer: Tokenizer | None = None
        self._clock = clock
        self._told_s = float("-inf")
        self._seq = 0
        self._listeners: dict[Feed, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    def observe(self, event: Event) -> None:
        """Tell a step's tree, if it is time and someone listens."""
        if not isinstance(event, StepTaken) or not self._listeners:
            return
        now = self._clock()
        if now - self._told_s < EVERY_S:
            return
        self._told_s = now
        self._seq += 1
        self._tell({"seq": self._seq, **tree_json(event, self.tokenizer)})

    def close(self) -> None:
        """End every stream: the service stops."""
        self._tell(None)

    def _tell(self, tree: dict[str, Any] | None) -> None:
        with self._lock:
            for feed, loop in self._listeners.items():
                loop.call_soon_threadsafe(_replace, feed, tree)

    def stream(self) -> Response:
        """The response to one reader."""
        feed: Feed = asyncio.Queue(maxsize=1)
        with self._lock:
            self._listeners[feed] = asyncio.get_running_loop()

        def leave() -> None:
            with self._lock:
                del self._listeners[feed]

        return EventStream(_events(feed), on_close=leave)


def _replace(feed: Feed, tree: dict[str, Any] | None) -> None:
    """The newest tree only: a slow reader sees fewer, never old ones."""
    if feed.full():
        feed.get_nowait()
    feed.put_nowait(tree)


async def _events(feed: Feed) -> AsyncIterator[str]:
    yield KEEP_ALIVE  # the reader sees that it is connected before the first tree
    while True:
        try:
            tree = await asyncio.wait_for(feed.get(), QUIET_S)
        except TimeoutError:
            yield KEEP_ALIVE
            continue
        if tree is None:
            return
        yield event(tree)


def tree_json(step: StepTaken, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """`{"nodes": [{"parent", "depth", "token_id", "text", "probability", "accepted", "lookup"}], "budget", "commit_length"}`.

    `probability` is the drafter's, of the whole prefix that ends in the node; the root's is 1. `lookup`: the node is there because the
    text has gone on like this before, and its probability is that guess's. Without a tokenizer a node's text is its token id.
    """
    tree, accepted = step.round.tree, set(step.round.path)
    return {
        "nodes": [
            {
                "parent": parent,
                "depth": depth,
                "token_id": token_id,
                "text": str(token_id) if tokenizer is None else tokenizer.decode([token_id], skip_special_tokens=False),
                "probability": round(math.exp(weight), 6),
                "accepted": node in accepted,
                "lookup": node in tree.grafted,
            }
            for node, (parent, depth, token_id, weight) in enumerate(
                zip(tree.parents, tree.depths, tree.token_ids, tree.log_weights, strict=True)
            )
        ],
        "budget": step.budget,
        "commit_length": len(step.round.path),
    }
