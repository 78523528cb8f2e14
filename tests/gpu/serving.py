"""The server's own way of decoding: runtime, pool, prefix cache, device rounds with their graphs, against the host's rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.config import config_from_toml
from engine.device import serving as serving_room
from engine.device.serving import decoder_for
from engine.events import Degraded, Event
from engine.prefill import prefill, release
from engine.round import Generation, decode_round
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from tests.gpu.measure import Bench, Row

TINY = Path(__file__).parents[1] / "data" / "tiny-ddtree"
PROMPT = [(7 * i + 3) % 64 for i in range(37)] * 2
SAMPLED = Sampling(temperature=0.8, seed=11, top_p=0.9)
TREE = Speculation("ddtree", 16)
MIX = (
    (TREE, Sampling()),
    (Speculation("dflash"), Sampling()),
    (Speculation("off"), Sampling()),
    (TREE, SAMPLED),
    (Speculation("ddtree", 5), SAMPLED),  # no graph is ready for this budget
    (replace(TREE, lookup="on"), Sampling()),  # in two graphs
    (TREE, Sampling(repetition_penalty=1.3)),  # the host's rounds
)


def check_serving(bench: Bench) -> list[Row]:
    """Requests that take turns on the device round give the tokens that the host's rounds give on the same device.

    In a rehearsal the device round is forced eagerly on the processor. Raises AssertionError.
    """
    tokens = bench.size(60, 12)
    for adaptive in (False, True):
        config = config_from_toml(
            f'[model]\npath = "{TINY / "target"}"\ndrafter = "{TINY / "drafter"}"\ndtype = "float32"\n'
            f"[context]\ncontext_length = 192\n[server]\nmax_running_requests = {len(MIX)}\n"
            f'[speculation]\ntree_budget = 16\nlookup = "auto"\n'
            f"adaptive_budget = {str(adaptive).lower()}\n"
        )
        host, device = load_runtime(config, device=bench.device), load_runtime(config, device=bench.device)
        told: list[Event] = []
        decodes_on, serving_room.decodes_on = serving_room.decodes_on, lambda where: True
        try:
            decode = decoder_for(device, told.append)
        finally:
            serving_room.decodes_on = decodes_on
        assert decode is not None
        wanted = together(host, partial(decode_round, host), tokens)[0]
        ours, captured = together(device, decode, tokens)
        for way, mine, theirs in zip(MIX, ours, wanted, strict=True):
            assert mine == theirs, f"{way}: {mine} and not {theirs}"
        assert told == [Degraded("host_rounds", "requests with penalties")], told
        assert captured == [bench.measures] * (len(MIX) - 1) + [False], f"captured: {captured}"
    return [Row("server", "requests in turn, sampled, adaptive, a host fallback", note="tokens equal")]


def together(runtime: Runtime, decode: serving_room.Decode, tokens: int) -> tuple[list[list[int]], list[bool]]:
    """(tokens of each of MIX, decoded together; whether each one's last round was captured)."""
    batch: Sequence[Generation] = [
        prefill(runtime, PROMPT, replace(sampling, seed=11), speculation) for speculation, sampling in MIX
    ]
    captured = [False] * len(batch)
    while going := [number for number, each in enumerate(batch) if len(each.token_ids) < tokens]:
        for number, done in zip(going, decode([batch[number] for number in going]), strict=True):
            assert done.failure is None, done.failure
            captured[number] = done.captured
    for generation in batch:
        release(runtime, generation)
    assert runtime.pool.used == 0
    return [generation.token_ids[:tokens] for generation in batch], captured
