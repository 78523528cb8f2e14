"""What the server refuses, by name and with the right status, and never drops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from engine_process import Server, eventually

DATA = Path(__file__).parents[2] / "data" / "tiny-ddtree"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("[context]\ncontext_length = 128\n").until_ready()


@pytest.fixture(scope="module")
def mute_server(start_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """No tokenizer, no drafter, and a key."""
    key = tmp_path_factory.mktemp("keys") / "api.key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    return start_server(f'api_key_file = "{key}"\n', model=DATA / "target", drafter=None).until_ready()


def with_key(server: Server, path: str, body: Any, key: str = "Bearer s3cret") -> httpx.Response:
    headers = {"Authorization": key}
    return httpx.post(server.url + path, json=body, headers=headers, trust_env=False, timeout=20.0)


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param", "says"),
    [
        (COMPLETIONS, b"{", 400, "invalid_json", None, "not JSON"),
        (COMPLETIONS, b"[]", 400, "invalid_value", None, "object"),
        (COMPLETIONS, {}, 400, "invalid_value", "prompt", "prompt: field required"),
        (COMPLETIONS, {"prompt": []}, 400, "invalid_value", "prompt", "holds no token"),
        (COMPLETIONS, {"prompt": [64]}, 400, "invalid_value", "prompt", "64 is outside the vocabulary of 64"),
        (COMPLETIONS, {"prompt": [1.5]}, 400, "invalid_value", "prompt", "token ids"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "invalid_value", "prompt", "one prompt a request"),
        (
            COMPLETIONS,
            {"prompt": "a", "max_token": 3},
            400,
            "unknown_parameter",
            "max_token",
            "known one is max_tokens",
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "n": 2},
            400,
            "unsupported_parameter",
            "n",
            "n: this engine does not support it (only 1)",
        ),
        (COMPLETIONS, {"prompt": "a", "n": True}, 400, "unsupported_parameter", "n", "n:"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 21}, 400, "invalid_value", "logprobs", "less than or equal to 20"),
        (COMPLETIONS, {"prompt": "a", "logprobs": True}, 400, "invalid_value", "logprobs", "logprobs:"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2},
            400,
            "invalid_value",
            None,
            "logprobs",
        ),
        (COMPLETIONS, {"prompt": "a", "presence_penalty": 3}, 400, "invalid_value", "presence_penalty", "less than"),
        (COMPLETIONS, {"prompt": "a", "repetition_penalty": 0}, 400, "invalid_value", "repetition_penalty", "greater"),
        (
            COMPLETIONS,
            {"prompt": "a", "logit_bias": {"64": 5}},
            400,
            "invalid_value",
            "logit_bias",
            "token id 64 is outside the vocabulary of 64",
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "logit_bias": {"9" * 5000: 5}},
            400,
            "invalid_value",
            "logit_bias",
            "its keys are token ids",
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "logit_bias": {"-1": 5}},
            400,
            "invalid_value",
            "logit_bias",
            "its keys are token ids",
        ),
        (
            CHAT,
            {"messages": [{"role": "assistant"}]},
            400,
            "invalid_value",
            "messages.0",
            "content is missing",
        ),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "3"}, 400, "invalid_value", "max_tokens", "valid integer"),
        (
            COMPLETIONS,
            {"prompt": "a", "max_tokens": 0},
            400,
            "invalid_value",
            "max_tokens",
            "greater than or equal to 1",
        ),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, 400, "invalid_value", "temperature", "temperature:"),
        (COMPLETIONS, {"prompt": "a", "stop": [""]}, 400, "invalid_value", "stop.0", "at least 1 character"),
        (COMPLETIONS, {"prompt": "a", "model": "other"}, 404, "model_not_found", "model", "tiny-speaking and no other"),
        (
            COMPLETIONS,
            {"prompt": "a", "stream_options": {"include_usage": True}},
            400,
            "invalid_value",
            None,
            "needs stream",
        ),
        (COMPLETIONS, {"prompt": "a", "min_tokens": 5, "max_tokens": 4}, 400, "invalid_value", None, "min_tokens 5"),
        (
            COMPLETIONS,
            {"prompt": "a", "speculation": {"mode": "fast"}},
            400,
            "invalid_value",
            "speculation.mode",
            "'ddtree'",
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "speculation": {"mode": "off", "tree_budget": 4}},
            400,
            "invalid_value",
            "speculation.tree_budget",
            "belongs to mode ddtree",
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "speculation": {"mode": "off", "lookup": "on"}},
            400,
            "invalid_value",
            "speculation.lookup",
            "belongs to the modes that draft",
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "speculation": {"lookup": "yes"}},
            400,
            "invalid_value",
            "speculation.lookup",
            "'auto'",
        ),
        (CHAT, {"messages": []}, 400, "invalid_value", "messages", "messages:"),
        (CHAT, {"messages": [{"role": "robot", "content": "a"}]}, 400, "invalid_value", "messages.0.role", "role"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            400,
            "invalid_value",
            "messages.0.content",
            "no other kind is supported",
        ),
        (CHAT, {"messages": [{"role": "developer", "content": "a"}]}, 400, "chat_template", "messages", "no such role"),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": "a"}],
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
            400,
            "unsupported_parameter",
            "tools",
            "tools: this service has no tool_parser set",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
            400,
            "invalid_value",
            "tools.0.function",
            "field required",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"},
            400,
            "invalid_value",
            "tool_choice",
            "there are no tools to choose from",
        ),
        ("/tokenize", {}, 400, "invalid_value", None, "either prompt or messages"),
        ("/v1/embeddings", {}, 404, "not_found", None, "/v1/embeddings"),
        ("/v1/chat/completion", {}, 404, "not_found", None, "the nearest path here is /v1/chat/completions"),
        ("/health", {}, 405, "method_not_allowed", None, "POST /health"),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    server: Server, path: str, body: Any, status: int, code: str, param: str | None, says: str
) -> None:
    answer = server.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert says in error["message"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_every_wrong_parameter_is_named_at_once(server: Server) -> None:
    message = server.post(COMPLETIONS, {"prompt": "a", "best_of": 3, "top_p": 7, "colour": "red"}).json()["error"][
        "message"
    ]
    assert all(f"{name}:" in message for name in ("best_of", "top_p", "colour"))


def test_neutral_values_of_what_is_not_supported_pass(server: Server) -> None:
    neutral = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "echo": False, "suffix": None}
    assert server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, **neutral}).status_code == 200


def test_the_client_library_understands_the_errors(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().completions.create(model="tiny-speaking", prompt="a", n=2)
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        server.client().completions.create(model="other", prompt="a")


@pytest.mark.parametrize(
    ("prompt_tokens", "wishes", "together"),
    [(128, {}, 129), (100, {"max_tokens": 29}, 129), (500, {"max_tokens": 1}, 501)],
)
def test_a_request_longer_than_the_context_is_told_both_numbers(
    server: Server, prompt_tokens: int, wishes: dict[str, int], together: int
) -> None:
    answer = server.post(COMPLETIONS, {"prompt": [9] * prompt_tokens, **wishes})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert f"{prompt_tokens} tokens" in error["message"]
    assert f"{together} together" in error["message"]
    assert "holds 128" in error["message"]


def test_a_request_that_just_fits_is_served(server: Server) -> None:
    answer = server.post(COMPLETIONS, {"prompt": [9] * 100, "max_tokens": 28, "ignore_eos": True, "temperature": 0})
    assert answer.json()["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 28,
        "total_tokens": 128,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_refusal_is_logged_by_name_and_without_what_the_client_sent(server: Server) -> None:
    before = len(server.records("refused"))
    server.post(COMPLETIONS, {"prompt": "my secret words", "once upon a time": 1, "top_k": "many"})
    server.post(COMPLETIONS, {"prompt": "my secret words", "best_of": 9})
    eventually(lambda: len(server.records("refused")) == before + 2)
    first, second = server.records("refused")[before:]
    assert (first["status"], first["code"]) == ("400", "unknown_parameter")
    assert "param" not in first
    assert (second["code"], second["param"]) == ("unsupported_parameter", "best_of")
    assert not any("secret" in line or "upon" in line for line in server.lines + server.errors)
    assert server.get("/server_info").json()["requests"]["refused"] == len(server.records("refused"))


def test_a_model_without_a_tokenizer_serves_ids_and_says_what_it_cannot(mute_server: Server) -> None:
    answer = with_key(mute_server, COMPLETIONS, {"prompt": [9], "max_tokens": 5, "temperature": 0}).json()
    expected = json.loads((DATA / "expected.json").read_text())["cases"][0]
    assert expected["prompt"] == [9]
    assert answer["choices"][0]["token_ids"] == expected["autoregressive"][:5]
    assert answer["choices"][0]["text"] == ""
    for path, body, param in (
        (COMPLETIONS, {"prompt": "a"}, "prompt"),
        (COMPLETIONS, {"prompt": [9], "stop": "a"}, "stop"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/tokenize", {"prompt": "a"}, "prompt"),
    ):
        error = with_key(mute_server, path, body).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", param)


def test_a_mode_that_needs_a_drafter_is_refused_where_there_is_none(mute_server: Server) -> None:
    error = with_key(mute_server, COMPLETIONS, {"prompt": [9], "speculation": {"mode": "ddtree"}}).json()["error"]
    assert error["param"] == "speculation.mode"
    assert "has none" in error["message"]


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Bearer s3cret2", "Basic s3cret", "s3cret"])
def test_a_key_is_asked_for_where_one_is_set(mute_server: Server, key: str) -> None:
    answer = with_key(mute_server, COMPLETIONS, {"prompt": [9], "max_tokens": 1}, key=key)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_probes_and_figures_need_no_key_but_trees_show_text_and_do(mute_server: Server) -> None:
    opened = {
        path: mute_server.get(path).status_code for path in ("/health", "/ready", "/metrics", "/server_info", "/trees")
    }
    assert opened == {"/health": 200, "/ready": 200, "/metrics": 200, "/server_info": 200, "/trees": 401}


def test_the_key_file_is_shown_nowhere(mute_server: Server) -> None:
    shown = mute_server.get("/server_info").text + "".join(mute_server.lines)
    assert "api.key" not in shown
    assert "s3cret" not in shown
