"""From settings to an engine that has really generated a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from engine.config import EngineConfig
from engine.device.serving import Decode, decoder_for
from engine.events import Event, Observer
from engine.measure_cost import measure_cost
from engine.models.config import end_of_text_ids
from engine.models.fields import read_json
from engine.models.weights_sha import weights_sha
from engine.notify import Notifier
from engine.prefill import prefill, release
from engine.round import decode_round
from engine.runtime import Runtime, Sampling, Speculation, give_back_freed_memory, load_runtime
from engine.scheduler import Scheduler
from engine.server.schema import LookupChoice, Mode
from engine.server.service import Serving
from engine.tokenizer import Tokenizer, load_tokenizer

QUEUE_LIMIT = 64
"""Requests that may wait; the next one is refused with 429, so that a client learns it at once."""


def load_engine(
    config: EngineConfig, observers: Sequence[Observer], notifier: Notifier, on_phase: Callable[[str], None]
) -> Serving:
    """Load the model, warm it up, and put a scheduler over it. Raises EngineError; what `on_phase` raises passes through."""
    runtime = load_runtime(config, on_phase)
    on_phase("loading the tokenizer")
    folder = Path(config.model.path)
    tokenizer = load_tokenizer(folder)

    def tell(event: Event) -> None:
        for observer in observers:
            observer(event)

    decode = decoder_for(runtime, tell, on_phase)
    on_phase("warming up")
    warm_up(runtime, decode)
    if decode is None and config.speculation.adaptive_budget and config.speculation.mode == "ddtree":
        on_phase("measuring what rounds cost")
        runtime = replace(runtime, cost=measure_cost(runtime))
    give_back_freed_memory()
    scheduler = Scheduler(
        runtime,
        tokenizer,
        observers,
        queue_limit=QUEUE_LIMIT,
        on_turn=notifier.alive,
        on_rest=give_back_freed_memory,
        idle_s=notifier.idle_s,
        decode=decode,
    )
    return Serving(
        runtime,
        tokenizer,
        scheduler,
        folder.resolve().name,
        end_ids(runtime, folder, tokenizer),
        model_sha=weights_sha(folder),
        drafter_sha=weights_sha(Path(config.model.drafter)) if runtime.drafter is not None else None,
        drafter_positions=stated_positions(Path(config.model.drafter)) if runtime.drafter is not None else None,
    )


def stated_positions(folder: Path) -> int | None:
    """Tokens of context that a drafter says it was made for; None where it says nothing."""
    stated = read_json(folder / "config.json").get("max_position_embeddings")
    return stated if isinstance(stated, int) else None


def warm_up(runtime: Runtime, decode: Decode | None = None) -> None:
    """Generate tokens for real, in the service's own mode: the proof of readiness, and no first request pays for it."""
    settings = runtime.config.speculation
    speculation = Speculation(cast(Mode, settings.mode), settings.tree_budget, cast(LookupChoice, settings.lookup))
    generation = prefill(runtime, [0], Sampling(), speculation)
    try:
        if runtime.max_context > 2:
            decode_round(runtime, [generation]) if decode is None else decode([generation])
    finally:
        release(runtime, generation)


def end_ids(runtime: Runtime, folder: Path, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Ids that end an answer: chat models name them in config.json, generation_config.json or the tokenizer's files."""
    return end_of_text_ids(folder, runtime.target.config) | set(tokenizer.eos_ids if tokenizer else ())
