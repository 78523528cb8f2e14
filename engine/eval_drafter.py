"""`eval-drafter`: commit length by text kind, chain and trees, counted in the engine's own decode round.

The prompts are those about subjects that `train-drafter` never uses; answers are greedy, so every arm writes the same text.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from engine.config import EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.errors import EngineError
from engine.generate import generate
from engine.models.config import end_of_text_ids
from engine.options import OneLineParser, positive, two_or_more
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.tokenizer import load_tokenizer
from engine.training.prompts import KINDS, draw_prompts
from engine.training.questions import ask_greedily
from engine.training.replay import RoundCount
from engine.training.responses import Question

ARMS: Mapping[str, Speculation] = {
    "chain": Speculation("dflash"),
    "tree 7": Speculation("ddtree", 7),
    "tree 16": Speculation("ddtree", 16),
    "tree 32": Speculation("ddtree", 32),
}


def main(argv: Sequence[str]) -> int:
    """Run the subcommand. Raises EngineError for folders that do not fit together."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    folder = Path(options.model)
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise EngineError("the folder has no tokenizer, and the prompts are words", where=options.model)
    runtime = load_runtime(
        EngineConfig(
            model=ModelTable(path=options.model, drafter=options.drafter),
            kv=KvTable(pages=64),
            speculation=SpeculationTable(mode="ddtree"),
        )
    )
    stop_ids = end_of_text_ids(folder, runtime.target.config) | set(tokenizer.eos_ids)
    prompts = draw_prompts("held_out", options.prompts * len(KINDS), options.seed)
    questions = ask_greedily(tokenizer, prompts, max_tokens=options.max_tokens)
    totals: dict[str, dict[str, RoundCount]] = {}
    for number, (kind, counts) in enumerate(_measure(runtime, questions, stop_ids), start=1):
        for row in (kind, "all"):
            kept = totals.setdefault(row, dict.fromkeys(ARMS, RoundCount()))
            totals[row] = {arm: kept[arm] + counts[arm] for arm in ARMS}
        sys.stderr.write(f"{number} of {len(questions)} prompts\n" if number % len(KINDS) == 0 else "")
    figures = {
        kind: {arm: round(count.commit_length, 3) for arm, count in row.items()}
        for kind, row in sorted(totals.items(), key=lambda item: (item[0] == "all", item[0]))
    }
    sys.stdout.write(json.dumps(figures) + "\n" if options.json else _table(figures))
    return 0


def _measure(
    runtime: Runtime, questions: Sequence[Question], stop_ids: frozenset[int]
) -> Iterator[tuple[str, dict[str, RoundCount]]]:
    """Each question's kind and its rounds in every arm. The last round is left out: the end of the answer cuts it short."""
    for question in questions:
        counts = {}
        for arm, speculation in ARMS.items():
            run = generate(
                runtime,
                question.token_ids,
                Sampling(),
                speculation,
                max_tokens=question.max_tokens,
                stop_ids=stop_ids,
            )
            whole = run.commit_lengths[:-1]
            counts[arm] = RoundCount(sum(whole), len(whole))
        yield question.kind, counts


def _table(figures: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"{'text':12}" + "".join(f"{arm:>10}" for arm in ARMS)]
    lines += [f"{kind:12}" + "".join(f"{row[arm]:10.2f}" for arm in ARMS) for kind, row in figures.items()]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m engine eval-drafter", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="the target's Hugging Face folder")
    parser.add_argument("--drafter", required=True, metavar="DIR", help="the DFlash folder to judge")
    parser.add_argument("--prompts", type=positive, default=3, metavar="N", help="prompts of each kind (default: 3)")
    parser.add_argument(
        "--max-tokens", type=two_or_more, default=96, metavar="N", help="tokens an answer (default: 96)"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws other held-out prompts")
    parser.add_argument("--threads", type=positive, default=None, metavar="N", help="processor threads (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
