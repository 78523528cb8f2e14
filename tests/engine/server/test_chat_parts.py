"""Reasoning, tool calls and log-probabilities over real HTTP, with the `openai` client.

The words of this model's vocabulary are chosen so that what its weights say of one prompt reads as an answer that thinks and
then calls a tool.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from engine_process import Server
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoModelForCausalLM

DATA = Path(__file__).parents[2] / "data" / "tiny-ddtree"
CASE = json.loads((DATA / "expected.json").read_text())["cases"][5]
SCRIPT = [
    "<think>",
    "Hm.",
    "</think>",
    '<tool_call>{"name": "look", "arguments": ',
    '{"x": 1}}',
    "</tool_call>",
    "<end>",
]
SPECIAL = {"</think>", "<end>"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
ASK: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "go"}], "temperature": 0.0}


@pytest.fixture(scope="module")
def client(start_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> openai.OpenAI:
    folder = tmp_path_factory.mktemp("models") / "scripted"
    shutil.copytree(DATA / "target", folder)
    said = dict(zip(CASE["autoregressive"][: len(SCRIPT)], SCRIPT, strict=True))
    words = [said.get(token, f"[{token}]") for token in range(64)]
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="[0]"))
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=word in SPECIAL) for word in words])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    prompt = "".join(words[token] for token in CASE["prompt"])
    settings = {"eos_token": "<end>", "chat_template": "{{ '" + prompt + "' }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tables = 'reasoning_parser = "qwen3"\ntool_parser = "hermes"\n[context]\ncontext_length = 128\n'
    return start_server(tables, model=folder).until_ready().client()


def test_a_chat_with_reasoning_and_a_tool_call_comes_in_parts(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, tools=TOOLS, max_tokens=40)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.reasoning_content) == (None, "Hm.")  # type: ignore[attr-defined]
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "look", '{"x": 1}')
    assert call.id.endswith("_0")
    assert answer.usage is not None and answer.usage.completion_tokens == len(SCRIPT)


@pytest.mark.parametrize("mode", ["off", "dflash", "ddtree"])
def test_the_stream_of_it_gives_the_same_message(client: openai.OpenAI, mode: str) -> None:
    chunks = list(
        client.chat.completions.create(
            **ASK, tools=TOOLS, max_tokens=40, stream=True, extra_body={"speculation": {"mode": mode}}
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Hm."
    assert "".join(delta.content or "" for delta in deltas) == ""
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function.name] == ["look"]
    assert "".join(call.function.arguments or "" for call in calls) == '{"x": 1}'
    assert {call.index for call in calls} == {0} and calls[0].id and not any(call.id for call in calls[1:])
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"


def test_without_tools_the_markers_of_calls_are_text(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ASK, max_tokens=40).choices
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    assert choice.message.content == "".join(SCRIPT[3:6])
    none = client.chat.completions.create(**ASK, max_tokens=40, tools=TOOLS, tool_choice="none")
    assert none.choices[0].message == choice.message


def test_an_answer_cut_in_the_middle_of_a_call_keeps_what_there_is(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ASK, tools=TOOLS, max_tokens=5).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"x": 1}'


def test_a_conversation_may_hold_calls_and_their_results(client: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    answer = client.chat.completions.create(**{**ASK, "messages": messages}, max_tokens=2)
    assert answer.choices[0].message.role == "assistant"


def expected_logprobs(tokens: int) -> torch.Tensor:
    """The model's own log-probabilities of its first greedy tokens' places, from `transformers`."""
    reference = AutoModelForCausalLM.from_pretrained(DATA / "target", dtype=torch.float32).eval()
    text = CASE["prompt"] + CASE["autoregressive"][: tokens - 1]
    with torch.inference_mode():
        return reference(torch.tensor([text])).logits[0, len(CASE["prompt"]) - 1 :].log_softmax(-1)


@pytest.mark.parametrize("mode", ["off", "ddtree"])
def test_log_probabilities_are_the_models_own_in_every_mode(client: openai.OpenAI, mode: str) -> None:
    extra = {"speculation": {"mode": mode}, "ignore_eos": True}
    answer = client.chat.completions.create(**ASK, max_tokens=12, logprobs=True, top_logprobs=3, extra_body=extra)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 12
    theirs = expected_logprobs(12)
    for place, entry in enumerate(logprobs.content):
        best = theirs[place].topk(3).values.tolist()
        assert entry.logprob == pytest.approx(best[0], abs=2e-4)
        assert [other.logprob for other in entry.top_logprobs] == pytest.approx(best, abs=2e-4)
        assert entry.top_logprobs[0].token == entry.token == bytes(entry.bytes or []).decode()
    assert [entry.token for entry in logprobs.content[: len(SCRIPT)]] == SCRIPT


def test_a_completions_log_probabilities_come_in_the_older_shape_streamed_and_whole(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": "scripted",
        "prompt": CASE["prompt"],
        "max_tokens": 6,
        "temperature": 0.0,
        "logprobs": 2,
    }
    whole = client.completions.create(**ask).choices[0].logprobs
    assert whole is not None and whole.tokens == SCRIPT[:6]
    assert whole.token_logprobs == pytest.approx(expected_logprobs(6).max(-1).values.tolist(), abs=2e-4)
    assert whole.text_offset == [sum(map(len, SCRIPT[:place])) for place in range(6)]
    assert whole.top_logprobs is not None and [len(best) for best in whole.top_logprobs] == [2] * 6
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(**ask, stream=True)]
    streamed = [found for found in chunks if found is not None]
    assert [token for found in streamed for token in found.tokens or ()] == whole.tokens
    assert [offset for found in streamed for offset in found.text_offset or ()] == whole.text_offset


def test_penalties_and_bias_change_the_answer_alike_in_every_mode(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "scripted", "prompt": CASE["prompt"], "max_tokens": 30, "temperature": 0.0}
    answers = {}
    for name, wishes in {
        "plain": {},
        "penalties": {"frequency_penalty": 2.0, "presence_penalty": 1.0},
        "bias": {"logit_bias": {"7": 100}},
    }.items():
        for mode in ("off", "ddtree"):
            extra = {"speculation": {"mode": mode}, "ignore_eos": True, "return_token_ids": True}
            choice = client.completions.create(**ask, **wishes, extra_body=extra).choices[0]
            answers[name, mode] = choice.token_ids  # type: ignore[attr-defined]
        assert answers[name, "off"] == answers[name, "ddtree"]
    assert answers["plain", "off"] == CASE["autoregressive"][:30]
    assert answers["bias", "off"] == [7] * 30
    assert answers["penalties", "off"] != answers["plain", "off"]
