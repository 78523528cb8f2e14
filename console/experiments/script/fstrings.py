"""f-strings by their text: what each replacement field holds, and what an older Python could not read in it.

Before PEP 701 (Python 3.12) a replacement field may hold no backslash, no comment, none of the quotes around it, and
no line break in a one-line string. `ast.parse` of a newer Python accepts all of these whatever `feature_version` says,
and an older Python places its complaint at the end of the statement. So this module reads the text itself, the same
way on every version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<string>(?<!\w)(?:[rR][bBfF]?|[bBfF][rR]?|[uU])?(?P<quote>\"\"\"|'''|\"|'))|(?P<comment>\#[^\n]*)|(?P<word>\w+)|(?P<other>.)",
    re.DOTALL,
)
_OPENERS = "([{"
_CLOSERS = ")]}"


@dataclass(frozen=True)
class Field:
    """One replacement field: the offsets of its `{` and of the end of its expression in the whole text."""

    start: int
    end: int


@dataclass(frozen=True)
class Problem:
    """What is wrong with a replacement field, where; `since` is the first Python that reads it, None when none does."""

    index: int
    message: str
    since: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scan:
    """Every replacement field and every problem of a text, in its order."""

    fields: tuple[Field, ...]
    problems: tuple[Problem, ...]


def scan_fstrings(text: str) -> Scan:
    """Read a whole script. Never raises; in text that is not Python it finds what it can."""
    scanner = _Scanner(text)
    scanner.code(0, ())
    return Scan(tuple(sorted(scanner.fields, key=lambda field: field.start)), tuple(scanner.ordered()))


class _Scanner:
    """One pass over the text. `around` is the stack of quotes of the f-strings that the reader is inside of."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.fields: list[Field] = []
        self._problems: dict[int, Problem] = {}

    def ordered(self) -> list[Problem]:
        return [self._problems[index] for index in sorted(self._problems)]

    def _blame(self, index: int, message: str, since: tuple[int, int] | None = None) -> None:
        self._problems.setdefault(index, Problem(index, message, since))

    def code(self, index: int, around: tuple[str, ...]) -> int:
        """Read code to the end of the text, or inside a field to the sign that ends its expression; give its offset."""
        depth = 0
        while index < len(self._text):
            token = _TOKEN.match(self._text, index)
            if token is None:
                return len(self._text)
            if token["string"]:
                if around and token["quote"] == around[-1] and not self._quote_again(token.end(), token["quote"]):
                    return token.start("quote")
                index = self._string(token, around)
                continue
            sign = token[0]
            if around:
                if depth == 0 and self._ends_expression(index):
                    return index
                if token["comment"]:
                    self._blame(index, "f-string: a comment inside {…}", (3, 12))
                elif sign == "\\":
                    self._backslash(index)
                    index += 2
                    continue
                elif sign == "\n" and len(around[-1]) == 1:
                    self._blame(index, "f-string: a line break inside {…} of a one-line string", (3, 12))
            depth = max(depth + (sign in _OPENERS) - (sign in _CLOSERS), 0)
            index = token.end()
        return index

    def _quote_again(self, index: int, quote: str) -> bool:
        """Whether a quote met inside a field opens a string that ends, with a `}` after it; else the field is unclosed."""
        line_end = self._text.find("\n", index) if len(quote) == 1 else -1
        end = line_end if line_end >= 0 else len(self._text)
        closing = self._text.find(quote, index, end)
        return closing >= 0 and self._text.find("}", closing, end) >= 0

    def _ends_expression(self, index: int) -> bool:
        text = self._text
        if text[index] == "!":
            return text[index + 1 : index + 2] != "="
        return text[index] in "}:"

    def _backslash(self, index: int) -> None:
        message = "f-string: a backslash inside {…}: the quotes there need no escape, or take the value out first"
        self._blame(index, message, (3, 12) if self._text[index + 1 : index + 2] == "\n" else None)

    def _string(self, token: re.Match[str], around: tuple[str, ...]) -> int:
        quote = token["quote"]
        prefix = token["string"][: -len(quote)].lower()
        if any(outer in quote for outer in around):
            self._blame(token.start("quote"), *_quote_again(quote))
        if "f" in prefix:
            return self._fstring(token.end(), quote, "r" in prefix, around)
        return self._plain(token.end(), quote, around)

    def _plain(self, index: int, quote: str, around: tuple[str, ...]) -> int:
        text = self._text
        while index < len(text):
            if text.startswith(quote, index):
                return index + len(quote)
            if text[index] == "\\":
                if around:
                    self._blame(index, "f-string: a backslash in a string inside {…}", (3, 12))
                index += 2
                continue
            if text[index] == "\n" and len(quote) == 1:
                return index
            self._outer_quote(index, around)
            index += 1
        return index

    def _fstring(self, index: int, quote: str, raw: bool, around: tuple[str, ...]) -> int:
        text = self._text
        while index < len(text):
            if text.startswith(quote, index):
                return index + len(quote)
            letter = text[index]
            if letter == "\\":
                if around:
                    self._blame(index, "f-string: a backslash in a string inside {…}", (3, 12))
                if not raw and text.startswith("\\N{", index):
                    index = text.find("}", index) + 1 or len(text)
                elif text[index + 1 : index + 2] in "{}":
                    index += 1
                else:
                    index += 2
            elif letter == "\n" and len(quote) == 1:
                return index
            elif text.startswith(("{{", "}}"), index):
                index += 2
            elif letter == "{":
                index = self._field(index, quote, around)
            elif letter == "}":
                self._blame(index, "f-string: a single } in the text; write }} for the letter")
                index += 1
            else:
                self._outer_quote(index, around)
                index += 1
        return index

    def _outer_quote(self, index: int, around: tuple[str, ...]) -> None:
        for outer in around:
            if self._text.startswith(outer, index):
                self._blame(index, *_quote_again(outer))

    def _field(self, start: int, quote: str, around: tuple[str, ...]) -> int:
        """Read `{expression[=][!conversion][:spec]}` and give the offset after it."""
        text = self._text
        end = self.code(start + 1, (*around, quote))
        if not text[start + 1 : end].strip(" \t\n"):
            self._blame(start, "f-string: nothing between { and }")
        self.fields.append(Field(start, end))
        if text.startswith("!", end):
            conversion = re.compile(r"\s*(\w*)\s*").match(text, end + 1)
            if conversion is not None:
                if conversion[1] not in ("s", "r", "a"):
                    self._blame(end, f"f-string: !{conversion[1]} is no conversion; there are !s, !r and !a")
                end = conversion.end()
        if text.startswith(":", end):
            end = self._spec(end + 1, quote, around)
        if text.startswith("}", end):
            return end + 1
        self._blame(start, "f-string: this { is never closed")
        return end

    def _spec(self, index: int, quote: str, around: tuple[str, ...]) -> int:
        text = self._text
        while index < len(text) and text[index] != "}":
            if text.startswith(quote, index) or (text[index] == "\n" and len(quote) == 1):
                return index
            index = self._field(index, quote, around) if text[index] == "{" else index + 1
        return index


def _quote_again(quote: str) -> tuple[str, tuple[int, int]]:
    return f"f-string: the quote {quote} again inside {{…}} of a string in {quote}", (3, 12)
