"""`python -m engine` (`ddtree-engine`): one subcommand a task. Bad input is one line on standard error and exit status 2.

Subcommands are imported when they are asked for: `--help` and `host` never load torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from engine.errors import EngineError
from engine.options import OneLineParser, add_runtime_options, positive, two_or_more

WITH_OWN_PARSER = {
    "fetch-model": ("engine.fetch_model", "fetch the bundled model into a folder"),
    "train-drafter": ("engine.train", "train a DFlash drafter for a target"),
    "eval-drafter": ("engine.eval_drafter", "measure a drafter's commit length"),
    "host": ("engine.host", "one sample of this machine: processors, memory, GPUs"),
}
"""Subcommands whose module's `main(argv)` reads the rest of the command line itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    _find_own_kernels()
    # Threads that spin while they wait stall each other on a busy machine: a step then takes ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and arguments[0] in WITH_OWN_PARSER:
            module, _ = WITH_OWN_PARSER[arguments[0]]
            status: int = import_module(module).main(arguments[1:])
            return status
        options = build_parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _find_own_kernels() -> None:
    """Have `kernels` mean the folder beside this package: transformers 5.25 needs another distribution of that name."""
    project = Path(__file__).resolve().parent.parent
    found = find_spec("kernels")
    if found is None or str(project / "kernels") not in map(os.path.realpath, found.submodule_search_locations or ()):
        sys.path.insert(0, str(project))


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = OneLineParser(prog="python -m engine", description="The engine bundled with the DDTree console.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve = commands.add_parser("serve", help="serve the OpenAI endpoints")
    serve.add_argument("--config", required=True, metavar="FILE", help="engine.toml")
    serve.add_argument("--check-config", action="store_true", help="say whether it could serve, as JSON; start nothing")
    serve.set_defaults(run=_serve)
    _add_generate(commands.add_parser("generate", help="answer one prompt"))
    capacity = commands.add_parser("capacity", help="KV bytes per token, the pool, what fits")
    add_runtime_options(capacity)
    capacity.add_argument("--json", action="store_true", help="one JSON object")
    capacity.set_defaults(run=_capacity)
    _add_bench(commands.add_parser("bench", help="time autoregressive, chain and tree decoding side by side"))
    for name, (_, help_line) in WITH_OWN_PARSER.items():
        commands.add_parser(name, help=help_line, add_help=False)
    return parser


def _add_generate(parser: argparse.ArgumentParser) -> None:
    add_runtime_options(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt; the model folder needs a tokenizer")
    prompt.add_argument("--prompt-ids", metavar="1,2,3", help="the prompt as token ids")
    parser.add_argument("--max-tokens", type=positive, required=True, metavar="N", help="tokens to generate at most")
    parser.add_argument("--mode", choices=("off", "dflash", "ddtree"), help="default: ddtree with a drafter, else off")
    parser.add_argument("--tree-budget", type=int, metavar="B", help="drafted nodes a round for ddtree (default: 16)")
    parser.add_argument(
        "--lookup",
        choices=("off", "on", "auto"),
        default="off",
        help="let continuations found in the text itself compete for the budget (default: off)",
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    parser.add_argument("--seed", type=int, metavar="S", help="same seed, same sampled answer")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P")
    parser.add_argument("--top-k", type=int, default=0, metavar="K")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P")
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-text token")
    parser.add_argument("--json", action="store_true", help="one JSON object; stages_ms are sums over the steps")
    parser.set_defaults(run=_generate)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add_runtime_options(parser)
    parser.add_argument(
        "--modes",
        default="off,dflash,ddtree",
        metavar="LIST",
        help="arms (default: off,dflash,ddtree); ddtree+lookup and dflash+lookup are known too",
    )
    parser.add_argument("--budgets", default="16", metavar="LIST", help="tree budgets of the ddtree arms (default: 16)")
    parser.add_argument(
        "--contexts", default="0", metavar="LIST", help="prompt tokens, padded with text; 0: the bare prompt"
    )
    parser.add_argument("--max-tokens", type=two_or_more, default=64, metavar="N", help="tokens a run (default: 64)")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="runs an arm, interleaved (default: 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object an arm")
    parser.set_defaults(run=_bench)


def _serve(options: argparse.Namespace) -> int:
    if options.check_config:
        from engine.check_config import check_config

        print(json.dumps(check_config(options.config)))
        return 0
    from engine.server.main import serve

    return serve(options.config)


def _generate(options: argparse.Namespace) -> int:
    from engine.generate import main as generate

    answer = generate(options)
    if options.json:
        figures = asdict(answer)
        looked_up = figures.pop("lookup_tokens")
        print(json.dumps(figures if options.lookup == "off" else {**figures, "lookup_tokens": looked_up}))
    else:
        print(answer.text or ",".join(map(str, answer.token_ids)))
    return 0


def _capacity(options: argparse.Namespace) -> int:
    from engine.capacity import main as capacity

    figures = capacity(options)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:,}" if isinstance(value, int) else f"{name:24} {value}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from engine.bench import main as bench

    for arm in bench(options):
        print(
            json.dumps(arm) if options.json else "  ".join(f"{key} {value}" for key, value in arm.items()), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
