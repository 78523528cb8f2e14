"""What `--help` prints, made from the table of verbs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from console.errors import ExitCode
from console.verbs.verb import Argument, Verb
from console.verbs.words import Style, columns

_EXITS = (
    (ExitCode.DONE, "done"),
    (ExitCode.FAILED, "failed"),
    (ExitCode.USAGE, "bad usage, nothing was touched"),
    (ExitCode.CHECK_SAYS_NO, 'a check\'s answer is "no"'),
    (ExitCode.PRECONDITION, "precondition missing on the box"),
    (ExitCode.NO_CONNECTION, "no connection"),
    (ExitCode.INCONCLUSIVE, "inconclusive"),
    (ExitCode.VOID, "void"),
    (ExitCode.ROLLED_BACK, "settings rolled back"),
    (ExitCode.ROLLBACK_FAILED, "rollback failed"),
    (ExitCode.BASE_CHANGED, "the settings had changed in between"),
    (ExitCode.OUTCOME_UNKNOWN, "outcome unknown yet, ask again"),
    (ExitCode.BUSY, "busy"),
    (ExitCode.INTERRUPTED, "interrupted"),
)


def overview(verbs: Mapping[str, Verb], session: Sequence[Argument], style: Style) -> str:
    """`ddtree --help`: every verb in a line."""
    return "\n".join(
        [
            "Operate an LLM serving box with DDTree speculative decoding, over SSH.",
            "",
            style.strong("usage"),
            "  ddtree [HOST]                 open the console, on the last host or on HOST",
            "  ddtree VERB [HOST] [options]  do one thing and exit; `ddtree VERB --help` for its options",
            "",
            "  HOST is demo, a name in hosts.toml, an SSH alias, user@host or user@host:port.",
            "",
            style.strong("verbs"),
            _indented(columns([(verb.name, verb.title) for verb in verbs.values()])),
            "",
            style.strong("options of every verb"),
            _options(session),
            "",
            style.strong("exit status"),
            _indented(columns([(f"{int(code)}", words) for code, words in _EXITS])),
        ]
    )


def of_verb(verb: Verb, session: Sequence[Argument], style: Style) -> str:
    """`ddtree VERB --help`."""
    parts = [f"{style.strong('usage')}  {verb.usage}", "", verb.help]
    words = [(argument.shown, argument.help) for argument in verb.arguments if not argument.option]
    if words:
        parts += ["", _indented(columns(words))]
    options = [argument for argument in verb.arguments if argument.option]
    if options:
        parts += ["", style.strong("options"), _options(options)]
    return "\n".join([*parts, "", style.strong("options of every verb"), _options(session)])


def _options(arguments: Iterable[Argument]) -> str:
    return _indented(columns([(argument.shown, argument.help) for argument in arguments]))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
