"""When a request ends, and which tokens of a committed block are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

FinishReason = Literal["stop", "length"]


def keep(
    new_tokens: Sequence[int],
    produced: int,
    max_tokens: int,
    min_tokens: int,
    stop_ids: Collection[int],
    ignore_eos: bool,
    context_left: int,
) -> tuple[list[int], FinishReason | None]:
    """The leading part of `new_tokens` that the request keeps, and why it ends there, or None if it goes on.

    `produced` tokens came before; `context_left` more fit into the context. The first stop id ends the request and is
    kept, but not among the first `min_tokens` tokens, and never under `ignore_eos`. On the last token allowed a stop
    id wins over the length.
    """
    room = min(max_tokens - produced, context_left)
    kept = list(new_tokens[: max(room, 0)])
    if not ignore_eos:
        for index, token in enumerate(kept):
            if token in stop_ids and produced + index + 1 > min_tokens:
                return kept[: index + 1], "stop"
    return kept, "length" if len(new_tokens) >= room else None
