"""Prompts -> questions for the target: token ids through its chat template, a temperature, a length; and talks of several turns."""

import random
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice

from engine.tokenizer import Tokenizer
from engine.training.prompts import Prompt
from engine.training.responses import Question

# Half of the answers are greedy, as a drafter is judged on; the rest roam, so that the text varies.
TEMPERATURES = (0.0, 0.0, 0.4, 0.8)


def ask(tokenizer: Tokenizer, prompts: Sequence[Prompt], *, max_tokens: int, seed: int) -> Iterator[Question]:
    """A question for each prompt, with a temperature drawn from TEMPERATURES."""
    dice = random.Random(seed)
    for prompt in prompts:
        yield Question(encode_prompt(tokenizer, prompt), prompt.kind, dice.choice(TEMPERATURES), max_tokens)


def ask_greedily(tokenizer: Tokenizer, prompts: Sequence[Prompt], *, max_tokens: int) -> list[Question]:
    """A greedy question for each prompt: how held-out text is made."""
    return [Question(encode_prompt(tokenizer, prompt), prompt.kind, 0.0, max_tokens) for prompt in prompts]


def continue_talks(
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    earlier: Sequence[Sequence[int]],
    *,
    longest_context: int,
    max_tokens: int,
    seed: int,
) -> Iterator[Question]:
    """A question for each prompt, asked late in a talk: complete turns of `earlier` (token ids, chat form) go before it.

    The context's length is drawn evenly up to `longest_context` tokens, so that the drafter meets every distance.
    """
    dice = random.Random(seed)
    for prompt in prompts:
        if prompt.plain or prompt.system is not None:
            continue
        own = encode_prompt(tokenizer, prompt)
        room = dice.randint(len(own), longest_context)
        context: list[int] = []
        for turn in dice.sample(range(len(earlier)), min(len(earlier), 40)):
            if len(context) + len(earlier[turn]) + len(own) <= room:
                context.extend(earlier[turn])
        yield Question((*context, *own), prompt.kind, dice.choice(TEMPERATURES), max_tokens)


def after_turns(question: Question, turns: Sequence[Sequence[int]], context_tokens: int) -> Question:
    """The question asked late in a talk: `context_tokens` ids of `turns`, taken round and round, go before it."""
    context = list(islice(chain.from_iterable(cycle(turns)), context_tokens)) if any(turns) else []
    return Question((*context, *question.token_ids), question.kind, question.temperature, question.max_tokens)


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, ...]:
    """Token ids of a prompt: plain text as it is; anything else through the chat template, where the model has one."""
    if prompt.plain or tokenizer.template is None:
        return tuple(tokenizer.encode(prompt.text))
    return tuple(tokenizer.encode_chat(prompt.messages()))


def random_questions(dice: random.Random, vocab_size: int, max_tokens: int, count: int) -> list[Question]:
    """Greedy questions of 4 to 24 random token ids, for a target without a tokenizer."""
    return [
        Question(tuple(dice.randrange(vocab_size) for _ in range(dice.randint(4, 24))), "ids", 0.0, max_tokens)
        for _ in range(count)
    ]
