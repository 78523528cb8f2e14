"""Which tokens may follow, where an answer has to be a text of some grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.grammar.automaton import DEAD, Automaton

ENDED = -2
"""The state behind an end of text: whatever comes there is thrown away, so anything may."""


@dataclass(frozen=True, eq=False)
class Form:
    """What an answer must be. `bytes_of` gives a token's bytes, none for one that may not be in it; `end_ids` end it, and only
    once it is whole.
    """

    automaton: Automaton = field(repr=False)
    bytes_of: Callable[[int], bytes] = field(repr=False)
    end_ids: frozenset[int]


@dataclass
class Constraint:
    """The form of one answer under way: `state` is that of its tokens so far."""

    form: Form
    state: int = field(init=False)
    _after: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.form.automaton.start

    def add(self, token_ids: Sequence[int]) -> None:
        """The answer goes on with `token_ids`, each of which fitted."""
        self.state = self._reached(token_ids)

    def fits_after(self, token_ids: Sequence[int]) -> Callable[[int], bool]:
        """Whether a token may follow, if the answer went on with `token_ids`."""
        state = self._reached(token_ids)
        return lambda token: self._next(state, token) != DEAD

    def _reached(self, token_ids: Sequence[int]) -> int:
        state = self.state
        for token in token_ids:
            state = self._next(state, token)
        return state

    def _next(self, state: int, token: int) -> int:
        if state in (ENDED, DEAD):
            return state
        known = self._after.get((state, token))
        if known is None:
            automaton = self.form.automaton
            if token in self.form.end_ids:
                known = ENDED if automaton.is_whole(state) else DEAD
            else:
                text = self.form.bytes_of(token)
                known = automaton.read(state, text) if text else DEAD
            self._after[state, token] = known
        return known
