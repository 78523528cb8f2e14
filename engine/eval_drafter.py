"""`eval-drafter`: how well a drafter drafts, by text kind and context: commit length as a chain and as trees of any budget.

The prompts are about subjects that `train-drafter` never uses. The target answers them greedily, once; every round that each
budget would have made over its answer is then counted from the same drafts. The counts are those of real rounds: a greedy
answer does not depend on the draft.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.drafter import Drafter
from engine.errors import EngineError
from engine.models.config import end_of_text_ids
from engine.models.decoder import Decoder
from engine.options import OneLineParser, positive, two_or_more
from engine.runtime import load_runtime
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.training.blocks import Passage
from engine.training.prompts import KINDS, draw_prompts
from engine.training.questions import after_turns, ask_greedily
from engine.training.replay import RoundCount, replay
from engine.training.report import Ticker
from engine.training.responses import Question, Response, answer

CHAIN = 0
SLOTS = 16  # answers in progress at a time

Key = tuple[int, str]
"""(context in tokens that precedes the prompt, 0 for none; text kind)."""


def main(argv: Sequence[str]) -> int:
    """Run the subcommand. Raises EngineError for folders that do not fit together and contexts above the target's."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    folder = Path(options.model)
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise EngineError("the folder has no tokenizer, and the prompts are words", where=options.model)
    runtime = load_runtime(
        EngineConfig(
            model=ModelTable(path=options.model, drafter=options.drafter),
            kv=KvTable(pages=1),
            speculation=SpeculationTable(mode="ddtree"),
        )
    )
    target, drafting = runtime.target, runtime.drafting
    assert drafting is not None
    drafter = drafting.drafter
    stop_ids = end_of_text_ids(folder, target.config) | set(tokenizer.eos_ids)
    ticker = Ticker(sys.stderr, time.monotonic)
    counts: dict[Key, dict[int, RoundCount]] = {}
    for number, (context, response) in enumerate(_answers(target, drafter, tokenizer, stop_ids, options), start=1):
        passage = Passage(response.token_ids, response.features, len(response.question.token_ids))
        rounds = replay(drafter, target, drafting.head, passage, (CHAIN, *options.budgets), lookup=options.lookup)
        for key in ((context, response.question.kind), (context, "all")):
            kept = counts.setdefault(key, {})
            for budget, count_ in rounds.items():
                kept[budget] = kept.get(budget, RoundCount()) + count_
        ticker.show(f"{number} of {len(options.contexts) * len(KINDS) * options.prompts} answers")
    rows = [
        _row(key, counts[key], options.budgets, lookup=options.lookup)
        for key in sorted(counts, key=lambda key: (key[0], key[1] == "all", key))
    ]
    report = {"model": options.model, "drafter": options.drafter, "block_size": drafter.config.block_size, "rows": rows}
    sys.stdout.write(json.dumps(report) + "\n" if options.json else table(rows, options.budgets))
    return 0


def _answers(
    target: Decoder, drafter: Drafter, tokenizer: Tokenizer, stop_ids: frozenset[int], options: argparse.Namespace
) -> Iterator[tuple[int, Response]]:
    """Every (context, answer); a context is made of the first answers, as earlier turns of the talk."""
    prompts = draw_prompts("held_out", options.prompts * len(KINDS), options.seed)
    questions = ask_greedily(tokenizer, prompts, max_tokens=options.max_tokens)
    between = tokenizer.encode("\n", add_special_tokens=False)
    turns: list[tuple[int, ...]] = []
    for response in _ask(target, drafter, questions, stop_ids):
        turns.append((*response.token_ids, *between))
        if 0 in options.contexts:
            yield 0, response
    for context in filter(None, options.contexts):
        late = [after_turns(question, turns, context) for question in questions]
        for response in _ask(target, drafter, late, stop_ids):
            yield context, response


def _ask(
    target: Decoder, drafter: Drafter, questions: Sequence[Question], stop_ids: frozenset[int]
) -> Iterator[Response]:
    capacity = max(len(question.token_ids) + question.max_tokens for question in questions)
    if capacity > target.config.max_position_embeddings:
        raise EngineError(
            f"context, prompt and answer come to {capacity} tokens, the target takes "
            f"{target.config.max_position_embeddings}",
            where="--contexts, --max-tokens",
        )
    taps = tuple(drafter.config.target_layer_ids)
    return answer(target, questions, taps=taps, stop_ids=stop_ids, slots=SLOTS, capacity=capacity, seed=0)


def _row(key: Key, counts: Mapping[int, RoundCount], budgets: Sequence[int], *, lookup: bool) -> dict[str, Any]:
    """The figures of one kind at one context; survival, spine, gain and calibration are those of the budget nearest 16."""
    middle = min(budgets, key=lambda budget: abs(budget - 16))
    tree = counts[middle]
    return {
        "kind": key[1],
        "context": key[0],
        "rounds": tree.rounds,
        "chain": round(counts[CHAIN].commit_length, 3),
        "tree": {str(budget): round(counts[budget].commit_length, 3) for budget in budgets},
        "at_budget": middle,
        "survival": [round(share, 3) for share in tree.survival],
        "spine_hit_rate": round(tree.spine_hit_rate, 3),
        "branch_gain": round(tree.branch_gain, 3),
        "calibration": None if tree.calibration is None else round(tree.calibration, 3),
        **({"lookup_share": round(tree.lookup_share, 3)} if lookup else {}),
    }


def table(rows: Sequence[Mapping[str, Any]], budgets: Sequence[int]) -> str:
    """The same for people: commit lengths left, how the middle budget's rounds went right."""
    heads = ["chain", *(f"tree {budget}" for budget in budgets), "spine", "gain", "calib.", "rounds"]
    heads += ["lookup"] if any("lookup_share" in row for row in rows) else []
    lines = [f"{'context':>7} {'text':11}" + "".join(f"{head:>9}" for head in heads)]
    for row in rows:
        figures = [row["chain"], *row["tree"].values()]
        cells = [f"{figure:9.2f}" for figure in figures]
        cells += [f"{100 * row['spine_hit_rate']:7.0f} %", f"{row['branch_gain']:+9.2f}"]
        cells += ["        –" if row["calibration"] is None else f"{row['calibration']:9.2f}", f"{row['rounds']:9}"]
        cells += [f"{100 * row['lookup_share']:7.0f} %"] if "lookup_share" in row else []
        lines.append(f"{row['context'] or 'short':>7} {row['kind']:11}" + "".join(cells))
    if rows:
        survival = rows[-1]["survival"]
        lines.append(
            f"kept at depth 1, 2, … with {rows[-1]['at_budget']} nodes, {rows[-1]['context'] or 'short'} context: "
            + "  ".join(f"{100 * share:.0f} %" for share in survival)
        )
    return "\n".join(lines) + "\n"


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas, ascending, each once."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 4,16,64") from None
    if found[0] < 0:
        raise argparse.ArgumentTypeError(f"{found[0]} is below 0")
    return tuple(found)


def _budgets(text: str) -> tuple[int, ...]:
    found = _numbers(text)
    if found[0] < 1 or found[-1] > 1024:
        raise argparse.ArgumentTypeError(f"{text} is outside 1-1024")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m engine eval-drafter", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="the target's Hugging Face folder")
    parser.add_argument("--drafter", required=True, metavar="DIR", help="the DFlash folder to judge")
    parser.add_argument("--prompts", type=positive, default=3, metavar="N", help="prompts of each kind (default: 3)")
    parser.add_argument(
        "--contexts",
        type=_numbers,
        default=(0,),
        metavar="0,1000,…",
        help="tokens of talk before the prompt (default: 0)",
    )
    parser.add_argument(
        "--budgets", type=_budgets, default=(4, 16, 64), metavar="4,16,…", help="tree nodes (default: 4,16,64)"
    )
    parser.add_argument(
        "--max-tokens", type=two_or_more, default=96, metavar="N", help="tokens an answer (default: 96)"
    )
    parser.add_argument(
        "--lookup", action="store_true", help="let the text's own repetition compete for the budget; tells its share"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws other held-out prompts")
    parser.add_argument("--threads", type=positive, default=None, metavar="N", help="processor threads (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
