"""The tiny arithmetic of headers: numbers, names, `+ - * / min max` and brackets; nothing else can be written in it.

`est_seconds`, `min` and `max` of a header use it: `"levels*reps*(6+tokens/40)"`, `"engine.max_context-tokens-64"`.
A list parameter stands for its length in an expression, since estimates multiply by the number of levels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = int | float

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(?P<sign>[-+*/(),]))"
)
_MAX_LENGTH = 500
_MAX_DEPTH = 40


class ExpressionError(ValueError):
    """Why an expression cannot be read or worked out; `offset` counts characters from 0."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True)
class Expression:
    """A parsed expression: the names it needs, and a function of their values."""

    text: str
    names: frozenset[str]
    _compute: Callable[[Mapping[str, Value]], Value]

    def value(self, names: Mapping[str, Value]) -> Value:
        """Work it out. Raises ExpressionError for an unknown name, a division by zero or a result without bound."""
        missing = sorted(self.names - names.keys())
        if missing:
            raise ExpressionError(f"unknown name {missing[0]!r}")
        try:
            result = self._compute(names)
        except ZeroDivisionError:
            raise ExpressionError(f"{self.text!r} divides by zero") from None
        except OverflowError:
            raise ExpressionError(f"{self.text!r} is too large") from None
        if result != result or result in (float("inf"), float("-inf")):
            raise ExpressionError(f"{self.text!r} has no finite value")
        return result


def parse_expression(text: str) -> Expression:
    """Read an expression. Raises ExpressionError naming the first thing that does not belong."""
    if len(text) > _MAX_LENGTH:
        raise ExpressionError(f"an expression may be {_MAX_LENGTH} characters long")
    tokens = _tokens(text)
    if not tokens:
        raise ExpressionError("an empty expression")
    reader = _Reader(tokens, len(text))
    compute = reader.sum(0)
    if reader.kind != "end":
        raise ExpressionError(f"unexpected {reader.word!r}", reader.offset)
    return Expression(text, frozenset(reader.names), compute)


def _tokens(text: str) -> list[tuple[str, str, int]]:
    tokens = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if not match:
            offset = position + len(text[position:]) - len(text[position:].lstrip())
            raise ExpressionError(f"{text[offset]!r} has no place here: numbers, names, + - * / min max only", offset)
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind], match.start(kind)))
        position = match.end()
    return tokens


_Compute: TypeAlias = Callable[[Mapping[str, Value]], Value]
_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
_FUNCTIONS: dict[str, Callable[[list[Value]], Value]] = {"min": min, "max": max}


class _Reader:
    """Recursive descent over the tokens; each method returns the function that computes what it read."""

    def __init__(self, tokens: list[tuple[str, str, int]], length: int) -> None:
        self._tokens = [*tokens, ("end", "end of expression", length)]
        self._at = 0
        self.names: set[str] = set()

    @property
    def kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def word(self) -> str:
        return self._tokens[self._at][1]

    @property
    def offset(self) -> int:
        return self._tokens[self._at][2]

    def _take(self) -> str:
        word = self.word
        self._at += 1
        return word

    def _expect(self, sign: str) -> None:
        if self.kind != "sign" or self.word != sign:
            raise ExpressionError(f"expected {sign!r} before {self.word!r}", self.offset)
        self._at += 1

    def sum(self, depth: int) -> _Compute:
        left = self._product(depth)
        while self.kind == "sign" and self.word in "+-":
            left = _join(self._take(), left, self._product(depth))
        return left

    def _product(self, depth: int) -> _Compute:
        left = self._factor(depth)
        while self.kind == "sign" and self.word in "*/":
            left = _join(self._take(), left, self._factor(depth))
        return left

    def _factor(self, depth: int) -> _Compute:
        if depth > _MAX_DEPTH:
            raise ExpressionError("brackets nested too deeply", self.offset)
        kind, offset = self.kind, self.offset
        if kind == "number":
            return _constant(self._take())
        if kind == "name":
            name = self._take()
            if self.kind == "sign" and self.word == "(":
                return self._call(name, offset, depth)
            self.names.add(name)
            return lambda names: names[name]
        if kind == "sign" and self.word == "-":
            self._take()
            inner = self._factor(depth + 1)
            return lambda names: -inner(names)
        if kind == "sign" and self.word == "(":
            self._take()
            inner = self.sum(depth + 1)
            self._expect(")")
            return inner
        raise ExpressionError(f"unexpected {self.word!r}", offset)

    def _call(self, name: str, offset: int, depth: int) -> _Compute:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise ExpressionError(f"{name}() is no function of headers; there are min and max", offset)
        self._expect("(")
        parts = [self.sum(depth + 1)]
        while self.kind == "sign" and self.word == ",":
            self._take()
            parts.append(self.sum(depth + 1))
        self._expect(")")
        if len(parts) < 2:
            raise ExpressionError(f"{name}() needs two values", offset)
        return lambda names: function([part(names) for part in parts])


def _constant(word: str) -> _Compute:
    value: Value = int(word) if word.isdigit() else float(word)
    return lambda names: value


def _join(sign: str, left: _Compute, right: _Compute) -> _Compute:
    operate = _BINARY[sign]
    return lambda names: operate(left(names), right(names))
