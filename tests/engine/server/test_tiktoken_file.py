"""A tiktoken file gives the ids that joining by lowest rank gives."""

from __future__ import annotations

import base64
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.tokenizer import Tokenizer, load_tokenizer

CORPUS = (
    "the cat sat on the mat, the hat; 12345 the theatre's other CATS'll — 北京大学 and 北京 naïve\n\n  the end\n" * 4
)


def trained_ranks(pieces: int) -> dict[bytes, int]:
    """256 bytes, then the most frequent pair of the corpus joined, again and again."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    text = [bytes([byte]) for byte in CORPUS.encode()]
    while len(ranks) < pieces and len(text) > 1:
        (pair, _), *_ = Counter(pairwise(text)).most_common(1)
        joined = pair[0] + pair[1]
        ranks.setdefault(joined, len(ranks))
        shorter, place = [], 0
        while place < len(text):
            is_pair = tuple(text[place : place + 2]) == pair
            shorter.append(joined if is_pair else text[place])
            place += 2 if is_pair else 1
        text = shorter
    return ranks


RANKS = trained_ranks(420)


def write_folder(folder: Path) -> Path:
    lines = [b" ".join((base64.b64encode(piece), str(rank).encode())) for piece, rank in RANKS.items()]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    first = len(RANKS)
    added = {
        str(first): {"content": "[BOS]", "special": True},
        str(first + 2): {"content": "<|im_end|>", "special": True},
        str(first + 3): {"content": "</think>", "special": False},
    }
    config = {"eos_token": "<|im_end|>", "added_tokens_decoder": added, "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    loaded = load_tokenizer(write_folder(tmp_path_factory.mktemp("kimi")))
    assert loaded is not None
    return loaded


def joined_by_rank(word: bytes) -> list[int]:
    """Join the two neighbours whose joined bytes have the lowest rank until none are known."""
    pieces = [bytes([byte]) for byte in word]
    while True:
        known = [
            (RANKS[left + right], at) for at, (left, right) in enumerate(pairwise(pieces)) if left + right in RANKS
        ]
        if not known:
            return [RANKS[piece] for piece in pieces]
        _, at = min(known)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="theacs onm", min_size=1, max_size=12).map(lambda word: word.replace(" ", "")))
def test_a_word_is_joined_by_lowest_rank(tokenizer: Tokenizer, word: str) -> None:
    assert tokenizer.encode(word) == joined_by_rank(word.encode())


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    if not any(token in text for token in ("[BOS]", "<|im_end|>", "</think>")):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_text_is_cut_as_kimi_cuts_it(tokenizer: Tokenizer) -> None:
    cut = tokenizer.backend.pre_tokenizer.pre_tokenize_str("I'll 北京cat 12345!\n\n  the end")
    spans = [span for _, span in cut]
    text = "I'll 北京cat 12345!\n\n  the end"
    assert [text[start:stop] for start, stop in spans] == [
        "I'll", " ", "北京", "cat", " ", "123", "45", "!\n\n", " ", " the", " end"
    ]  # fmt: skip


def test_added_tokens_have_the_ids_the_config_gives_them(tokenizer: Tokenizer) -> None:
    first = len(RANKS)
    assert tokenizer.eos_ids == (first + 2,)
    assert tokenizer.encode("[BOS]the</think>") == [first, *joined_by_rank(b"the"), first + 3]
    assert tokenizer.decode([first, first + 3]) == "</think>"
    assert tokenizer.special_ids(["<|im_end|>", "</think>"]) == {first + 2: "<|im_end|>"}


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"AA== 0\nnot a line", "line 2 is no piece with its rank"), (b"AA== 0\n", "it has no piece for the byte 1")],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(EngineError) as refused:
        load_tokenizer(tmp_path)
    assert says in str(refused.value)
