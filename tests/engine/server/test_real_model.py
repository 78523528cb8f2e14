"""The bundled model behind the server, where its folder is in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_process import Server

from engine.fetch_model import default_model_folder
from engine.tokenizer import Detokenizer, Tokenizer, load_tokenizer

MODEL = default_model_folder()
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        not (MODEL / "config.json").exists(),
        reason="the bundled model is not in the cache: python -m engine fetch-model",
    ),
]

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = [
    "Paris is the capital.",
    "naïve café – 100 %",
    "雨の中、傘をさす",
    "👩‍🔬 and 🏳️‍🌈 twice: 👩‍🔬",
    "  two  blanks\n\n\ttab",
    "x = {'a': [1, 2]}",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    loaded = load_tokenizer(MODEL)
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_out_whole_character_by_character(tokenizer: Tokenizer, text: str) -> None:
    stream = Detokenizer(tokenizer)
    parts = [stream.push(token_id) for token_id in tokenizer.encode(text)]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


def test_ids_and_chat_prompts_equal_those_of_transformers(tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(MODEL)
    assert [tokenizer.encode(text) for text in TEXTS] == [reference(text)["input_ids"] for text in TEXTS]
    conversation = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    for messages in (MESSAGES, conversation):
        rendered = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert tokenizer.encode_chat(messages) == reference(rendered, add_special_tokens=False)["input_ids"]


def test_it_answers_a_question_and_stops_by_itself(start_server: Callable[..., Server]) -> None:
    server = start_server("[context]\ncontext_length = 256\n", model=MODEL, drafter=None).until_ready()
    client = server.client()
    wanted: Any = {"model": MODEL.name, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    answer = client.chat.completions.create(**wanted)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    chunks = list(client.chat.completions.create(**wanted, stop=["is Paris"], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France "
