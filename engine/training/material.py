"""What a drafter is trained and judged on: the target's own answers, made until there are enough of them."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from engine.models.decoder import Decoder
from engine.tokenizer import Tokenizer
from engine.training.corpus import Corpus, CorpusKey, CorpusWriter, read_corpus
from engine.training.prompts import draw_prompts
from engine.training.questions import ask, ask_greedily, continue_talks, random_questions
from engine.training.responses import Question, answer
from engine.training.variety import Material, draw_varied, library_functions, words_of

SHORT_SLOTS = 128  # responses running at a time; their prompts and answers are short
LONG_SLOTS = 16
LONG_SHARE = 0.08  # of the tokens wanted, answered late in a long talk
HELD_OUT_PROMPTS = 84
HELD_OUT_TOKENS = 160  # an answer's length at most
LATEST_PASSAGES, FEWEST_PASSAGES, SHORTEST_PASSAGE = 3000, 200, 200  # answers, answers, characters
FEWEST_WORDS = 1000


@dataclass(frozen=True)
class Asked:
    """A target with what it takes to ask it: `tokenizer` None means prompts of random ids, for models without words."""

    target: Decoder
    tokenizer: Tokenizer | None
    stop_ids: frozenset[int]
    key: CorpusKey
    max_tokens: int = 192
    longest_context: int = 1800


def training_corpus(asked: Asked, folder: Path, tokens: int, seed: int, on_progress: Callable[[str], None]) -> Corpus:
    """At least `tokens` response tokens in `folder`, made where they are missing; the last part late in long talks."""
    short_tokens = round(tokens * (1 - LONG_SHARE)) if asked.tokenizer else tokens
    before = read_corpus(folder, asked.key)
    # Each part starts from its own seed, so a resumed run asks new questions instead of the first ones again.
    part = seed * 1_000_003 + len(before.records)
    _produce(asked, folder, _short_questions(asked, folder, part), short_tokens, SHORT_SLOTS, part, on_progress)
    if asked.tokenizer is not None:
        corpus = read_corpus(folder, asked.key)
        talks = _late_questions(asked, asked.tokenizer, corpus, part)
        _produce(asked, folder, talks, tokens, LONG_SLOTS, part, on_progress)
    return read_corpus(folder, asked.key)


def held_out_corpus(asked: Asked, folder: Path, seed: int, on_progress: Callable[[str], None]) -> Corpus:
    """Greedy answers to prompts about subjects that are never trained on."""
    if asked.tokenizer is None:
        questions = random_questions(
            random.Random(~seed), asked.target.config.vocab_size, asked.max_tokens, HELD_OUT_PROMPTS
        )
    else:
        prompts = draw_prompts("held_out", HELD_OUT_PROMPTS, seed)
        questions = ask_greedily(asked.tokenizer, prompts, max_tokens=min(HELD_OUT_TOKENS, asked.max_tokens))
    answered = {record.token_ids[: record.prompt_tokens] for record in read_corpus(folder, asked.key).records}
    missing = (question for question in questions if question.token_ids not in answered)
    _produce(asked, folder, missing, None, SHORT_SLOTS, seed, on_progress)
    return read_corpus(folder, asked.key)


def _short_questions(asked: Asked, folder: Path, seed: int) -> Iterator[Question]:
    """Endless: first prompts from templates; once there are answers to draw on, three in four are about those."""
    tokenizer = asked.tokenizer
    if tokenizer is None:
        dice = random.Random(seed)
        while True:
            yield from random_questions(dice, asked.target.config.vocab_size, asked.max_tokens, 256)
    words = words_of(tokenizer)
    for turn in count(seed):
        passages = _passages(tokenizer, read_corpus(folder, asked.key))
        varied = len(passages) >= FEWEST_PASSAGES and len(words) >= FEWEST_WORDS
        prompts = draw_prompts("train", 140 if varied else 560, turn)
        if varied:
            prompts += draw_varied(Material(passages, words, library_functions()), 420, turn)
        random.Random(turn).shuffle(prompts)
        yield from ask(tokenizer, prompts, max_tokens=asked.max_tokens, seed=turn)


def _passages(tokenizer: Tokenizer, corpus: Corpus) -> list[str]:
    """The texts of the latest answers that are long enough to ask about."""
    texts = (tokenizer.decode(record.token_ids[record.prompt_tokens :]) for record in corpus.records[-LATEST_PASSAGES:])
    return [text for text in texts if len(text) >= SHORTEST_PASSAGE]


def _late_questions(asked: Asked, tokenizer: Tokenizer, corpus: Corpus, seed: int) -> Iterator[Question]:
    """Questions late in talks made of the chat answers in `corpus` that came to their own end."""
    between = tokenizer.encode("\n", add_special_tokens=False)
    opening = tokenizer.encode_chat([{"role": "user", "content": ""}])[:1] if tokenizer.template else []
    turns = [
        (*record.token_ids, *between)
        for record in corpus.records
        if list(record.token_ids[:1]) == opening and record.token_ids[-1] in asked.stop_ids
    ]
    yield from continue_talks(
        tokenizer,
        draw_prompts("train", 4000, seed + 1),
        turns,
        longest_context=asked.longest_context,
        max_tokens=asked.max_tokens,
        seed=seed,
    )


def _produce(
    asked: Asked,
    folder: Path,
    questions: Iterator[Question],
    tokens: int | None,
    slots: int,
    seed: int,
    on_progress: Callable[[str], None],
) -> None:
    """Answer questions into `folder` until it holds `tokens` response tokens, or all of them where `tokens` is None."""
    longest = asked.max_tokens + (asked.longest_context if slots == LONG_SLOTS else 256)
    capacity = min(longest, asked.target.config.max_position_embeddings)
    with CorpusWriter(folder, asked.key) as writer:
        if tokens is not None and writer.response_tokens >= tokens:
            return
        began, first = time.monotonic(), writer.response_tokens
        answers = answer(
            asked.target,
            questions,
            taps=asked.key.taps,
            stop_ids=asked.stop_ids,
            slots=slots,
            capacity=capacity,
            seed=seed,
        )
        for response in answers:
            writer.append(response)
            rate = (writer.response_tokens - first) / max(time.monotonic() - began, 1e-3)
            goal = f" of {tokens}" if tokens is not None else ""
            on_progress(f"answers {writer.records}  tokens {writer.response_tokens}{goal}  {rate:.0f} tokens/s")
            if tokens is not None and writer.response_tokens >= tokens:
                return
