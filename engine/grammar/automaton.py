"""Grammars over bytes, and what may come next after a text that one of them has begun to describe.

A grammar is a list of rules; a rule has alternatives, each a sequence of symbols; a symbol is a set of bytes or another rule. What has
been read is a set of stacks: the symbols that each way of reading it still expects. Stacks share their tails and are numbered, and so
are the sets, so that reading a byte again where it was read before is one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Symbol = frozenset[int] | int
"""A set of bytes, or the number of a rule."""

DEAD = -1
"""The state of a text that no way of reading allows."""

Value = TypeVar("Value")
ANY_BYTE = frozenset(range(256))


@dataclass
class Grammar:
    """Rules by number. No rule may come back to itself without reading a byte."""

    rules: list[list[tuple[Symbol, ...]]] = field(default_factory=list)
    _untils: dict[tuple[str, ...], int] = field(default_factory=dict)

    def rule(self, *alternatives: Sequence[Symbol]) -> int:
        """A new rule."""
        self.rules.append([tuple(alternative) for alternative in alternatives])
        return len(self.rules) - 1

    def word(self, text: str | bytes) -> tuple[Symbol, ...]:
        """A text, byte by byte."""
        return tuple(frozenset((byte,)) for byte in (text.encode() if isinstance(text, str) else text))

    def optional(self, *symbols: Symbol) -> int:
        """The symbols, or nothing."""
        return self.rule((), symbols)

    def repeated(self, *symbols: Symbol) -> int:
        """The symbols any number of times, none included."""
        again = self.rule(())
        self.rules[again].append((*symbols, again))
        return again

    def at_most(self, times: int, *symbols: Symbol) -> int:
        """The symbols up to `times` times."""
        rest = self.rule(())
        for _ in range(times):
            rest = self.rule((), (*symbols, rest))
        return rest

    def until(self, end: str, without: Sequence[str] = ()) -> int:
        """Any bytes up to and with the first `end`, among them none of the words `without`."""
        known = self._untils.get((end, *without))
        if known is not None:
            return known
        last, words = end.encode(), [end.encode(), *(word.encode() for word in without)]
        beginnings = {word[:size] for word in words for size in range(len(word))}
        numbers = {read: self.rule() for read in sorted(beginnings, key=len)}
        for read, number in numbers.items():
            ways: dict[int | None, set[int]] = {}
            for byte in ANY_BYTE:
                text = read + bytes((byte,))
                if text.endswith(last):
                    ways.setdefault(None, set()).add(byte)
                elif not any(text.endswith(word) for word in words):
                    kept = next(text[start:] for start in range(len(text) + 1) if text[start:] in beginnings)
                    ways.setdefault(numbers[kept], set()).add(byte)
            self.rules[number] = [
                (frozenset(found),) if to is None else (frozenset(found), to) for to, found in ways.items()
            ]
        self._untils[(end, *without)] = numbers[b""]
        return numbers[b""]


@dataclass
class Automaton:
    """Reads texts of one grammar. States are numbers; `start` is that of the empty text."""

    grammar: Grammar
    root: int
    start: int = field(init=False)
    _cells: list[tuple[Symbol, int]] = field(default_factory=list)  # a stack: its top, and the stack below (-1: none)
    _cell_ids: dict[tuple[Symbol, int], int] = field(default_factory=dict)
    _states: list[frozenset[int]] = field(default_factory=list)  # each a set of stacks whose tops are byte sets
    _state_ids: dict[frozenset[int], int] = field(default_factory=dict)
    _steps: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = self._state(self._expanded(self._cell(self.root, -1)))

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte, DEAD where the grammar has no such text."""
        known = self._steps.get((state, byte))
        if known is None:
            stacks: set[int] = set()
            for stack in self._states[state]:
                if stack >= 0:
                    top, below = self._cells[stack]
                    if byte in top:  # type: ignore[operator]  # tops of expanded stacks are byte sets
                        stacks |= self._expanded(below)
            known = self._steps[state, byte] = self._state(stacks) if stacks else DEAD
        return known

    def read(self, state: int, text: bytes) -> int:
        """The state after more text."""
        for byte in text:
            if state == DEAD:
                return DEAD
            state = self.step(state, byte)
        return state

    def is_whole(self, state: int) -> bool:
        """Whether what was read is a whole text of the grammar."""
        return state != DEAD and -1 in self._states[state]

    def _expanded(self, stack: int) -> set[int]:
        """The stack with rules replaced by their alternatives until each top is a byte set; -1 is the empty stack."""
        found: set[int] = set()
        waiting, seen = [stack], {stack}
        while waiting:
            stack = waiting.pop()
            top, below = self._cells[stack] if stack >= 0 else (frozenset[int](), -1)
            if stack < 0 or isinstance(top, frozenset):
                found.add(stack)
                continue
            for alternative in self.grammar.rules[top]:
                longer = below
                for symbol in reversed(alternative):
                    longer = self._cell(symbol, longer)
                if longer not in seen:
                    seen.add(longer)
                    waiting.append(longer)
        return found

    def _cell(self, symbol: Symbol, below: int) -> int:
        return _number((symbol, below), self._cell_ids, self._cells)

    def _state(self, stacks: Iterable[int]) -> int:
        return _number(frozenset(stacks), self._state_ids, self._states)


def _number(value: Value, numbers: dict[Value, int], values: list[Value]) -> int:
    """The number of a value; a new value gets the next."""
    found = numbers.setdefault(value, len(values))
    if found == len(values):
        values.append(value)
    return found
