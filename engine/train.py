"""`train-drafter`: a DFlash drafter for a target, from nothing but the target.

The target answers prompts; its features are kept on disk; blocks at random anchors train the drafter; checkpoints make the run
resumable. What comes out is an ordinary DFlash folder with a card that says how it was made and how well it drafts.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.download import cache_root, sha256_of
from engine.draft_head import DraftHead, draft_head, write_draft_vocabulary
from engine.drafter import Drafter, load_drafter
from engine.drafter_config import default_target_layers
from engine.errors import EngineError
from engine.models.config import end_of_text_ids
from engine.models.decoder import Decoder
from engine.models.loader import load_target, read_model_config, shards
from engine.options import OneLineParser
from engine.runtime import best_device, resolve_dtype
from engine.tokenizer import load_tokenizer
from engine.training.blocks import Passage
from engine.training.corpus import Corpus, CorpusKey
from engine.training.folder import drafter_config, new_drafter, write_drafter
from engine.training.loop import Plan, Progress, Trainer
from engine.training.material import HELD_OUT_PROMPTS, HELD_OUT_TOKENS, Asked, held_out_corpus, training_corpus
from engine.training.objective import DraftVocabulary
from engine.training.prompts import KINDS
from engine.training.replay import RoundCount, replay
from engine.training.report import Ticker

BUDGETS: Mapping[str, int] = {"chain": 0, "tree 7": 7, "tree 16": 16, "tree 32": 32}
"""What a drafter is judged at: the chain, and trees of as many drafted nodes."""


@dataclass(frozen=True)
class _Places:
    """The files of a run."""

    work: Path

    @property
    def corpus(self) -> Path:
        return self.work / "corpus"

    @property
    def held_out(self) -> Path:
        return self.work / "held_out"

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint.pt"


def main(argv: Sequence[str]) -> int:
    """Run the subcommand. Raises EngineError for what cannot be trained."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    folder = Path(options.model)
    target = load_target(folder, resolve_dtype("auto", read_model_config(folder)))
    target.place(best_device())
    taps = _taps(options.taps, target.config.layers)
    places = _Places(
        Path(options.work) if options.work else cache_root() / "training" / Path(options.out).resolve().name
    )
    weights_sha256 = _weights_sha256(folder)
    tokenizer = load_tokenizer(folder)
    asked = Asked(
        target,
        tokenizer,
        end_of_text_ids(folder, target.config) | set(tokenizer.eos_ids if tokenizer else ()),
        CorpusKey(weights_sha256, taps, len(taps) * target.config.hidden_size),
        max_tokens=options.answer_tokens,
    )
    ticker = Ticker(sys.stderr, time.monotonic)
    held_out = held_out_corpus(asked, places.held_out, options.seed, ticker.show)
    corpus = training_corpus(asked, places.corpus, options.tokens, options.seed, ticker.show)
    ticker.note(f"{len(corpus.records)} answers, {corpus.response_tokens} tokens in {places.corpus}")
    drafter = _first_drafter(options, target, taps, corpus)
    plan = Plan(options.steps, options.budget_minutes * 60, seed=options.seed, learning_rate=options.learning_rate)
    drafter.place(target.device)
    trainer = Trainer(drafter.to(target.dtype), target, corpus, plan)
    if options.resume:
        trainer.load(places.checkpoint)
    described = {"name": folder.name, "weights_sha256": weights_sha256}
    out = Path(options.out)
    head_ids = _head_ids(corpus, target.config.vocab_size, options.head_tokens)
    write_draft_vocabulary(out, head_ids)
    _train(trainer, places, out, described, ticker, options.checkpoint_minutes * 60)
    figures = judge(trainer.drafter, target, draft_head(target, head_ids), held_out)
    write_drafter(trainer.drafter, target.config, out, card(trainer, described, figures), torch.bfloat16)
    ticker.note(f"wrote {out}: " + "  ".join(f"{name} {value}" for name, value in figures["all"].items()))
    return 0


def _weights_sha256(folder: Path) -> str:
    """That of the one weight file; of several, that of a list of their names and sums, as `sha256sum` prints it."""
    files = shards(folder)
    if len(files) == 1:
        return sha256_of(files[0])
    return hashlib.sha256("".join(f"{sha256_of(file)}  {file.name}\n" for file in files).encode()).hexdigest()


def _train(
    trainer: Trainer, places: _Places, out: Path, described: dict[str, Any], ticker: Ticker, interval_s: float
) -> None:
    """Run to the end of the plan, with a live line, and a checkpoint with a usable drafter folder every `interval_s`."""
    saved_at = trainer.seconds

    def on_step(progress: Progress) -> None:
        nonlocal saved_at
        left = progress.seconds * (1 - progress.done) / progress.done
        ticker.show(
            f"step {progress.step}  {progress.done:.0%}  loss {progress.loss:.3f}  commit length ~{progress.commit_length:.2f}  "
            + "".join(f"{kind} {kept:.2f}  " for kind, kept in progress.by_kind.items())
            + f"{progress.tokens_per_s:.0f} tokens/s  {left / 60:.0f} min left"
        )
        if progress.seconds - saved_at >= interval_s:
            saved_at = progress.seconds
            _save(trainer, places, out, described)

    try:
        trainer.run(on_step)
    finally:  # an interrupted run keeps its last step
        _save(trainer, places, out, described)


def _save(trainer: Trainer, places: _Places, out: Path, described: dict[str, Any]) -> None:
    trainer.save(places.checkpoint)
    write_drafter(trainer.drafter, trainer.target.config, out, card(trainer, described, {}), torch.bfloat16)


def judge(drafter: Drafter, target: Decoder, head: DraftHead, held_out: Corpus) -> dict[str, dict[str, float]]:
    """Commit length by text kind and for all text, at every budget of BUDGETS; `tokens` is how much text was replayed."""
    budgets = list(BUDGETS.values())
    by_kind: dict[str, dict[int, RoundCount]] = {}
    tokens: dict[str, int] = {}
    for record in held_out.records:
        passage = Passage(record.token_ids, held_out.features(record), record.prompt_tokens)
        counts = replay(drafter, target, head, passage, budgets)
        for kind in (record.kind, "all"):
            kept = by_kind.setdefault(kind, dict.fromkeys(budgets, RoundCount()))
            by_kind[kind] = {budget: kept[budget] + counts[budget] for budget in budgets}
            tokens[kind] = tokens.get(kind, 0) + record.response_tokens
    kinds = [*sorted(kind for kind in by_kind if kind != "all"), "all"]
    return {
        kind: {
            **{name: round(by_kind[kind][budget].commit_length, 3) for name, budget in BUDGETS.items()},
            "tokens": tokens[kind],
        }
        for kind in kinds
    }


def card(trainer: Trainer, target: dict[str, Any], figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    """How the drafter was made and, where they are known, its held-out figures."""
    config = trainer.drafter.config
    return {
        "target": target,
        "block_size": config.block_size,
        "layers": config.layers,
        "target_layer_ids": list(config.target_layer_ids),
        "mask_token_id": config.mask_token_id,
        "data": {
            "source": "the target's own answers to generated prompts, half greedy, half at temperatures up to 0.8",
            "responses": len(trainer.corpus.records),
            "response_tokens": trainer.corpus.response_tokens,
            "draft_vocabulary": len(trainer.vocabulary.token_ids),
        },
        "training": {
            "steps": trainer.step,
            "blocks": trainer.blocks,
            "minutes": round(trainer.seconds / 60, 1),
            "loss": round(trainer.loss, 3),
        },
        "held_out": figures,
        "held_out_again": f"python -m engine eval-drafter --model TARGET --drafter THIS --prompts {HELD_OUT_PROMPTS // len(KINDS)} "
        f"--max-tokens {HELD_OUT_TOKENS} --budgets {','.join(str(budget) for budget in BUDGETS.values() if budget)}",
    }


def _first_drafter(options: argparse.Namespace, target: Decoder, taps: tuple[int, ...], corpus: Corpus) -> Drafter:
    """A new drafter, or the one to train on. Raises EngineError where the corpus holds features of other layers."""
    if options.start_from is None:
        config = drafter_config(
            target.config,
            layers=options.layers,
            taps=taps,
            block_size=options.block_size,
            mask_token_id=_mask_token(options.mask_token_id, corpus, target.config.vocab_size),
        )
        return new_drafter(config, target, options.seed)
    drafter = load_drafter(options.start_from, target.config, torch.float32)
    if drafter.config.target_layer_ids != taps:
        own = ",".join(map(str, drafter.config.target_layer_ids))
        raise EngineError(f"the drafter reads layers {own}", where=options.start_from, mend=f"say --taps {own}")
    return drafter.requires_grad_(True).train()


def _head_ids(corpus: Corpus, vocab_size: int, most: int) -> torch.Tensor | None:
    """The tokens the drafter may propose: the commonest of the answers; None for all of the vocabulary."""
    return DraftVocabulary.of(corpus.answer_ids(), vocab_size, most).token_ids if most else None


def _taps(text: str | None, layers: int) -> tuple[int, ...]:
    if text is None:
        return tuple(sorted(set(default_target_layers(layers, 5))))
    try:
        taps = tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise EngineError(f"not layer numbers: {text}", where="--taps", mend="write them as 1,8,15") from error
    wrong = [tap for tap in taps if not 0 <= tap < layers]
    if wrong:
        raise EngineError(f"layer {wrong[0]} is outside 0-{layers - 1} of the target", where="--taps")
    return taps


def _mask_token(asked: int | None, corpus: Corpus, vocab_size: int) -> int:
    """The id given, else the lowest that the corpus never uses: a row of the embedding that means nothing in a text."""
    if asked is not None:
        if not 0 <= asked < vocab_size:
            raise EngineError(f"{asked} lies outside the vocabulary of {vocab_size}", where="--mask-token-id")
        return asked
    used = {token for record in corpus.records for token in record.token_ids}
    unused = next((token for token in range(vocab_size) if token not in used), None)
    if unused is None:
        raise EngineError("every token of the vocabulary is in use", where="--mask-token-id", mend="name the rarest")
    return unused


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m engine train-drafter", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="the target's Hugging Face folder")
    parser.add_argument("--out", required=True, metavar="DIR", help="the drafter's folder, written at every checkpoint")
    parser.add_argument("--work", metavar="DIR", help="answers, features and checkpoint (default: in the cache folder)")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="draft layers (default: 2)")
    parser.add_argument("--taps", metavar="1,8,…", help="target layers read (default: five, evenly)")
    parser.add_argument(
        "--block-size", type=int, default=8, metavar="N", help="tokens in a block, the seed included (default: 8)"
    )
    parser.add_argument("--mask-token-id", type=int, metavar="ID", help="default: the lowest id no answer uses")
    parser.add_argument(
        "--tokens", type=int, default=300_000, metavar="N", help="answer tokens to train on (default: 300000)"
    )
    parser.add_argument(
        "--answer-tokens", type=int, default=192, metavar="N", help="an answer's length at most (default: 192)"
    )
    parser.add_argument(
        "--budget-minutes", type=float, default=30.0, metavar="N", help="training time after the answers are there"
    )
    parser.add_argument(
        "--steps", type=int, default=0, metavar="N", help="end after so many steps, if that comes first"
    )
    parser.add_argument(
        "--head-tokens",
        type=int,
        default=12_288,
        metavar="N",
        help="the commonest tokens, which it may propose; 0 for all (default: 12288)",
    )
    parser.add_argument(
        "--start-from", metavar="DIR", help="a drafter's folder to train on; its layers, taps, block and mask stay"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="R")
    parser.add_argument("--checkpoint-minutes", type=float, default=3.0, metavar="N")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the work folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="processor threads (default: all)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
