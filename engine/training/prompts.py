"""Prompts of seven kinds for a drafter's training and for judging it, made from templates and subjects by a seeded draw."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from engine.training import subjects

Split = Literal["train", "held_out"]
KINDS = ("code", "json", "copy", "arithmetic", "prose", "chat", "lists")

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer briefly and to the point.",
    "You are a patient teacher who explains things step by step.",
    "You are an expert programmer.",
    "You are a friendly writer with a warm style.",
    "Answer in plain English and give an example.",
)


@dataclass(frozen=True)
class Prompt:
    """One request. `system` None leaves the chat template's own; `plain` is text to be continued, with no template at all."""

    kind: str
    text: str
    system: str | None = None
    plain: bool = False

    def messages(self) -> list[dict[str, str]]:
        """The conversation in OpenAI's form."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, {"role": "user", "content": self.text}]


@dataclass(frozen=True)
class _Subjects:
    topics: tuple[str, ...]
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    things: tuple[str, ...]
    names: tuple[str, ...]
    goods: tuple[str, ...]


_SUBJECTS: Mapping[Split, _Subjects] = {
    "train": _Subjects(
        subjects.TOPICS,
        subjects.CODE_TASKS,
        subjects.CODE_CLASSES,
        subjects.THINGS,
        subjects.NAMES,
        subjects.GOODS,
    ),
    "held_out": _Subjects(
        subjects.HELD_OUT_TOPICS,
        subjects.HELD_OUT_CODE_TASKS,
        subjects.HELD_OUT_CODE_CLASSES,
        subjects.HELD_OUT_THINGS,
        subjects.HELD_OUT_NAMES,
        subjects.HELD_OUT_GOODS,
    ),
}


def draw_prompts(split: Split, count: int, seed: int) -> list[Prompt]:
    """`count` different prompts, the kinds in turn; the same arguments give the same list.

    Training prompts vary in form (own system prompts, plain text to continue); held-out ones all use the template as it is.
    """
    dice = random.Random(f"{split}:{seed}")
    drawn: dict[str, Prompt] = {}
    attempts = 0
    while len(drawn) < count:
        kind = KINDS[len(drawn) % len(KINDS)]
        text = _MAKERS[kind](dice, _SUBJECTS[split])
        attempts += 1
        if text not in drawn:
            drawn[text] = _dress(dice, kind, text) if split == "train" else Prompt(kind, text)
        elif attempts > 50 * count:
            raise ValueError(f"the templates give fewer than {count} different {split} prompts")
    return list(drawn.values())


def _dress(dice: random.Random, kind: str, text: str) -> Prompt:
    chance = dice.random()
    if chance < 0.08:
        return Prompt(kind, text, system=dice.choice(SYSTEM_PROMPTS))
    if chance < 0.16 and kind not in ("copy", "json"):
        return Prompt(kind, f"{text}\n\n", plain=True)
    return Prompt(kind, text)


def _code(dice: random.Random, of: _Subjects) -> str:
    task, thing = dice.choice(of.tasks), dice.choice(of.classes)
    language = dice.choice(("Python", "Python", "Python", "JavaScript", "Java", "C", "Go", "Rust", "C++"))
    return dice.choice(
        (
            f"Write a {language} function that {task}.",
            f"Write a {language} function that {task}, with a short example of its use.",
            f"Show me {language} code for a function that {task}. Add comments.",
            f"I need a {language} program that {task}. Explain how it works.",
            f"Write a {language} class for a {thing}.",
            f"Implement a {thing} in {language} with three methods.",
            f"Write unit tests for a {language} function that {task}.",
            f"Write an SQL query on a table of {dice.choice(of.things)}s: {_sql_wish(dice)}.",
            f"Write a simple HTML page about {dice.choice(of.topics)}.",
            f"Write a bash script that {task}.",
        )
    )


def _sql_wish(dice: random.Random) -> str:
    return dice.choice(
        (
            "count the rows for each category",
            "show the ten newest entries",
            "find entries with no owner",
            "compute the average price per year",
            "list names that occur more than once",
            "update the status of all old entries",
        )
    )


def _json(dice: random.Random, of: _Subjects) -> str:
    thing, count = dice.choice(of.things), dice.randint(2, 6)
    fields = dice.sample(
        (
            "id",
            "name",
            "price",
            "year",
            "colour",
            "city",
            "tags",
            "rating",
            "weight",
            "status",
            "owner",
            "description",
            "email",
            "size",
        ),
        dice.randint(3, 6),
    )
    return dice.choice(
        (
            f"Give a JSON object that describes a {thing} with the fields {', '.join(fields)}.",
            f"Write a JSON array of {count} {thing}s, each with {' and '.join(fields[:3])}.",
            f"Create sample JSON data for {count} {thing}s with the keys {', '.join(fields)}. Answer with JSON only.",
            f"Turn this into JSON: {dice.choice(of.names)} owns {count} {thing}s in {dice.choice(('Paris', 'Oslo', 'Lima', 'Cairo'))}.",
            f"Show an example of a YAML configuration for a {thing} with {', '.join(fields[:4])}.",
            f"Write a JSON schema for a {thing} with {', '.join(fields[:4])}.",
            f"Make a Markdown table of {count} {thing}s with the columns {', '.join(fields[:4])}.",
        )
    )


def _copy(dice: random.Random, of: _Subjects) -> str:
    passage = " ".join(_sentence(dice, of) for _ in range(dice.randint(2, 6)))
    return dice.choice(
        (
            f"Repeat the following text exactly:\n\n{passage}",
            f"Copy this text word for word:\n\n{passage}",
            f"Rewrite this text in capital letters:\n\n{passage}",
            f"Correct any mistakes in this text and write it again:\n\n{passage}",
            f"Rewrite the text, replacing every name by 'the visitor':\n\n{passage}",
            f"Write each sentence of this text on a line of its own:\n\n{passage}",
            f"Quote this passage, then say in one sentence what it is about:\n\n{passage}",
        )
    )


def _sentence(dice: random.Random, of: _Subjects) -> str:
    name, other = dice.sample(of.names, 2)
    topic, thing, goods = dice.choice(of.topics), dice.choice(of.things), dice.choice(of.goods)
    day = dice.choice(("Monday", "Tuesday", "Friday", "Sunday"))
    number = dice.randint(2, 90)
    return dice.choice(
        (
            f"{name} told {other} a long story about {topic}.",
            f"On {day} there were {number} {goods} on the table, and nobody knew why.",
            f"The new {thing} cost {number} euros, but {name} did not mind.",
            f"Most people who study {topic} begin with a small {thing}.",
            f"{other} counted {number} {goods} and wrote the number down.",
            f"In the evening {name} read a book about {topic} by the window.",
            f"The {thing} arrived on {day}, {number} minutes late.",
            f"Nothing is as quiet as {topic} in the early morning.",
        )
    )


def _arithmetic(dice: random.Random, of: _Subjects) -> str:
    name, other = dice.sample(of.names, 2)
    goods, thing = dice.choice(of.goods), dice.choice(of.things)
    a, b, c = dice.randint(3, 60), dice.randint(2, 20), dice.randint(2, 12)
    return dice.choice(
        (
            f"{name} has {a + b} {goods} and gives {b} to {other}. How many are left?",
            f"{name} buys {c} boxes with {a} {goods} each. How many {goods} is that? Explain step by step.",
            f"A {thing} costs {a * 10} dollars and is reduced by {b} percent. What is the new price?",
            f"Calculate {a} + {b} * {c} step by step.",
            f"What is {a * b} divided by {b}? Show your work.",
            f"{name} walks {b} km an hour for {c} hours, then rests, then walks {a % 7 + 1} km more. How far is that in all?",
            f"If {c} {goods} cost {a} dollars, how much do {c * b} {goods} cost?",
            f"{name} is {a} years old and {other} is {b} years older. How old will they be in {c} years?",
            f"Solve for x: {c}x + {b} = {a + b}. Show each step.",
            f"Write the first {c + 3} multiples of {b}.",
            f"{name}, {other} and a friend share {a * 3} {goods} equally. How many does each get? Explain why.",
            f"A rectangle is {a} cm long and {b} cm wide. Compute its area and its perimeter.",
        )
    )


def _prose(dice: random.Random, of: _Subjects) -> str:
    topic, name, thing = dice.choice(of.topics), dice.choice(of.names), dice.choice(of.things)
    return dice.choice(
        (
            f"Write a short paragraph about {topic}.",
            f"Write a short story about {name}, who knows everything about {topic}.",
            f"Write a letter from {name} to a friend about {topic}.",
            f"Describe a quiet morning with a {thing} in a few sentences.",
            f"Write a poem about {topic}.",
            f"Write the opening of a novel in which a {thing} changes a life.",
            f"Summarise what a beginner should know about {topic}.",
            f"Write a short essay: why {topic} matter to people.",
            f"Write a product description for a {thing}.",
            f"Write a news report about {topic}.",
            f"Write a dialogue between {name} and a stranger about {topic}.",
            f"Write an e-mail in which {name} complains about a {thing}.",
        )
    )


def _chat(dice: random.Random, of: _Subjects) -> str:
    topic, other, name = dice.choice(of.topics), dice.choice(of.topics), dice.choice(of.names)
    return dice.choice(
        (
            f"What is the most interesting thing about {topic}?",
            f"Can you explain {topic} to a child?",
            f"How do I get started with {topic}?",
            f"Why do people care about {topic}?",
            f"What is the difference between {topic} and {other}?",
            f"My friend {name} loves {topic}. What could I give as a present?",
            f"Tell me something about the history of {topic}.",
            f"I am bored. Tell me about {topic}.",
            f"Is it hard to learn about {topic}? Where would you begin?",
            f"What are common mistakes people make with {topic}?",
            f"Hello! Do you know anything about {topic}?",
            f"What would you ask an expert on {topic}?",
        )
    )


def _lists(dice: random.Random, of: _Subjects) -> str:
    topic, thing, count = dice.choice(of.topics), dice.choice(of.things), dice.randint(4, 10)
    return dice.choice(
        (
            f"List {count} facts about {topic}.",
            f"Give me {count} tips on {topic}.",
            f"Name {count} things to check before buying a {thing}.",
            f"Write a step by step guide to {topic}.",
            f"Make a bullet list of the advantages and disadvantages of {topic}.",
            f"Suggest {count} titles for a book about {topic}.",
            f"List {count} questions for a quiz on {topic}.",
            f"Make a packing list for a trip about {topic}.",
            f"Write a table of contents for a course on {topic}.",
            f"Give {count} reasons to study {topic}, each with one sentence of explanation.",
        )
    )


_MAKERS: Mapping[str, Callable[[random.Random, _Subjects], str]] = {
    "code": _code,
    "json": _json,
    "copy": _copy,
    "arithmetic": _arithmetic,
    "prose": _prose,
    "chat": _chat,
    "lists": _lists,
}
