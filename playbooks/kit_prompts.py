"""Prompts of an exact number of tokens, in six kinds of text.

The text is the project's own, put together from small banks so that no two paragraphs of a prompt are alike and a
prompt of any length can be made. Random token ids would wreck acceptance one way or the other, and so would one page
repeated (measurement 1.4).
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Callable, Iterator

from kit_engine import Engine

KINDS = ("code", "json", "math", "copy", "prose", "chat")

_NAMES = (
    "Ada", "Bram", "Clara", "Dmitri", "Esra", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kofi", "Lena", "Mateo",
    "Nadia", "Omar", "Petra", "Ravi", "Saskia", "Teo", "Yuki",
)  # fmt: skip
_PLACES = (
    "harbour", "orchard", "railway", "workshop", "library", "bakery", "valley", "observatory", "ferry", "market",
    "greenhouse", "mill", "lighthouse", "archive",
)  # fmt: skip
_THINGS = (
    "lantern", "ledger", "compass", "kettle", "ladder", "barrel", "telescope", "violin", "bicycle", "map", "clock",
    "basket", "parcel", "loom", "anvil", "kite",
)  # fmt: skip
_VERBS = (
    "carried", "repaired", "counted", "borrowed", "painted", "measured", "hid", "traded", "weighed", "polished",
    "described", "returned",
)  # fmt: skip
_MOODS = (
    "quiet", "windy", "bright", "foggy", "frosty", "humid", "golden", "restless", "cool", "silver",
)  # fmt: skip
_WORDS = (
    "offset", "window", "margin", "budget", "ratio", "latency", "weight", "depth", "index", "total", "limit", "score",
)  # fmt: skip
_OPERATIONS = (("sum", "+"), ("difference", "-"), ("product", "*"))


def paragraphs(kind: str, seed: str) -> Iterator[str]:
    """Endless distinct paragraphs of one kind; the same seed gives the same ones."""
    write = {
        "code": _code, "json": _json_text, "math": _math, "copy": _copy, "prose": _prose, "chat": _chat
    }[kind]  # fmt: skip
    number = 0
    while True:
        number += 1
        yield write(random.Random(f"{seed}/{kind}/{number}"), number)


def _prose(pick: random.Random, number: int) -> str:
    one, two = pick.sample(_NAMES, 2)
    place, other = pick.sample(_PLACES, 2)
    thing, second = pick.sample(_THINGS, 2)
    return pick.choice((
        f"On a {pick.choice(_MOODS)} morning in week {number}, {one} {pick.choice(_VERBS)} the {thing} that had lain in the {place} "
        f"since {1890 + number}. {two} had said it would never work again, but said many such things about the {other}.",
        f"The {place} stood {pick.choice(_MOODS)} and half empty. {one} {pick.choice(_VERBS)} a {thing}, wrote {number} in the margin, "
        f"and went down to the {other}, where {two} was already asking after the {second}.",
        f"Nobody in the {other} remembered who had {pick.choice(_VERBS)} the {second}. {two} blamed the {pick.choice(_MOODS)} weather; "
        f"{one}, who kept the {thing} of house {number}, only smiled and looked towards the {place}.",
    )) + "\n\n"  # fmt: skip


def _code(pick: random.Random, number: int) -> str:
    name, first, second = pick.choice(_THINGS), *pick.sample(_WORDS, 2)
    word, sign = pick.choice(_OPERATIONS)
    bound = pick.randrange(2, 90)
    return (
        f"def {name}_{word}_{number}({first}: int, {second}: int = {bound}) -> int:\n"
        f'    """Return the {word} of {first} and {second}, kept below {bound * 10}."""\n'
        f"    result = {first} {sign} {second}\n"
        f"    if result > {bound * 10}:\n"
        f'        raise ValueError(f"{name}: {{result}} is above {bound * 10}")\n'
        f"    return result\n\n\n"
    )


def _json_text(pick: random.Random, number: int) -> str:
    record = {
        "id": 4000 + number,
        "owner": pick.choice(_NAMES),
        "item": pick.choice(_THINGS),
        "place": pick.choice(_PLACES),
        "weight_kg": round(pick.uniform(0.5, 60.0), 2),
        "tags": pick.sample(_MOODS, 2),
        "checked": pick.random() < 0.5,
    }
    return json.dumps(record) + "\n"


def _math(pick: random.Random, number: int) -> str:
    name, thing = pick.choice(_NAMES), pick.choice(_THINGS)
    each, count, lost = pick.randrange(3, 40), pick.randrange(2, 30), pick.randrange(1, 6)
    return (
        f"Problem {number}. {name} buys {count} boxes with {each} {thing} parts in each and loses {lost}. How many are left?\n"
        f"Solution. {count} boxes of {each} are {count} * {each} = {count * each}. "
        f"After losing {lost}, {count * each} - {lost} = {count * each - lost}. Answer: {count * each - lost}.\n\n"
    )


def _copy(pick: random.Random, number: int) -> str:
    return f"{number:04d}: {pick.choice(_NAMES)} / {pick.choice(_THINGS)} / {pick.choice(_PLACES)} / {pick.randrange(10000, 99999)}\n"


def _chat(pick: random.Random, number: int) -> str:
    name, thing, place = pick.choice(_NAMES), pick.choice(_THINGS), pick.choice(_PLACES)
    return pick.choice((
        f"{name}: Hello again, it is about the {thing} I left at the {place} on day {number}. Is it ready?\n"
        f"Desk: Nearly. The {pick.choice(_MOODS)} weather held us up; come by after {pick.randrange(1, 12)} and bring the receipt.\n",
        f"{name}: Which {thing} would you take to the {place} if you had {number} minutes?\n"
        f"Desk: The small one. It weighs {pick.randrange(1, 9)} kilos less and nobody there asks for a deposit.\n",
    ))  # fmt: skip


_ASKS = {
    "prose": ("The following pages are from a long novel.\n\n", ""),
    "code": ("# A module of small checked functions.\n\n", ""),
    "json": ("Records of the store, one JSON object a line.\n", ""),
    "math": ("A collection of worked problems.\n\n", ""),
    "copy": ("A list, and under it the same list once more.\n", "\nThe same list once more:\n"),
    "chat": ("A transcript of the help desk.\n\n", ""),
}


class Prompts:
    """Prompts of an exact number of tokens, salted at the head so that no prefix of one is a prefix of another.

    With a tokenizer the text is cut as token ids: exact by construction. An engine whose model has none is given
    ids; `vocabulary` bounds them.
    """

    def __init__(self, engine: Engine, seed: str, salt: str, vocabulary: int = 64) -> None:
        self._engine = engine
        self._seed = seed
        self._salt = salt
        self._vocabulary = vocabulary
        self._made = 0
        self._hash = hashlib.sha256()
        self._count: Callable[[str], list[int]] | None = None
        if engine.post("/tokenize", {"prompt": "a"}, optional=True) is not None:
            self._count = lambda text: list(engine.post("/tokenize", {"prompt": text})["tokens"])

    @property
    def exact_text(self) -> bool:
        """Whether the engine counts tokens of text; if not, prompts are made of ids without meaning."""
        return self._count is not None

    @property
    def sha(self) -> str:
        """Hash of every text made so far without its salt: two runs with the same one read the same texts."""
        return self._hash.hexdigest()[:16]

    def make(self, kind: str, tokens: int) -> list[int]:
        """A prompt of exactly `tokens` ids. Each call gives another text; the same seed gives the same texts."""
        if tokens < 1:
            raise ValueError("a prompt has at least one token")
        self._made += 1
        seed = f"{self._seed}/{self._made}"
        self._hash.update(f"{seed}/{kind}/{tokens}\n".encode())
        if self._count is None:
            pick = random.Random(f"{self._salt}/{seed}")
            return [pick.randrange(1, self._vocabulary) for _ in range(tokens)]
        head, tail = _ASKS[kind]
        salted = f"[{hashlib.sha256(f'{self._salt}/{seed}'.encode()).hexdigest()[:12]}] {head}"
        body, source = "", paragraphs(kind, seed)
        while True:
            missing = max(
                tokens * 6 - len(body), 200
            )  # no common tokenizer packs more than six letters into a token here
            start = len(body)
            while len(body) - start < missing:
                body += next(source)
            ids = self._count(salted + body + tail)
            if len(ids) >= tokens:
                return _cut(ids, tokens, len(self._count(tail)) if tail else 0)


def _cut(ids: list[int], tokens: int, tail: int) -> list[int]:
    """`tokens` of `ids`: the head, and the last `tail` of them where there is room for both."""
    tail = min(tail, tokens // 2)
    return ids[: tokens - tail] + (ids[-tail:] if tail else [])
