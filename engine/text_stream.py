"""Tokens to text for one answer: whole characters only, and nothing past a stop string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True)
class Piece:
    """What a round's tokens add: `text` to hand out now, `tokens` of them used, and the stop string met, if any."""

    text: str
    tokens: int
    stop: str | None = None


@dataclass
class TextStream:
    """The growing text of one answer. Without a tokenizer every text is empty.

    Text that may be the beginning of a stop string is held back until it is decided, so a stop string is found
    wherever it falls over tokens and rounds, and no part of it is ever handed out. The first `min_tokens` tokens
    take no part in the search.
    """

    tokenizer: Tokenizer | None
    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    shown: Mapping[int, str] = field(default_factory=dict)  # special tokens that are text here: a parser's markers
    _seen: int = 0  # tokens pushed so far
    _held: str = ""  # text not handed out yet
    _detokenizer: Detokenizer | None = field(init=False)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.tokenizer) if self.tokenizer is not None else None

    def push(self, token_ids: Sequence[int]) -> Piece:
        """Take one round's tokens in order; a stop string may end inside them, then the rest is not used."""
        ready = ""
        for used, token_id in enumerate(token_ids, start=1):
            self._seen += 1
            text = self._detokenizer.push(token_id) if self._detokenizer is not None else ""
            text = self.shown.get(token_id, text)
            if self._seen <= self.min_tokens:
                ready += text
                continue
            self._held += text
            found = first_of(self._held, self.stops)
            if found is not None:
                start, stop = found
                ready += self._held[:start]
                self._held = ""
                return Piece(ready, used, stop)
            keep = undecided(self._held, self.stops)
            ready += self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
        return Piece(ready, len(token_ids))

    def rest(self) -> str:
        """What was held back, once no more tokens come; a character that never got its last byte is left out."""
        held, self._held = self._held, ""
        return held


def first_of(text: str, words: Sequence[str]) -> tuple[int, str] | None:
    """Where the earliest of some words begins, and which it is."""
    found = [(start, word) for word in words if (start := text.find(word)) >= 0]
    return min(found) if found else None


def undecided(text: str, words: Sequence[str]) -> int:
    """Length of the longest end of `text` that one of the words could begin with."""
    return max((_overlap(text, word) for word in words), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
