"""Why a log holds no decode line although the engine answered: most often nothing is wrong."""

from __future__ import annotations

from collections.abc import Collection

SAMPLING = {"sglang": "SGLang writes one every 40 decode steps", "vllm": "vLLM writes one every 10 s"}
"""Engines that tell of some of their steps only, as they are set up from the start."""


def no_decode_line(seen: Collection[tuple[str, str]]) -> str | None:
    """A sentence where an engine's requests are in the log and no decode line is; None elsewhere. `seen`: (engine, kind)
    of every Sample."""
    for engine, rule in SAMPLING.items():
        kinds = {kind for one, kind in seen if one == engine}
        if kinds & {"prefill", "request"} and "decode" not in kinds:
            return f"no decode line: {rule}, so short answers leave none; the answer's own count or the metrics tell their steps"
    return None
