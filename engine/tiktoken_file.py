"""A tokenizer from a `tiktoken.model` file, as Kimi K2's folders bring it: pieces as base64, each with its rank.

Its byte-pair encoding joins, again and again, the two neighbours whose joined bytes have the lowest rank. As a list of merges: every
way to part a piece into two known ones, in order of the piece's rank.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import EngineError

_LETTERS_BUT_HAN = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_PIECES = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_LETTERS_BUT_HAN}]*[\p{{Ll}}{_LETTERS_BUT_HAN}]+{_ENDINGS}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_LETTERS_BUT_HAN}]+[\p{{Ll}}{_LETTERS_BUT_HAN}]*{_ENDINGS}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""How Kimi's tokenizer cuts a text before it looks for pieces: Chinese runs apart, words with one sign before them, digits by
three, signs, line ends, blanks."""


def read_tiktoken(path: Path, settings: Mapping[str, Any], alphabet: Mapping[int, str]) -> Tokenizer:
    """The tokenizer of a `tiktoken.model` file; `settings` is tokenizer_config.json, whose added tokens it takes.

    `alphabet`: the character that stands for each byte in byte-level pieces. Raises EngineError for a file it cannot use.
    """
    ranks = _read_ranks(path)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise EngineError(f"it has no piece for the byte {missing[0]}", where=str(path), mend="copy the file again")

    def written(piece: bytes) -> str:
        return "".join(alphabet[byte] for byte in piece)

    merges = [(written(left), written(right)) for left, right in merges_of(ranks)]
    vocabulary = {written(piece): rank for piece, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(KIMI_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, settings, path)
    return tokenizer


def merges_of(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Every pair of known pieces that joins to a known one, lowest rank of the joined one first."""
    for piece in sorted(ranks, key=lambda piece: ranks[piece]):
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        yield from sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        if not text.strip():
            continue
        try:
            piece, rank = text.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as fault:
            raise EngineError(f"line {number} is no piece with its rank", where=str(path)) from fault
    return ranks


def _add_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> None:
    """Added tokens must get the ids the config gives them: they follow the pieces without a gap, unnamed ones reserved."""
    stated = settings.get("added_tokens_decoder") or {}
    try:
        named = {int(token): entry for token, entry in stated.items()}
        first, last = tokenizer.get_vocab_size(), max(named, default=-1)
        added = [
            AddedToken(str(named[token]["content"]), special=bool(named[token].get("special", True)), normalized=False)
            if token in named
            else AddedToken(f"<|reserved_token_{token}|>", special=True, normalized=False)
            for token in range(first, last + 1)
        ]
    except (ValueError, KeyError, AttributeError, TypeError) as fault:
        where = str(path.parent / "tokenizer_config.json")
        raise EngineError("added_tokens_decoder is no table of ids to tokens", where=where) from fault
    tokenizer.add_tokens(added)
