"""The bundled model behind the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_process import Server

import engine
from engine.config import config_from_toml
from engine.fetch_model import default_model_folder
from engine.generate import generate
from engine.runtime import Sampling, Speculation, load_runtime
from engine.tokenizer import Detokenizer, Tokenizer, load_tokenizer

MODEL = default_model_folder()
pytestmark = pytest.mark.model

DRAFTER = Path(engine.__file__).parent / "drafters" / MODEL.name
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Germany?": "Berlin",
    "What is 2 + 2?": "4",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "What is the largest planet?": "Jupiter",
    "How many days are in a week?": "7",
}
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


def test_a_drafter_makes_no_right_answer_wrong_and_no_wrong_one_right(tokenizer: Tokenizer) -> None:
    tables = f'[model]\npath = "{MODEL}"\ndrafter = "{DRAFTER}"\n[context]\ncontext_length = 128\n'
    runtime = load_runtime(config_from_toml(tables))
    right: dict[str, list[str]] = {}
    for mode in ("off", "dflash", "ddtree"):
        for question, word in QUESTIONS.items():
            prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
            speculation, ends = Speculation(mode), tokenizer.eos_ids  # type: ignore[arg-type]
            answer = generate(
                runtime, prompt, Sampling(), speculation, max_tokens=16, stop_ids=ends, tokenizer=tokenizer
            )
            if word in answer.text:
                right.setdefault(mode, []).append(question)
    assert len(right["off"]) == 6, "what the model knows by itself"
    assert right["dflash"] == right["ddtree"] == right["off"]


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"enum": ["Oslo", "Rome", "New York"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def test_an_answer_under_a_schema_is_the_same_with_drafts_and_holds(start_server: Callable[..., Server]) -> None:
    server = start_server("[context]\ncontext_length = 256\n", model=MODEL, drafter=DRAFTER).until_ready()
    wanted: Any = {"model": MODEL.name, "max_tokens": 60, "temperature": 0}
    wanted["messages"] = [{"role": "user", "content": "Describe a person as a JSON object with name, age and city."}]
    wanted["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answers = [
        server.client().chat.completions.create(**wanted, extra_body={"speculation": {"mode": mode}})
        for mode in ("off", "ddtree")
    ]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1] and answers[0].choices[0].finish_reason == "stop"
    person = json.loads(texts[0] or "")
    assert list(person) == ["name", "age", "city"] and type(person["age"]) is int and len(person["name"]) > 1
    assert person["city"] in PERSON["properties"]["city"]["enum"]
    assert answers[1].speculation["steps"] < answers[0].speculation["steps"]
