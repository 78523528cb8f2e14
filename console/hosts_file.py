"""hosts.toml: one table a host, written by the operator.

[gpu-01]
address = "10.0.0.7"        # an SSH alias, a name or an IP address; the table's own name if left out
user = "ops"
port = 22
key = "~/.ssh/gpu"          # offer this key and no other
tag = "PROD"                # shown beside the name on every screen
colour = "red"
scope = "user"              # user, system or supervisor; found out if left out
unit = "ddtree-engine.service"
production = true           # a restart asks for the host's name to be typed
read_only = false           # true: nothing that changes the box is allowed
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.box.target import DEFAULT_UNIT, Scope
from console.errors import UsageError

COLOURS = ("red", "yellow", "green", "blue", "magenta", "cyan", "white", "grey")
SCOPES = ("user", "system", "supervisor")
VERBS = (
    "attach", "cancel", "capacity", "check", "compare", "confirm", "demo", "doctor", "explain", "export", "history",
    "install", "logs", "parse", "pin", "playbooks", "restart", "revert", "rollback", "run", "runs", "show", "start",
    "status", "stop", "uninstall",
)  # fmt: skip
"""The words of `ddtree WORD` that never mean a host."""


@dataclass(frozen=True)
class HostEntry:
    """One table of hosts.toml."""

    address: str | None = None
    user: str | None = None
    port: int | None = None
    key: Path | None = None
    tag: str | None = None
    colour: str | None = None
    scope: Scope | None = None
    unit: str = DEFAULT_UNIT
    production: bool = False
    read_only: bool = False


@dataclass(frozen=True)
class _Key:
    """What a key may hold: its TOML type, whether a value is allowed, and how to say so."""

    kind: type
    allowed: Callable[[Any], bool]
    wanted: str


def _text(pattern: str, wanted: str) -> _Key:
    return _Key(str, lambda value: re.fullmatch(pattern, value) is not None, wanted)


_FLAG = _Key(bool, lambda value: True, "true or false")
_KEYS = {
    "address": _text(r"[^\s-][^\s]*", "an SSH alias, a host name or an address"),
    "user": _text(r"[^\s-][^\s]*", "a login name"),
    "port": _Key(int, lambda value: 1 <= value <= 65535, "a number from 1 to 65535"),
    "key": _text(r".+", "the path of a private key"),
    "tag": _text(r"\S(.{0,14}\S)?", "a word of at most 16 characters"),
    "colour": _text("|".join(COLOURS) + "|#[0-9a-fA-F]{6}", f"one of {', '.join(COLOURS)}, or #rrggbb"),
    "scope": _text("|".join(SCOPES), f"one of {', '.join(SCOPES)}"),
    "unit": _text(r"[A-Za-z0-9:_.@-]+\.service", "a unit name that ends in .service"),
    "production": _FLAG,
    "read_only": _FLAG,
}


def read_hosts(path: Path) -> dict[str, HostEntry]:
    """Name -> HostEntry, in the file's order; empty if there is no file. Raises UsageError with the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark in front
        document = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError("is not UTF-8 text", where=f"{path}, line {line}", mend="write it in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        said = re.sub(r"\('([^']*)',\)", r"[\1]", str(error))  # the library shows a table's name as Python does
        raise UsageError(f"cannot be read: {said}", where=str(path), mend="correct the file") from error
    hosts: dict[str, HostEntry] = {}
    for name, table in document.items():
        where = f"{path}, line {_line(text, None, name)}"
        if isinstance(table, list) and table and isinstance(table[0], dict):
            where = f"{path}, line {_line(text, name, '')}"
            raise UsageError(f"[[{name}]] is a list of tables", where=where, mend=f"write [{name}]")
        if not isinstance(table, dict):
            raise UsageError(
                f"{name} stands outside a host's table", where=where, mend="write it under a line such as [gpu-01]"
            )
        if re.search(r"^$|^[\s-]|\s$|[\x00-\x1f]", name):
            where = f"{path}, line {_line(text, name, '')}"
            raise UsageError(
                f"{_in_toml(name)} is no name for a host", where=where, mend="write a name such as [gpu-01]"
            )
        if name in VERBS:
            where = f"{path}, line {_line(text, name, '')}"
            said = "the box of `ddtree demo`" if name == "demo" else f"`ddtree {name}` is a verb"
            mend = f"call the host something else, for example [{name}-01]"
            raise UsageError(f"{name} is no name for a host: {said}", where=where, mend=mend)
        hosts[name] = _entry(path, text, name, table)
    return hosts


def _in_toml(value: object) -> str:
    """`value` as it stands in the file, or near enough to be found there."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _entry(path: Path, text: str, name: str, table: dict[str, Any]) -> HostEntry:
    for key, value in table.items():
        where = f"{path}, line {_line(text, name, key)}"
        rule = _KEYS.get(key)
        if rule is None:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.4)
            mend = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(_KEYS)}"
            raise UsageError(f"unknown key {key} for host {name}", where=where, mend=mend)
        if type(value) is not rule.kind or not rule.allowed(value):
            raise UsageError(f"{key} = {_in_toml(value)} for host {name}", where=where, mend=f"write {rule.wanted}")
    values = dict(table)
    if "key" in values:
        values["key"] = Path(values["key"]).expanduser()
    return HostEntry(**values)


def _line(text: str, table: str | None, key: str) -> int:
    """The line `key` stands on inside `table` (None: before the first table); the table's own line if it is not found.

    The parser of the standard library keeps no positions, so the text is searched.
    """
    current: str | None = None
    header = 1
    for number, line in enumerate(text.splitlines(), start=1):
        opened = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if opened:
            current = opened[1].strip("\"'")
            header = number if current == table else header
        elif current == table and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""", line):
            return number
    return header
