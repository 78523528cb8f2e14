"""Prompts of different kinds for the demo, so that there is something to see; they step aside for anybody else's."""

from __future__ import annotations

import asyncio

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


async def send_prompts(port: int) -> None:
    """Send the prompts one after another, round after round, until somebody else's request is seen or cancelled.

    A restart of the engine is waited out, so that the effect of new settings is seen.
    """
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=ANSWER_S) as client:
        while True:
            try:
                await _send_until_stepped_aside(client)
                return
            except httpx.HTTPError:
                await asyncio.sleep(RETRY_S)


async def _send_until_stepped_aside(client: httpx.AsyncClient) -> None:
    sent = 0
    before = await _served(client)
    while True:
        for prompt in PROMPTS:
            if await _served(client) > before + sent:
                return  # the operator or a playbook is at work: their figures must not be mixed with ours
            body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_TOKENS, "temperature": 0}
            (await client.post("/v1/chat/completions", json=body)).raise_for_status()
            sent += 1
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(REST_S)


async def _served(client: httpx.AsyncClient) -> int:
    """Requests served, running and waiting, since the engine started."""
    requests = (await client.get("/server_info")).raise_for_status().json()["requests"]
    return int(requests["served"]) + int(requests["running"]) + int(requests["queued"])
