"""`make bench`: autoregressive, chain (DFlash) and tree (DDTree) decoding side by side on the bundled model, by text kind.

Arms take turns on the same prompts, whose subjects the drafter was not trained on; an answer ends where the model ends it, since
what it says after that is no text of its kind. Every figure is a ratio of sums over an arm's runs.
Run it on a quiet machine: the ratios bear company, the tokens per second do not.
"""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch

import engine
from engine.bench import Arm
from engine.config import EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.fetch_model import ensure_model
from engine.generate import generate
from engine.models.config import end_of_text_ids
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.tokenizer import load_tokenizer
from engine.training.prompts import KINDS, draw_prompts
from engine.training.questions import ask_greedily

DRAFTER = Path(engine.__file__).parent / "drafters" / "smollm2-135m-instruct"
WAYS: Mapping[str, Speculation] = {
    "off": Speculation("off"),
    "chain": Speculation("dflash"),
    "tree 7": Speculation("ddtree", 7),
    "tree 16": Speculation("ddtree", 16),
    "7+lookup": Speculation("ddtree", 7, "auto"),
}


def main(argv: Sequence[str]) -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench", description=__doc__)
    parser.add_argument("--prompts", type=int, default=4, help="prompts of each kind (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens an answer at the most (default: 128)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of every arm, in turn (default: 1)")
    parser.add_argument("--threads", type=int, default=0, help="processor threads (default: all)")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    model = ensure_model()
    runtime = load_runtime(
        EngineConfig(
            model=ModelTable(path=str(model), drafter=str(DRAFTER)),
            kv=KvTable(pages=64),
            speculation=SpeculationTable(mode="ddtree"),
        )
    )
    arms = measure(runtime, model, options.prompts, options.max_tokens, options.rounds)
    sys.stdout.write(table(arms))
    return 0


def measure(runtime: Runtime, model: Path, prompts: int, max_tokens: int, rounds: int) -> list[tuple[str, Arm]]:
    """(way's name, arm) for every way and prompt, their runs summed up."""
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise FileNotFoundError(model / "tokenizer.json")
    questions = ask_greedily(tokenizer, draw_prompts("held_out", prompts * len(KINDS), 1), max_tokens=max_tokens)
    arms = [
        (name, Arm(way, question.kind, list(question.token_ids)))
        for question in questions
        for name, way in WAYS.items()
    ]
    stop_ids = end_of_text_ids(model, runtime.target.config) | set(tokenizer.eos_ids)
    for _, arm in arms[: len(WAYS)]:  # warm-up, not counted
        run(runtime, Arm(arm.speculation, arm.kind, arm.prompt_ids), 8, stop_ids)
    for turn in range(rounds):
        for _, arm in arms:
            run(runtime, arm, max_tokens, stop_ids)
        sys.stderr.write(f"round {turn + 1} of {rounds} done\n")
    return arms


def run(runtime: Runtime, arm: Arm, max_tokens: int, stop_ids: Collection[int]) -> None:
    """One answer, added to the arm."""
    arm.add(
        generate(runtime, arm.prompt_ids, Sampling(), arm.speculation, max_tokens=max_tokens, stop_ids=stop_ids),
    )


def table(arms: Sequence[tuple[str, Arm]]) -> str:
    """Tokens a second of every way, and for those that draft also the commit length and the ratio to autoregressive decoding."""
    drafting = [name for name, way in WAYS.items() if way.mode != "off"]
    head = f"{'text':12}{'off':>9}" + "".join(f"{name:>12}{'commit':>8}{'ratio':>7}" for name in drafting)
    unit = f"{'':12}{'tok/s':>9}" + "".join(f"{'tok/s':>12}{'length':>8}{'':>7}" for _ in drafting)
    lines = [head, unit]
    for kind in [*dict.fromkeys(arm.kind for _, arm in arms), "all"]:
        rates, commits = {}, {}
        for name in WAYS:
            own = [arm for way, arm in arms if way == name and kind in (arm.kind, "all")]
            tokens, steps, seconds = (
                sum(values) for values in zip(*((a.tokens, a.steps, a.decode_s) for a in own), strict=True)
            )
            rates[name], commits[name] = tokens / seconds, tokens / steps
        line = f"{kind:12}{rates['off']:9.1f}"
        line += "".join(
            f"{rates[name]:12.1f}{commits[name]:8.2f}{rates[name] / rates['off']:6.2f}x" for name in drafting
        )
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
