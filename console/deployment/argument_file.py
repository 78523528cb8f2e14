"""An EnvironmentFile that holds an engine's argument list in one variable: read, and written back with the rest untouched.

    SGLANG_ARGS="--model-path /models/qwen3-8b --context-length 32768"

systemd reads the file at each start, without a reload, and splits `$SGLANG_ARGS` of the unit's ExecStart at blanks, quotes
respected. Only what means the same to every version of it is read and written here; anything else is refused by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from console.errors import UsageError

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_ESCAPED = re.compile(r'\\(["\\$`])')
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:,@%+=~-]+")
_WORD = re.compile(r"""((?:[^\s'"]|'[^']*'|"[^"]*")+)(?:\s+|$)""")


@dataclass(frozen=True)
class ArgumentFile:
    """The file, taken apart. `lines` are all of it; line `at` holds the arguments of variable `name`."""

    lines: tuple[str, ...]
    at: int
    name: str
    words: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """The other variables of the file."""
        found = (_ASSIGNMENT.fullmatch(line) for at, line in enumerate(self.lines) if at != self.at)
        return {match[1]: _value(match[2], 0) for match in found if match}

    def with_words(self, words: tuple[str, ...]) -> str:
        """The whole file with other arguments. Raises UsageError for a word that systemd would not read back."""
        value = " ".join(_quoted(word) for word in words)
        escaped = re.sub(r'(["\\$`])', r"\\\1", value)
        lines = (*self.lines[: self.at], f'{self.name}="{escaped}"', *self.lines[self.at + 1 :])
        return "\n".join(lines) + "\n"


def parse_argument_file(text: str, name: str) -> ArgumentFile:
    """The file with the arguments in variable `name`. Raises UsageError naming the line that cannot be read."""
    lines = tuple(text.splitlines())
    found: tuple[int, str] | None = None
    for at, line in enumerate(lines):
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        match = _ASSIGNMENT.fullmatch(line)
        if match is None or line.endswith("\\"):
            raise UsageError("is no NAME=value on one line", where=f"line {at + 1}", mend='write it as NAME="…"')
        if match[1] == name:
            if found is not None:
                raise UsageError("is given twice", where=f"{name}, line {at + 1}", mend="keep one of them")
            found = at, match[2]
    if found is None:
        raise UsageError("is not in the unit's environment file", where=name, mend=f'add a line {name}="…"')
    return ArgumentFile(lines, found[0], name, split_words(_value(found[1], found[0] + 1), found[0] + 1))


def _value(text: str, line: int) -> str:
    """A value as systemd unquotes it: bare, or whole in single or double quotes."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"' and not re.search(r'(?<!\\)(?:\\\\)*"', text[1:-1]):
        return _ESCAPED.sub(r"\1", text[1:-1])
    if len(text) >= 2 and text[0] == text[-1] == "'" and "'" not in text[1:-1]:
        return text[1:-1]
    if set(text) & set("\"'\\"):
        raise UsageError(
            "mixes quotes in a way that systemd's versions read differently",
            where=f"line {line}",
            mend='put the whole value in double quotes, as NAME="…"',
        )
    return text


def split_words(value: str, line: int = 0) -> tuple[str, ...]:
    """The words that `$NAME` in ExecStart becomes: split at blanks, quotes respected and removed."""
    words: list[str] = []
    at, value = 0, value.strip()
    while at < len(value):
        match = _WORD.match(value, at)
        if match is None or "\\" in match[1]:
            raise UsageError("has a quote without its end, or a backslash", where=f"line {line}, {value[at:][:40]!r}")
        words.append(re.sub(r"""'([^']*)'|"([^"]*)\"""", lambda quoted: quoted[1] or quoted[2] or "", match[1]))
        at = match.end()
    return tuple(words)


def _quoted(word: str) -> str:
    if _PLAIN_WORD.fullmatch(word):
        return word
    if "'" in word or "\\" in word or any(ord(character) < 32 for character in word):
        raise UsageError("cannot be handed over: it holds a quote, a backslash or a control code", where=repr(word))
    return f"'{word}'"
