"""Command-line options that say what to run: the settings of engine.toml under their own names."""

from __future__ import annotations

import argparse
from typing import Any, Literal, NoReturn

from engine.config import (
    ContextTable,
    EngineConfig,
    KvTable,
    ModelTable,
    SpeculationTable,
    check_setting,
)
from engine.errors import EngineError


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaint is one line, an EngineError like any other bad input."""

    def error(self, message: str) -> NoReturn:
        raise EngineError(message, where=self.prog, mend=f"{self.prog} --help tells more")


def positive(word: str) -> int:
    """A whole number of 1 or more, for `type=` of an option."""
    return _at_least(1, word)


def two_or_more(word: str) -> int:
    """A whole number of 2 or more: the first token comes from the prefill, and a step needs one more."""
    return _at_least(2, word)


def _at_least(low: int, word: str) -> int:
    try:
        value = int(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{word} is not a whole number") from error
    if value < low:
        raise argparse.ArgumentTypeError(f"{value} is below {low}")
    return value


def add_runtime_options(parser: argparse.ArgumentParser) -> None:
    """--model, --drafter and the settings of engine.toml that a run without a server can be given."""
    parser.add_argument("--model", required=True, metavar="DIR", help="the target's Hugging Face folder")
    parser.add_argument("--drafter", default="", metavar="DIR", help="a DFlash drafter's folder")
    parser.add_argument("--dtype", help="auto, bfloat16 or float32 (default: auto, as the weights are stored)")
    parser.add_argument(
        "--context-length", type=int, metavar="N", help="tokens of prompt and answer (default: the model's)"
    )
    parser.add_argument("--rope-scaling", metavar="yarn:F", help="stretch the model's positions F times")
    parser.add_argument("--page-size", type=int, metavar="P", help="tokens a KV page holds, 1-256 (default: 16)")
    parser.add_argument(
        "--pages", type=int, metavar="N", help="pages of the KV pool (default: from context and memory)"
    )
    parser.add_argument("--block-size", type=int, metavar="N", help="tokens a draft block has (default: the drafter's)")


def config_from_options(options: argparse.Namespace) -> EngineConfig:
    """EngineConfig from the options of `add_runtime_options` that were given, each checked under its option's name."""

    def given(*names: str) -> dict[str, Any]:
        values = {name: getattr(options, name, None) for name in names}
        return {
            name: check_setting(name, value, where=f"--{name.replace('_', '-')}")
            for name, value in values.items()
            if value is not None
        }

    return EngineConfig(
        model=ModelTable(path=options.model, drafter=options.drafter, **given("dtype")),
        context=ContextTable(**given("context_length", "rope_scaling")),
        kv=KvTable(**given("page_size", "pages")),
        speculation=SpeculationTable(mode=chosen_mode(options), **given("block_size", "tree_budget")),
    )


def chosen_mode(options: argparse.Namespace) -> Literal["off", "dflash", "ddtree"]:
    """`--mode`, or "ddtree" where there is a drafter and "off" where there is none. Drafting needs a drafter."""
    mode = getattr(options, "mode", None)
    if options.drafter:
        return mode or "ddtree"
    if mode in ("dflash", "ddtree"):
        raise EngineError(f'mode "{mode}" needs a drafter', where="--mode", mend="add --drafter DIR, or use --mode off")
    if getattr(options, "tree_budget", None) is not None:
        raise EngineError("a tree budget needs a drafter", where="--tree-budget", mend="add --drafter DIR")
    if getattr(options, "lookup", "off") != "off":
        raise EngineError("a lookup needs a drafter at work beside it", where="--lookup", mend="add --drafter DIR")
    if getattr(options, "block_size", None) is not None:
        raise EngineError("a block size needs a drafter", where="--block-size", mend="add --drafter DIR")
    return "off"
