"""The small readers that header fields are made of: each gives a typed value or raises Wrong with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from console.experiments.script.nearest import did_you_mean


class Wrong(ValueError):
    """Why a value cannot stand where it stands: the rest of a sentence that begins with the key's name."""


def kind_of(value: Any) -> str:
    """A TOML value's type in words: `an integer`, `a table`, …"""
    if isinstance(value, bool):
        return "true or false"
    for kind, word in (
        (str, "a string"),
        (int, "an integer"),
        (float, "a number"),
        (list, "a list"),
        (dict, "a table"),
    ):
        if isinstance(value, kind):
            return word
    return "a date or a time"


def one_line(value: Any) -> str:
    """A non-empty line of printable text."""
    if not isinstance(value, str):
        raise Wrong(f"is {kind_of(value)}, not a string")
    if not value.strip():
        raise Wrong("is empty")
    if not value.isprintable():
        raise Wrong("must be one line of printable text")
    return value


def short(most: int) -> Callable[[Any], str]:
    """A reader of a line that has to fit a list."""

    def read(value: Any) -> str:
        text = one_line(value)
        if len(text) > most:
            raise Wrong(f"has {len(text)} characters; it may have {most}")
        return text

    return read


def pattern(expression: re.Pattern[str], words_for_it: str) -> Callable[[Any], str]:
    """A reader of text that must match as a whole."""

    def read(value: Any) -> str:
        text = one_line(value)
        if not expression.fullmatch(text):
            raise Wrong(f"is {text!r}; it must be {words_for_it}")
        return text

    return read


def words(known: Sequence[str]) -> Callable[[Any], tuple[str, ...]]:
    """A reader of a list of words out of a closed list, each at most once."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise Wrong(f"is {kind_of(value)}, not a list of strings")
        for word in value:
            if not isinstance(word, str):
                raise Wrong(f"holds {kind_of(word)}; it is a list of strings")
            if word not in known:
                raise Wrong(f"does not know {word!r}{did_you_mean(word, known) or '; known: ' + ', '.join(known)}")
            if value.count(word) > 1:
                raise Wrong(f"names {word!r} twice")
        return tuple(value)

    return read
