"""Prompts of different kinds for the demo, so that there is something to see; they step aside for anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx

PROMPTS = (
    "Tell me a short story about a lighthouse keeper who finds a map.",
    "List ten things to pack for a week in the mountains, one per line.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    'Give me a JSON object with the keys "name", "age", "city" and "hobbies" for an invented person.',
    "What is 12 + 7? And 19 + 23? And 42 + 58? Show each sum on its own line.",
    "Repeat the following sentence five times: The quick brown fox jumps over the lazy dog.",
    "Explain in two paragraphs why the sky is blue.",
)
MAX_TOKENS = 160
PAUSE_S = 1.0
REST_S = 20.0  # after a round of all prompts
ANSWER_S = 300.0
RETRY_S = 2.0
QUIET_S = 30.0  # without a request of anybody else, and without a run, after which ours go on


def run_goes_on(runs: Path) -> Callable[[], bool]:
    """Whether a playbook runs now, by the folders of runs on the box: one with a pid and without an exit."""

    def goes_on() -> bool:
        return any(not (pid.parent / "exit.json").exists() for pid in runs.glob("*/pid"))

    return goes_on


async def send_prompts(port: int, busy: Callable[[], bool] = lambda: False, *, quiet_s: float = QUIET_S) -> None:
    """Send the prompts one after another, round after round, until cancelled.

    They stop while somebody else's requests are seen or `busy` says that a playbook runs, since nobody's figures are to
    be mixed with ours, and go on once it has been quiet for `quiet_s`. A restart of the engine is waited out, so that
    the effect of new settings is seen.
    """
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=ANSWER_S) as client:
        while True:
            try:
                await _send_until_stepped_aside(client, busy)
                await _wait_until_quiet(client, busy, quiet_s)
            except httpx.HTTPError:
                await asyncio.sleep(RETRY_S)


async def _send_until_stepped_aside(client: httpx.AsyncClient, busy: Callable[[], bool]) -> None:
    sent = 0
    before = await _served(client)
    while True:
        for prompt in PROMPTS:
            if busy() or await _served(client) > before + sent:
                return
            body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_TOKENS, "temperature": 0}
            (await client.post("/v1/chat/completions", json=body)).raise_for_status()
            sent += 1
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(REST_S)


async def _wait_until_quiet(client: httpx.AsyncClient, busy: Callable[[], bool], quiet_s: float) -> None:
    loop = asyncio.get_running_loop()
    seen, since_s = await _served(client), loop.time()
    while loop.time() - since_s < quiet_s:
        await asyncio.sleep(min(RETRY_S, quiet_s))
        now = await _served(client)
        if now != seen or busy():
            seen, since_s = now, loop.time()


async def _served(client: httpx.AsyncClient) -> int:
    """Requests served, running and waiting, since the engine started."""
    requests = (await client.get("/server_info")).raise_for_status().json()["requests"]
    return int(requests["served"]) + int(requests["running"]) + int(requests["queued"])
