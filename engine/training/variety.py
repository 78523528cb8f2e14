"""Prompts on material that never runs out: the target's own earlier answers, the words of its tokenizer, the functions of Python's library.

Templates over a list of subjects come to an end after some thousand answers, and a drafter trained on those knows them by heart. Here
the subject of a prompt is a passage or a pair of words that no other prompt has.
"""

import ast
import random
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.tokenizer import Tokenizer
from engine.training import subjects
from engine.training.prompts import KINDS, Prompt

SHORTEST_FUNCTION, LONGEST_FUNCTION = 4, 30  # lines


@dataclass(frozen=True)
class Material:
    """What prompts are made of: whole `passages` of prose or code from earlier answers, single `words`, and `functions` in Python."""

    passages: Sequence[str]
    words: Sequence[str]
    functions: Sequence[str]


def words_of(tokenizer: Tokenizer) -> list[str]:
    """The lower-case words that are one token after a space, sorted; the held-out subjects' own left out."""
    held_out = {
        word for line in (*subjects.HELD_OUT_TOPICS, *subjects.HELD_OUT_THINGS) for word in line.lower().split()
    }
    texts = (tokenizer.token_bytes(token) for token in range(tokenizer.backend.get_vocab_size()))
    found = {text[1:].decode("ascii") for text in texts if text[:1] == b" " and text[1:].isalpha() and text.isascii()}
    return sorted(word for word in found if word.islower() and len(word) > 4 and word not in held_out)


@cache
def library_functions() -> tuple[str, ...]:
    """The source of the functions in Python's own library, of a readable length, in the order of the files' names."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and SHORTEST_FUNCTION <= _lines(node) <= LONGEST_FUNCTION:
                found.append(ast.get_source_segment(text, node) or "")
    return tuple(filter(None, found))


def _lines(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def draw_varied(material: Material, count: int, seed: int) -> list[Prompt]:
    """`count` prompts, the kinds in turn; the same arguments give the same list."""
    dice = random.Random(f"varied:{seed}")
    kinds = [KINDS[turn % len(KINDS)] for turn in range(count)]
    drawn = [_MAKERS[kind](dice, material) for kind in kinds]
    return [Prompt(kind, text) if isinstance(text, str) else text for kind, text in zip(kinds, drawn, strict=True)]


def _excerpt(dice: random.Random, of: Material, longest: int) -> str:
    """Whole sentences or lines from anywhere in a passage, `longest` characters at most."""
    passage = dice.choice(of.passages)
    begin = dice.randrange(max(1, len(passage) - longest // 2))
    if begin:
        begin = max(
            passage.rfind(mark, 0, begin) + len(mark) if mark in passage[:begin] else 0 for mark in (". ", "\n")
        )
    part = passage[begin : begin + longest].strip()
    end = max(part.rfind(mark) for mark in (".", "\n", "!", "?"))
    return part[: end + 1].strip() if end > 40 else part


def _words(dice: random.Random, of: Material) -> str:
    """A subject of one to three words, or one from the list."""
    chance = dice.random()
    if chance < 0.3:
        return dice.choice(subjects.TOPICS)
    if chance < 0.55:
        return dice.choice(of.words)
    if chance < 0.85:
        return " and ".join(dice.sample(of.words, 2))
    return f"{dice.choice(of.words)} in {dice.choice(subjects.TOPICS)}"


def _code(dice: random.Random, of: Material) -> str | Prompt:
    chance = dice.random()
    if chance < 0.35:
        function = dice.choice(of.functions)
        cut = function[: max(40, int(len(function) * dice.uniform(0.2, 0.7)))]
        return dice.choice(
            (
                Prompt("code", cut, plain=True),
                f"Complete this Python function:\n\n```python\n{cut}\n```",
                f"Explain what this code does:\n\n```python\n{function}\n```",
                f"Add comments to this code:\n\n```python\n{function}\n```",
                f"Rewrite this function with clearer names:\n\n```python\n{function}\n```",
                f"Write a test for this function:\n\n```python\n{function}\n```",
                f"Is there a bug in this function? Show a corrected version.\n\n```python\n{function}\n```",
            )
        )
    language = dice.choice(("Python", "Python", "Python", "JavaScript", "Java", "C", "Go", "Rust", "C++", "TypeScript"))
    action = dice.choice(
        (
            "returns",
            "prints",
            "counts",
            "filters",
            "sorts",
            "sums",
            "removes",
            "looks up",
            "validates",
            "parses",
            "merges",
            "stores",
        )
    )
    shape = dice.choice(
        (
            "a list",
            "a dictionary",
            "a file",
            "a string",
            "a matrix",
            "a set",
            "a queue",
            "a tree",
            "a table",
            "two lists",
            "a nested list",
        )
    )
    condition = dice.choice(
        (
            "that are larger than a limit", "that start with a given letter", "in reverse order", "without duplicates", "that are odd",
            "grouped by length", "by name", "whose value is empty", "between two dates", "together with their index", "one per line",
        )
    )  # fmt: skip
    noun = f"{dice.choice(of.words)} entries" if dice.random() < 0.6 else "numbers"
    task = f"{action} the {noun} of {shape} {condition}"
    return dice.choice(
        (
            f"Write a {language} function that {task}.",
            f"Write a {language} function that {dice.choice(subjects.CODE_TASKS)}, and another one that {task}.",
            f"Write a {language} program that {task}, with comments.",
            f"How do I write {language} code that {task}?",
            f"Write a {language} class for a {dice.choice(of.words)} with a method that {task}.",
            f"Write a {language} class named {dice.choice(of.words).title()} with attributes and a constructor.",
            Prompt("code", f"# {language}: a function that {task}\n", plain=True),
        )
    )


def _json(dice: random.Random, of: Material) -> str:
    thing = dice.choice(of.words) if dice.random() < 0.6 else dice.choice(subjects.THINGS)
    own = (
        "id",
        "name",
        "title",
        "price",
        "year",
        "date",
        "city",
        "tags",
        "rating",
        "status",
        "owner",
        "description",
        "email",
        "count",
    )
    fields = [dice.choice(of.words) if dice.random() < 0.3 else field for field in dice.sample(own, dice.randint(2, 6))]
    return dice.choice(
        (
            f"Give a JSON object that describes a {thing} with the fields {', '.join(fields)}.",
            f"Write a JSON array of {dice.randint(2, 6)} objects for {thing} records with {', '.join(fields)}.",
            f"Create sample JSON data about {_words(dice, of)} with the keys {', '.join(fields)}. Answer with JSON only.",
            f"Extract the facts of this text as JSON:\n\n{_excerpt(dice, of, 400)}",
            f"Write a JSON configuration file for a {thing} service with nested settings.",
            f"Make a Markdown table about {_words(dice, of)} with the columns {', '.join(fields)}.",
            f"Write a YAML file that describes a {thing} with {', '.join(fields)}.",
            f"Write a JSON schema for a {thing} with {', '.join(fields)}.",
            f"Convert this line to a JSON object: {'; '.join(f'{field}={dice.choice(of.words)}' for field in fields)}",
        )
    )


def _copy(dice: random.Random, of: Material) -> str:
    text = dice.choice(of.functions) if dice.random() < 0.25 else _excerpt(dice, of, 500)
    return dice.choice(
        (
            f"Repeat the following text exactly:\n\n{text}",
            f"Copy this text word for word:\n\n{text}",
            f"Correct any mistakes in this text and write it again:\n\n{text}",
            f"Write this again, with the word '{dice.choice(of.words)}' added at the end:\n\n{text}",
            f"Rewrite this text and change as little as possible:\n\n{text}",
            f"Quote the text below, then add one sentence of your own.\n\n{text}",
        )
    )


def _arithmetic(dice: random.Random, of: Material) -> str:
    a, b, c, d = dice.randint(2, 400), dice.randint(2, 60), dice.randint(2, 15), dice.randint(2, 9)
    name, goods = (
        dice.choice(subjects.NAMES),
        f"{dice.choice(of.words)} cards" if dice.random() < 0.5 else dice.choice(subjects.GOODS),
    )
    return dice.choice(
        (
            f"Calculate {a} * {b} - {c} step by step.",
            f"What is {d * 10} percent of {a * 5}? Show the calculation.",
            f"Find the average of {a}, {b}, {c * 7} and {d}.",
            f"{name} sells {b} {goods} at {d} dollars each and buys {c} more for {a} dollars. How much money is left?",
            f"A shop has {a * c} {goods} in {c} boxes. Every day {b} are sold. How long do they last? Explain.",
            f"Solve the equation {d}x - {b} = {a}. Show each step.",
            f"Which is larger, {c}/{b} or {d}/{c + 1}? Explain.",
            f"Write down the first {c} terms of the sequence that starts with {a} and grows by {d}.",
            f"Convert {a} minutes into hours and minutes, step by step.",
            f"{name} drives {a} km in {d} hours. What is the speed, and how far is it in {c} hours?",
            f"A tank holds {a * d} litres and loses {d} litres an hour. How much is left after {b} hours?",
            f"Simplify the fraction {b * d}/{c * d}.",
            f"List the factors of {a} and say whether it is prime.",
            f"The sides of a triangle are {b}, {b + d} and {b + c}. What is its perimeter?",
        )
    )


def _prose(dice: random.Random, of: Material) -> str | Prompt:
    topic = _words(dice, of)
    return dice.choice(
        (
            Prompt("prose", _excerpt(dice, of, dice.randint(60, 500)), plain=True),
            f"Continue this text:\n\n{_excerpt(dice, of, 300)}",
            f"Rewrite this passage in simple words:\n\n{_excerpt(dice, of, 400)}",
            f"Summarise this text in two sentences:\n\n{_excerpt(dice, of, 500)}",
            f"Write a short story about {topic}.",
            f"Write two paragraphs about {topic}.",
            f"Write a poem about {topic}.",
            f"Write a letter about {topic}.",
            f"Describe {topic} to somebody who has never heard of it.",
            f"Write an article with the title '{topic.title()}'.",
            f"Write a scene in which two friends argue about {topic}.",
        )
    )


def _chat(dice: random.Random, of: Material) -> str:
    topic = _words(dice, of)
    return dice.choice(
        (
            f"What do you know about {topic}?",
            f"Why does {topic} matter?",
            f"What does the word '{dice.choice(of.words)}' mean?",
            f"How is {topic} used in everyday life?",
            f"Can you help me with {topic}? I do not know where to begin.",
            f"What do you think of this? {_excerpt(dice, of, 200)}",
            f'Somebody told me: "{_excerpt(dice, of, 150)}" Is that true?',
            f"Explain in more detail: {_excerpt(dice, of, 200)}",
            f"What are the most common questions about {topic}?",
            f"Use the words {', '.join(dice.sample(of.words, 3))} in one sentence each.",
        )
    )


def _lists(dice: random.Random, of: Material) -> str:
    topic, count = _words(dice, of), dice.randint(3, 12)
    return dice.choice(
        (
            f"List {count} facts about {topic}.",
            f"Give me {count} ideas for {topic}.",
            f"List the key points of this text:\n\n{_excerpt(dice, of, 500)}",
            f"Write {count} questions about this text:\n\n{_excerpt(dice, of, 400)}",
            f"Write a step by step guide: {topic}.",
            f"What are the steps to learn {topic}? Number them.",
            f"Name {count} words that go with '{dice.choice(of.words)}' and explain each.",
            f"Make a checklist for {topic}.",
            f"Write an outline of a report on {topic}.",
        )
    )


_MAKERS: Mapping[str, Callable[[random.Random, Material], str | Prompt]] = {
    "code": _code,
    "json": _json,
    "copy": _copy,
    "arithmetic": _arithmetic,
    "prose": _prose,
    "chat": _chat,
    "lists": _lists,
}
