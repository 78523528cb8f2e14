"""The real server with a behaviour planted in it: `planted_engine.py PLANT.json serve --config engine.toml`.

It is the bundled engine on the tiny model, made to have what a GPU box has and a small CPU model has not: steps of a few
milliseconds that grow with the context, a captured graph, a GPU with a clock (a stand-in: there is none). Answers are
drawn, not greedy, since so small a model loops; each draw hangs on the prompt alone, so that equal prompts get equal
answers. A step ends when the plan says: what the machine's own work took is time not slept, and a step that came late is
made up for by the next ones, so that a busy machine shows in the figures only once it cannot keep up at all. What a box's
figures scatter by is planted instead. PLANT.json says what is wrong with the engine, and is read again for every request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine.scheduler
import engine.server.answers
import engine.server.generation
import engine.server.info
import engine.telemetry
from engine.__main__ import main
from engine.requests import Delta
from engine.runtime import Sampling, Speculation

BASE_MS, SLOPE_MS = 15.0, 0.02
SCATTER = 0.015  # of a request's steps, as a standard deviation: what repeats on one box show
CLOCK_MHZ = 1980
HEADS = {"chat": b"transcript of", "code": b"module of"}  # how the kit's prompts of a kind begin, behind their salt
LOOP = (5, 6, 7)


class Plant:
    """What is wrong, as the file says at the moment. `served` counts requests since the file last changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed_ns = 0
        self.values: dict[str, Any] = {}
        self.served = 0

    def look(self) -> None:
        changed_ns = self.path.stat().st_mtime_ns
        if changed_ns != self.changed_ns:
            self.changed_ns, self.served = changed_ns, 0
            self.values = json.loads(self.path.read_text())
        self.served += 1

    def __getattr__(self, name: str) -> Any:
        return self.values.get(name)


def replaced(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(what is there)` in the place of a function that must be there."""
    setattr(module, name, wrap(getattr(module, name)))


def plant_requests(plant: Plant) -> None:
    """Draws instead of greedy answers, and what a single request may be denied."""

    def wrap(admit: Any) -> Any:
        def admitted(serving: Any, *rest: Any, **named: Any) -> Any:
            plant.look()
            asked = admit(serving, *rest, **named)
            digest = hashlib.sha256(repr(tuple(asked.prompt_ids)).encode()).digest()
            seed = int.from_bytes(digest[:7], "big") + (plant.reseed or 0)
            speculation = asked.speculation
            text = serving.tokenizer.decode(list(asked.prompt_ids)).encode() if serving.tokenizer else b""
            if plant.drop_kind and HEADS[plant.drop_kind] in text[:120] and speculation.mode == "ddtree":
                speculation = Speculation(mode="off", tree_budget=speculation.tree_budget)
            if plant.off_after is not None and plant.served > plant.off_after:
                speculation = Speculation(mode="off", tree_budget=speculation.tree_budget)
            return dataclasses.replace(asked, sampling=Sampling(temperature=0.6, seed=seed), speculation=speculation)

        return admitted

    replaced(engine.server.generation, "admit", wrap)


def step_ms(plant: Plant, context: int) -> float:
    """What a step is made to last beside its real work."""
    if plant.unpaced:
        return 0.0
    planted = BASE_MS + SLOPE_MS * (plant.slope_factor or 1.0) * context
    if plant.jump_from is not None and context > plant.jump_from:
        planted *= 1.8
    return planted * (plant.pace or 1.0) * CLOCK_MHZ / (plant.clock_mhz or CLOCK_MHZ)


def looped(done: Any, place: int) -> Any:
    """A round whose tokens go round in a loop."""
    return dataclasses.replace(done, tokens=[LOOP[(place + i) % len(LOOP)] for i in range(len(done.tokens))])


def plant_steps(plant: Plant) -> None:
    """Step times, and outputs that loop."""
    chance, due_s, scatter = random.Random(), 0.0, 1.0

    def wrap(decode_round: Any) -> Any:
        def timed_round(runtime: Any, batch: Any) -> Any:
            nonlocal due_s, scatter
            began_s = time.perf_counter()
            if any(len(one.token_ids) == 1 for one in batch):  # a request's first step: nothing to make up for
                due_s, scatter = began_s, math.exp(chance.gauss(0.0, SCATTER))
            rounds = decode_round(runtime, batch)
            if plant.loop:
                rounds = [looped(done, len(one.token_ids)) for done, one in zip(rounds, batch, strict=True)]
            due_s += step_ms(plant, max(one.position for one in batch)) * scatter / 1000
            time.sleep(max(due_s - time.perf_counter(), 0.0))
            return rounds

        return timed_round

    replaced(engine.scheduler, "decode_round", wrap)


def plant_reports(plant: Plant) -> None:
    """The GPU, the graph flag, the cached tokens."""

    def with_gpu(box_figures: Any) -> Any:
        def figures(sampler: Any) -> Any:
            clock = plant.clock_mhz or CLOCK_MHZ
            gpu = {
                "index": 0,
                "name": "stand-in for a GPU",
                "sm_clock_mhz": clock,
                "throttle": "power cap" if clock < CLOCK_MHZ else None,
            }
            return {**box_figures(sampler), "gpus": [gpu]}

        return figures

    def with_graph(decode_fields: Any) -> Any:
        def fields(last: Any, sums: Any) -> Any:
            captured = plant.jump_from is None or last.context <= plant.jump_from
            return {**decode_fields(last, sums), "graph": int(captured)}

        return fields

    def with_cache(usage: Any) -> Any:
        def told(record: Any) -> Any:
            cached = int(record.prompt_tokens * (plant.cached_share or 0))
            return {**usage(record), "prompt_tokens_details": {"cached_tokens": cached}}

        return told

    replaced(engine.server.info, "box_figures", with_gpu)
    replaced(engine.telemetry, "_decode_fields", with_graph)
    replaced(engine.server.answers, "usage", with_cache)


def plant_stream(plant: Plant) -> None:
    """A parser that holds chunks back and gives several at a time."""

    def wrap(events: Any) -> Any:
        async def gathered(outputs: Any, *rest: Any) -> Any:
            passed: asyncio.Queue[Any] = asyncio.Queue()
            task = asyncio.create_task(gather(outputs, passed, plant.gather or 1))
            try:
                async for event in events(passed, *rest):
                    yield event
            finally:
                task.cancel()

        return gathered

    replaced(engine.server.generation, "_events", wrap)


async def gather(outputs: Any, passed: Any, count: int) -> None:
    """Pass on `count` deltas as one; whatever else ends the answer comes behind what was held back."""
    held: list[Delta] = []
    while True:
        output = await outputs.get()
        if isinstance(output, Delta):
            held.append(output)
        if held and (len(held) >= count or not isinstance(output, Delta)):
            ids = tuple(token for delta in held for token in delta.token_ids)
            passed.put_nowait(dataclasses.replace(held[-1], text="".join(delta.text for delta in held), token_ids=ids))
            held = []
        if not isinstance(output, Delta):
            passed.put_nowait(output)
            return


if __name__ == "__main__":
    planted = Plant(Path(sys.argv[1]))
    for put in (plant_requests, plant_steps, plant_reports, plant_stream):
        put(planted)
    sys.exit(main(sys.argv[2:]))
