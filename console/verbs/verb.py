"""What a verb is, and what it is given when it runs. The table itself is `console/actions.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from console.errors import ExitCode
from console.verbs.words import Style

Kind: TypeAlias = Literal["text", "count", "bytes", "flag", "pair", "path"]
"""How an argument's words are read: `bytes` takes 80e9 and 80GB, `pair` takes NAME=VALUE, `path` a local file or `-`."""


@dataclass(frozen=True)
class Argument:
    """One argument of a verb. A positional one is named in capitals in the help, an option `--name` in small letters."""

    name: str
    help: str
    kind: Kind = "text"
    option: bool = True
    required: bool = False
    repeat: bool = False
    choices: tuple[str, ...] = ()
    default: Any = None
    metavar: str = ""
    takes: int = 1
    """How many values stand behind an option that is no flag; more than one: they come as a tuple."""

    @property
    def shown(self) -> str:
        """As it stands in a usage line: `HOST`, `--since T`, `--set NAME=VALUE …`."""
        if not self.option:
            word = self.metavar or self.name.upper()
            return f"{word}…" if self.repeat else word
        if self.kind == "flag":
            return f"--{self.name}"
        value = "|".join(self.choices) or self.metavar or {"pair": "NAME=VALUE", "count": "N"}.get(self.kind, "TEXT")
        return f"--{self.name} {value}" + (" …" if self.repeat else "")


@dataclass(frozen=True)
class Session:
    """What holds for a whole command, and what the face lends to the verbs."""

    say: Callable[[Mapping[str, Any], str], None]
    """Say one thing: as an object, and in words for people. The face prints the one that was asked for."""
    style: Style
    open_console: Callable[[str | None, Session], Awaitable[ExitCode]]
    """Open the console on a host (None: on the welcome); returns when it is left."""
    ask: Callable[[str], Awaitable[str]] | None = None
    """Put a question to the operator and return the line typed; None: there is nobody to ask."""
    as_json: bool = False
    read_only: bool = False
    plain: bool = False
    accept_host_key: str | None = None
    say_beside: Callable[[str], None] | None = None
    """Say something beside the output, where people may read it and no program does; None: there is no such place."""


@dataclass(frozen=True)
class Call:
    """One verb with its arguments, read and typed by the table."""

    verb: Verb
    arguments: Mapping[str, Any]
    session: Session

    def text(self, name: str) -> str:
        """A required text argument."""
        return str(self.arguments[name])

    def flag(self, name: str) -> bool:
        """Whether a flag was given."""
        return bool(self.arguments.get(name))

    def pairs(self, name: str) -> dict[str, str]:
        """NAME=VALUE arguments, in the order given."""
        return dict(self.arguments.get(name) or {})

    def paths(self, name: str) -> tuple[Path, ...]:
        """Local files."""
        return tuple(self.arguments.get(name) or ())

    def say(self, data: Mapping[str, Any], text: str) -> None:
        """Say one thing, as an object and in words."""
        self.session.say(data, text)

    def tell(self, text: str) -> None:
        """Say something on the way that only people need."""
        if not self.session.as_json:
            self.session.say({}, text)

    def urge(self, text: str) -> None:
        """Say something on the way that somebody has to act on: beside the output where that is for programs."""
        if not self.session.as_json:
            self.session.say({}, text)
        elif self.session.say_beside is not None:
            self.session.say_beside(text)


@dataclass(frozen=True)
class Verb:
    """One thing an operator can ask for. `key` is its key in the console, where it has one."""

    name: str
    title: str
    help: str
    run: Callable[[Call], Awaitable[ExitCode]]
    arguments: tuple[Argument, ...] = ()
    key: str | None = None
    changes_box: bool = False
    streams: bool = False

    @property
    def usage(self) -> str:
        """`ddtree restart HOST [--set NAME=VALUE …] [--dry-run]`."""
        parts = [argument.shown if argument.required else f"[{argument.shown}]" for argument in self.arguments]
        return " ".join(["ddtree", self.name, *parts])
