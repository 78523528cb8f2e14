"""Prompts of an exact number of tokens, in six kinds of text.

The text is the project's own, put together from small banks so that no two paragraphs of a prompt are alike and a
prompt of any length can be made. Random token ids would wreck acceptance one way or the other, and so would one page
repeated (measurement 1.4).
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Iterator, Literal, Mapping

from kit_end import Stop
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


_PROSE = (
    "On a {mood} morning {one} {verb} the {thing} that had lain in the {place} since the year {year}.",
    "{two} had never trusted the {place}, not even before the {mood} winter of {year}.",
    "It took {count} people to move the {thing}, and most of them were only there to give advice.",
    "“You could sell the {thing},” {one} said, “but then who would wind the {other}?”",
    "By noon the road to the {place} was closed, and whoever wanted to reach it went on foot along the river.",
    "{one} counted {count} steps, stopped, and listened for the door of the {place}.",
    "Somebody had {verb} the {other} with great care and left no name.",
    "The letter from {two} was short: come soon, bring the {thing}, say nothing to {three}.",
    "What nobody could explain was why the {other} smelled of oranges.",
    "{three} laughed at that, though it was a {mood} sort of laugh, and went back to the {thing}.",
    "There are {count} windows in the {place}; only one of them opens.",
    "After supper {two} read aloud from a book about rivers until the {mood} light was gone.",
    "Children from the {place} came by, asked for the {other}, and ran off before anyone could answer.",
    "If {one} minded the rain, it did not show.",
    "The price had been {count} coins once; now {three} would have given it away.",
    "Everything in the {place} had a label in small green letters, except the {thing}.",
)
_CODE = (
    'def {thing}_{a}({a}: int, {b}: int = {count}) -> int:\n    """Return {a} times {b}, kept below {year}."""\n'
    "    return min({a} * {b}, {year})\n",
    "@dataclass(frozen=True)\nclass {Thing}{Place}:\n    {a}: float\n    {b}: int = {count}\n\n"
    "    def {verb}(self) -> float:\n        return self.{a} / max(self.{b}, 1)\n",
    "def {verb}_{place}(rows: list[dict[str, int]]) -> dict[str, int]:\n    found: dict[str, int] = {{}}\n"
    '    for row in rows:\n        if row["{a}"] > {count}:\n            found[row["{b}"]] = found.get(row["{b}"], 0) + 1\n'
    "    return found\n",
    'class {Place}Error(ValueError):\n    """Raised when the {thing} has no {a}."""\n',
    "def test_{thing}_keeps_its_{a}() -> None:\n    {other} = make_{thing}({a}={count})\n    assert {other}.{a} == {count}\n"
    "    assert {other}.{b} is None\n",
    "async def load_{thing}(path: Path, {a}: float = {count}.5) -> bytes:\n    async with open_file(path) as file:\n"
    "        return await asyncio.wait_for(file.read(), {a})\n",
    '{A}_{B} = {{\n    "{place}": {count},\n    "{thing}": {year},\n}}\n',
)
_CHAT = (
    "{one}: Hello, it is about the {thing} I left at the {place}. Is it ready?\n"
    "Desk: Nearly. The {mood} weather held us up; come by after {count} and bring the receipt.\n",
    "{two}: Which {other} would you take up to the {place}?\nDesk: The small one. Nobody there asks for a deposit.\n",
    "{three}: I was charged {count} twice.\nDesk: I see it. One of them goes back to you today, {three}.\n",
    "{one}: Can I bring a friend on the tour of the {place}?\nDesk: Of course, if {two} books before Friday.\n",
    "{two}: My {thing} makes a noise like a {other}.\nDesk: Is it louder in the morning, or when it is {mood} outside?\n",
    "{three}: Thank you, that was quick.\nDesk: Glad to help. The {place} closes at {count}, by the way.\n",
)
_MATH = (
    (
        "{one} buys {x} boxes with {y} {thing} parts in each. How many parts are that?",
        "{x} * {y} = {product}",
        "{product}",
    ),
    (
        "A {thing} costs {x} coins and a {other} costs {y}. What do both cost together?",
        "{x} + {y} = {total}",
        "{total}",
    ),
    ("{two} had {total} tickets for the {place} and sold {y}. How many are left?", "{total} - {y} = {x}", "{x}"),
    (
        "{product} {thing} parts are shared out among {x} people. How many does each get?",
        "{product} / {x} = {y}",
        "{y}",
    ),
    (
        "{three} walks {x} km to the {place} and back again, {y} times. How far is that?",
        "2 * {x} * {y} = {double}",
        "{double}",
    ),
)


def paragraphs(kind: str, seed: str) -> Iterator[str]:
    """Endless distinct paragraphs of one kind; the same seed gives the same ones."""
    write = {
        "code": _code, "json": _json_text, "math": _math, "copy": _copy, "prose": _prose, "chat": _chat
    }[kind]  # fmt: skip
    number = 0
    while True:
        number += 1
        yield write(random.Random(f"{seed}/{kind}/{number}"), number)


def _words(pick: random.Random) -> dict[str, object]:
    """Everything that a pattern may ask for."""
    one, two, three = pick.sample(_NAMES, 3)
    thing, other = pick.sample(_THINGS, 2)
    a, b = pick.sample(_WORDS, 2)
    x, y = pick.randrange(3, 60), pick.randrange(3, 60)
    return {
        "one": one, "two": two, "three": three, "thing": thing, "other": other, "Thing": thing.title(),
        "place": (place := pick.choice(_PLACES)), "Place": place.title(), "verb": pick.choice(_VERBS), "mood": pick.choice(_MOODS),
        "a": a, "b": b, "A": a.upper(), "B": b.upper(), "count": pick.randrange(3, 90), "year": pick.randrange(1850, 2020),
        "x": x, "y": y, "product": x * y, "total": x + y, "double": 2 * x * y,
    }  # fmt: skip


def _prose(pick: random.Random, number: int) -> str:
    sentences = pick.sample(_PROSE, pick.randrange(2, 5))
    words = _words(pick)
    return " ".join(sentence.format_map(words) for sentence in sentences) + "\n\n"


def _code(pick: random.Random, number: int) -> str:
    return pick.choice(_CODE).format_map(_words(pick)) + "\n\n"


def _chat(pick: random.Random, number: int) -> str:
    return pick.choice(_CHAT).format_map(_words(pick))


def _math(pick: random.Random, number: int) -> str:
    words = _words(pick)
    question, work, answer = (part.format_map(words) for part in pick.choice(_MATH))
    return f"Problem {number}. {question}\nSolution. {work}. The answer is {answer}.\n\n"


def _json_text(pick: random.Random, number: int) -> str:
    words = _words(pick)
    record = {
        "id": 4000 + number,
        "owner": words["one"],
        "item": words["thing"],
        "place": words["place"],
        "weight_kg": round(pick.uniform(0.5, 60.0), 2),
        "tags": pick.sample(_MOODS, 2),
        "checked": pick.random() < 0.5,
    }
    return json.dumps(record) + "\n"


def _copy(pick: random.Random, number: int) -> str:
    words = _words(pick)
    return f"{number:04d}: {words['one']} / {words['thing']} / {words['place']} / {pick.randrange(10000, 99999)}\n"


_HEADS = {
    "prose": "Pages of a long novel.\n\n",
    "code": "A module of small checked functions.\n\n",
    "json": "Records of the store, one JSON object a line.\n",
    "math": "A collection of worked problems.\n\n",
    "copy": "A list of entries.\n",
    "chat": "A transcript of the help desk.\n\n",
}
_ASKS = {  # what a model with a chat template is asked to do, after the pages it was given to read
    "prose": "Write a long story of your own about {one} and the {thing} in the {place}.",
    "code": "Write a Python module with several functions about a {thing}.",
    "json": "Write twenty more records of things kept in the {place}, as JSON, one a line.",
    "math": "{two} had {total} tickets for the {place} and sold {y}. How many are left? Explain each step.",
    "copy": "Repeat the list word for word.",
    "chat": "Which {thing} should I take to the {place}, and why? Answer at length.",
}
_GOES_ON = {"copy": "\nThe same list once more:\n"}  # without a template a model goes on from where the text stops
_SAMPLE_LETTERS = 4000
_MESSAGE_LETTERS = 4  # a token, about
_LETTERS_A_TOKEN = 6  # no common tokenizer packs more than this into a token of such text


class Prompts:
    """Prompts of an exact number of tokens, salted at the head so that no prefix of one is a prefix of another.

    The engine's tokenizer cuts the text as token ids: exact by construction. A model with a chat template is asked
    through it, since instruction models loop when they are made to go on from bare text; a model without a tokenizer
    is given ids, bounded by `vocabulary`.
    """

    def __init__(self, engine: Engine, seed: str, salt: str, vocabulary: int = 64) -> None:
        self._engine = engine
        self._seed = seed
        self.salt = salt
        self._vocabulary = vocabulary
        self._made = 0
        self._hash = hashlib.sha256()
        self.method: Literal["chat", "text", "ids", "letters"] = "ids"
        if self._ids({"messages": [{"role": "user", "content": "a"}]}) is not None:
            self.method = "chat"
        elif self._ids({"prompt": "a"}) is not None:
            self.method = "text"
        elif engine.kind != "bundled":
            self.method = "letters"  # it counts no tokens for us: lengths are as near as its own usage lets them be
        self._letters_a_token: float | None = None

    @property
    def sha(self) -> str:
        """Hash of every text made so far without its salt: two runs with the same one read the same texts."""
        return self._hash.hexdigest()[:16]

    def make(self, kind: str, tokens: int) -> list[int] | str:
        """A prompt of exactly `tokens` ids. Each call gives another text; the same seed gives the same texts."""
        if tokens < 1:
            raise ValueError("a prompt has at least one token")
        self._made += 1
        seed = f"{self._seed}/{self._made}"
        self._hash.update(f"{self.method}/{seed}/{kind}/{tokens}\n".encode())
        return self._written(kind, tokens, seed, hashlib.sha256(f"{self.salt}/{seed}".encode()).hexdigest()[:12])

    def message(self, kind: str, tokens: int) -> str:
        """A user's message of about `tokens` tokens, for the chat endpoint; its text is another with every call."""
        self._made += 1
        seed = f"{self._seed}/{self._made}"
        self._hash.update(f"message/{seed}/{kind}/{tokens}\n".encode())
        salt = hashlib.sha256(f"{self.salt}/{seed}".encode()).hexdigest()[:12]
        head, end = f"[{salt}] {_HEADS[kind]}", _ASKS[kind].format_map(_words(random.Random(seed)))
        letters = max(tokens * _MESSAGE_LETTERS - len(head) - len(end), 0)
        return head + _grown("", letters, paragraphs(kind, seed))[:letters] + "\n" + end

    def fixed(self, kind: str, tokens: int, number: int) -> list[int] | str:
        """The same prompt in every run, whatever its seed and salt: for what an engine must answer alike each time."""
        return self._written(kind, tokens, f"fixed/{number}", f"{number:012d}")

    def _written(self, kind: str, tokens: int, seed: str, salt: str) -> list[int] | str:
        if self.method == "ids":
            pick = random.Random(salt)
            return [pick.randrange(1, self._vocabulary) for _ in range(tokens)]
        head, end = f"[{salt}] {_HEADS[kind]}", _GOES_ON.get(kind, "")
        if self.method == "chat":
            end = "\n" + _ASKS[kind].format_map(_words(random.Random(seed)))
        source = paragraphs(kind, seed)
        body = ""
        if self.method == "letters":
            letters = max(int(tokens * self._letters(kind)) - len(head) - len(end), 0)
            return head + _grown(body, letters, source)[:letters] + end
        while True:
            ids = self._tokenize(head + body + end)
            if len(ids) >= tokens:
                return _cut(ids, tokens, len(self._tokenize(end)) if end else 0)
            body = _grown(body, (tokens - len(ids)) * _LETTERS_A_TOKEN, source)

    def _letters(self, kind: str) -> float:
        """Letters a token of such text, from one request's own usage."""
        if self._letters_a_token is None:
            sample = _grown("", _SAMPLE_LETTERS, paragraphs(kind, "letters"))
            counted = self._engine.complete(sample, 1).prompt_tokens
            if not counted:
                raise Stop("missing", "the engine neither counts tokens nor tells a prompt's", "capability_missing")
            self._letters_a_token = len(sample) / counted
        return self._letters_a_token

    def _tokenize(self, text: str) -> list[int]:
        body: dict[str, object] = {"prompt": text}
        if self.method == "chat":
            body = {"messages": [{"role": "user", "content": text}]}
        ids = self._ids(body)
        if ids is None:
            raise Stop("engine", "the engine stopped to count tokens", "engine_http")
        return ids

    def _ids(self, body: Mapping[str, object]) -> list[int] | None:
        named = {"model": self._engine.model} if self._engine.model else {}
        answer = self._engine.post("/tokenize", {**body, **named}, optional=True)
        return None if answer is None else list(answer["tokens"])


def _grown(body: str, letters: int, source: Iterator[str]) -> str:
    wanted = len(body) + letters
    while len(body) < wanted:
        body += next(source)
    return body


def _cut(ids: list[int], tokens: int, tail: int) -> list[int]:
    """`tokens` of `ids`: the head, and the last `tail` of them as far as that leaves half of the room to the head."""
    tail = min(tail, tokens // 2)
    return ids[: tokens - tail] + (ids[-tail:] if tail else [])
