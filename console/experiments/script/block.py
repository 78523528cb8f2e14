"""The PEP 723 comment block of a script: found, checked for being the only one, and read as TOML with its places kept.

The inline script metadata specification (packaging.python.org) says: a block opens with `# /// script` alone on its
line, goes on while lines are `#` or begin with `# `, and ends with the last `# ///` of that run; two blocks of one
type are an error; a block that never closes is no block. A checker has to say so in place of ignoring it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from console.experiments.script.fault import Fault, Source

_OPEN = re.compile(r"^# /// (?P<type>[a-zA-Z0-9-]+)$")
_NEARLY_OPEN = re.compile(r"^\s*#\s*/{2,}\s*script\s*$", re.IGNORECASE)
_CLOSE = "# ///"
_TABLE = re.compile(r"^\s*\[\s*(?P<path>[^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"^\s*(?P<key>[A-Za-z0-9_-]+|\"[^\"]+\"|'[^']+')\s*(?:=|\.)")
_TOML_PLACE = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")

Path = tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A header read as TOML. `places` maps the path of a table or key to its (line, column) in the file."""

    data: Mapping[str, Any]
    places: Mapping[Path, tuple[int, int]]
    first_line: int
    last_line: int

    def place(self, path: Path) -> tuple[int, int]:
        """Where `path` is written; else the nearest table around it; else the block's first line."""
        for length in range(len(path), 0, -1):
            if (found := self.places.get(path[:length])) is not None:
                return found
        return self.first_line, 1


def find_block(source: Source) -> tuple[Block | None, tuple[Fault, ...]]:
    """The one `script` block of a source, or None with the faults that say why there is none."""
    openings = [n for n, line in enumerate(source.lines, 1) if (m := _OPEN.match(line)) and m["type"] == "script"]
    if not openings:
        return None, (_no_block(source),)
    first = openings[0]
    if len(openings) > 1:
        message = f"a second `# /// script` block; the first opens on line {first}, and a script has exactly one"
        return None, tuple(source.fault(line, 1, message) for line in openings[1:])
    last = first
    while source.line(last + 1) == "#" or source.line(last + 1).startswith("# "):
        last += 1
    closings = [n for n in range(first + 1, last + 1) if source.line(n) == _CLOSE]
    if not closings:
        return None, (_never_closed(source, first, last),)
    return _read_toml(source, first, closings[-1])


def _no_block(source: Source) -> Fault:
    for number, line in enumerate(source.lines, 1):
        if _NEARLY_OPEN.match(line):
            return source.fault(number, 1, "no header: it opens with exactly `# /// script`, with nothing around it")
        opened = _OPEN.match(line)
        if opened:
            message = f"no header: a block of type {opened['type']!r}; the registered type is `# /// script`"
            return source.fault(number, 7, message)
    message = "no header: a playbook begins with a `# /// script` block that holds [tool.ddtree.playbook]"
    return source.fault(1, 1, message)


def _never_closed(source: Source, first: int, last: int) -> Fault:
    after = source.line(last + 1)
    if after.lstrip().startswith("#"):
        message = f"the header opened on line {first} breaks off here: its lines are `#` or begin with `# `"
        return source.fault(last + 1, 1, message)
    return source.fault(first, 1, f"the header opens here and is never closed; end it with `# ///` after line {last}")


def _read_toml(source: Source, first: int, last: int) -> tuple[Block | None, tuple[Fault, ...]]:
    content = [source.line(number)[2:] for number in range(first + 1, last)]
    try:
        data = tomllib.loads("\n".join(content) + "\n")
    except tomllib.TOMLDecodeError as error:
        place = _TOML_PLACE.search(str(error))
        message = _TOML_PLACE.sub("", str(error))
        if place and place["line"]:
            return None, (source.fault(first + int(place["line"]), int(place["column"]) + 2, f"TOML: {message}"),)
        return None, (source.fault(last, 1, f"TOML: {message} before the end of the header"),)
    except (RecursionError, ValueError) as error:  # brackets nested past the reader's depth; integers of 5,000 digits
        return None, (source.fault(first, 1, f"TOML: the header cannot be read: {error}"),)
    return Block(data, _places(content, first), first, last), ()


def _places(content: list[str], first: int) -> dict[Path, tuple[int, int]]:
    places: dict[Path, tuple[int, int]] = {}
    table: Path = ()
    for offset, line in enumerate(content, start=1):
        if header := _TABLE.match(line):
            table = tuple(part.strip().strip("\"'") for part in header["path"].split("."))
            for length in range(1, len(table) + 1):
                places.setdefault(table[:length], (first + offset, header.start("path") + 3))
        elif entry := _KEY.match(line):
            places.setdefault((*table, entry["key"].strip("\"'")), (first + offset, entry.start("key") + 3))
    return places


def lines_for_old_readers(source: Source, block: Block) -> Iterator[Fault]:
    """Faults for header lines that a box with Python 3.9 or 3.10 cannot read: these have no TOML reader of their own,
    and the kit's reads tables and one `key = value` a line, with strings, numbers, true, false and flat lists."""
    for number in range(block.first_line + 1, block.last_line):
        text = source.line(number)[2:].strip()
        if not text or text.startswith("#") or _TABLE.match(text):
            continue
        if not _reads_alone(text):
            message = "Python before 3.11 has no TOML reader, and the kit's wants a plain `key = value` on one line"
            yield source.fault(number, 3, f"{message}; or ask for requires-python >=3.11")
            return


def _reads_alone(text: str) -> bool:
    name, _, value = text.partition("=")
    try:
        held = tomllib.loads(text).get(name.strip())
        if isinstance(held, bool):
            return True
        return held is not None and not isinstance(held, dict) and bool(ast.literal_eval(value.strip()) == held)
    except (tomllib.TOMLDecodeError, ValueError, SyntaxError):
        return False
