"""`python -m engine generate`: one prompt to one answer, no server."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from engine.device.serving import Decode, decoder_for
from engine.errors import EngineError
from engine.events import Degraded, Event
from engine.models.config import end_of_text_ids
from engine.options import chosen_mode, config_from_options
from engine.prefill import prefill, release
from engine.round import decode_round
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.stopping import FinishReason, keep
from engine.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Generated:
    """An answer. `commit_lengths`: tokens kept a step; the first token comes from the prefill and belongs to no step.

    `decode_s` is the wall time of the steps; `stages_ms` are sums over them.
    """

    token_ids: list[int]
    text: str
    commit_lengths: list[int]
    finish_reason: FinishReason
    steps: int
    decode_s: float
    stages_ms: dict[str, float]
    lookup_tokens: int = 0
    """Tokens of the steps that only the lookup had proposed."""


def generate(
    runtime: Runtime,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    speculation: Speculation,
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    ignore_eos: bool = False,
    tokenizer: Tokenizer | None = None,
    decode: Decode | None = None,
) -> Generated:
    """Prefill and decode until a stop id, `max_tokens` or the context's end. Without a tokenizer the text is empty.

    `decode` runs the rounds (`decode_by_device`); by default `engine.round` does.
    """
    generation = prefill(runtime, prompt_ids, sampling, speculation)
    try:
        context_left = runtime.max_context - len(prompt_ids)
        kept, reason = keep(generation.token_ids, 0, max_tokens, 0, stop_ids, ignore_eos, context_left)
        commits: list[int] = []
        looked_up = 0
        stages: Counter[str] = Counter()
        began = perf_counter()
        while reason is None:
            (step,) = decode_round(runtime, [generation]) if decode is None else decode([generation])
            if step.failure is not None:
                raise step.failure
            left = context_left - len(kept)
            new, reason = keep(step.tokens, len(kept), max_tokens, 0, stop_ids, ignore_eos, left)
            kept += new
            commits.append(len(new))
            looked_up += sum(node in step.tree.grafted for node in step.path[1 : len(new) + 1])
            stages.update(step.stages_ms)
        decode_s = perf_counter() - began
    finally:
        release(runtime, generation)
    text = tokenizer.decode(kept) if tokenizer else ""
    return Generated(kept, text, commits, reason, len(commits), decode_s, dict(stages), looked_up)


def main(options: argparse.Namespace) -> Generated:
    """Run the subcommand. Raises EngineError for input that cannot be run."""
    folder = Path(options.model)
    mode = chosen_mode(options)
    runtime = load_runtime(config_from_options(options))
    tokenizer = load_tokenizer(folder)
    prompt_ids = read_prompt(options.prompt, options.prompt_ids, tokenizer, folder)
    tree_budget = runtime.config.speculation.tree_budget
    sampling = Sampling(options.temperature, options.seed, options.top_p, options.top_k, options.min_p)
    return generate(
        runtime,
        prompt_ids,
        sampling,
        Speculation(mode, tree_budget, options.lookup),
        max_tokens=options.max_tokens,
        stop_ids=end_of_text_ids(folder, runtime.target.config) | set(tokenizer.eos_ids if tokenizer else ()),
        ignore_eos=options.ignore_eos,
        tokenizer=tokenizer,
        decode=decode_by_device(runtime),
    )


def decode_by_device(runtime: Runtime) -> Decode | None:
    """What runs the rounds of a command: the device's own on a GPU, else None. What it cannot do stands on standard error."""

    def tell(event: Event) -> None:
        if isinstance(event, Degraded):
            sys.stderr.write(f"{event.what}: {event.why}\n")

    return decoder_for(runtime, tell, ahead=False)


def read_prompt(text: str | None, ids: str | None, tokenizer: Tokenizer | None, folder: Path) -> list[int]:
    """Prompt token ids from `--prompt-ids 1,2,3`, or from text by the model's own tokenizer."""
    if ids is not None:
        try:
            return [int(word) for word in ids.split(",")]
        except ValueError as error:
            raise EngineError(f"not token ids: {ids}", where="--prompt-ids", mend="write them as 1,2,3") from error
    if tokenizer is None:
        raise EngineError("the folder has no tokenizer", where=str(folder), mend="give token ids with --prompt-ids")
    return tokenizer.encode(text or "")
