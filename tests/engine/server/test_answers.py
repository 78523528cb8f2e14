"""Answers over real HTTP, asked for with the real `openai` client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from engine_process import Server, eventually

from engine.tokenizer import Tokenizer, load_tokenizer

DATA = Path(__file__).parents[2] / "data" / "tiny-ddtree"
CASES = json.loads((DATA / "expected.json").read_text())["cases"]
MODEL = "tiny-speaking"
END = 1  # the id of <|end|>


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("[context]\ncontext_length = 1024\n[kv]\npage_size = 7\n").until_ready()


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="module")
def tokenizer(speaking_model: Path) -> Tokenizer:
    loaded = load_tokenizer(speaking_model)
    assert loaded is not None
    return loaded


def complete(client: openai.OpenAI, prompt: Any, **wishes: Any) -> Any:
    """A greedy completion of token ids or text, ends of text ignored, unless `wishes` say otherwise."""
    extra = {"ignore_eos": True, "return_token_ids": True}
    for name in ("ignore_eos", "min_tokens", "speculation", "stop_token_ids", "top_k", "min_p", "return_token_ids"):
        if name in wishes:
            extra[name] = wishes.pop(name)
    wanted = {"max_tokens": 40, "temperature": 0.0, **wishes}
    return client.completions.create(model=MODEL, prompt=prompt, extra_body=extra, **wanted)


def commits(client: openai.OpenAI, prompt: list[int], **wishes: Any) -> list[list[int]]:
    """Token ids chunk by chunk: the first token of prefill, then one list a round."""
    chunks = list(complete(client, prompt, stream=True, **wishes))
    return [chunk.choices[0].token_ids for chunk in chunks if chunk.choices and chunk.choices[0].token_ids]


@pytest.mark.parametrize("case", CASES[1:3], ids=lambda case: f"prompt {case['prompt'][:3]}")
@pytest.mark.parametrize("speculation", [{"mode": "off"}, {"mode": "dflash"}, {"mode": "ddtree", "tree_budget": 8}])
def test_every_mode_gives_the_reference_tokens(client: openai.OpenAI, case: Any, speculation: Any) -> None:
    answer = complete(client, case["prompt"], max_tokens=96, speculation=speculation)
    assert answer.choices[0].token_ids == case["autoregressive"]


def test_a_request_may_have_its_text_looked_up_and_is_told_what_that_gave(client: openai.OpenAI) -> None:
    case = CASES[1]
    prompt = [*case["prompt"], *case["autoregressive"], *case["prompt"]]
    plain = complete(client, prompt, max_tokens=64, speculation={"mode": "ddtree", "tree_budget": 8})
    looked_up = complete(
        client, prompt, max_tokens=64, speculation={"mode": "ddtree", "tree_budget": 8, "lookup": "auto"}
    )
    assert looked_up.choices[0].token_ids == plain.choices[0].token_ids
    assert "lookup_tokens" not in plain.speculation
    assert 0 < looked_up.speculation["lookup_tokens"] < 64
    assert looked_up.speculation["steps"] < plain.speculation["steps"]


def test_an_answer_has_the_shape_clients_expect(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    answer = complete(client, CASES[0]["prompt"], max_tokens=12)
    (choice,) = answer.choices
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == MODEL
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.text == tokenizer.decode(CASES[0]["autoregressive"][:12])
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (1, 12, 13)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_token_ids_are_given_only_when_asked_for(client: openai.OpenAI) -> None:
    answer = complete(client, "lake", return_token_ids=False)
    assert not hasattr(answer.choices[0], "token_ids")


def test_a_text_prompt_and_its_ids_give_the_same_answer(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    by_text = complete(client, "lake:")
    by_ids = complete(client, tokenizer.encode("lake:"))
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.usage == by_ids.usage


def test_chunks_add_up_to_the_plain_answer_and_usage_rides_alone(client: openai.OpenAI) -> None:
    plain = complete(client, "lake")
    chunks = list(complete(client, "lake", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == plain.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == plain.usage
    assert chunks[-2].speculation["steps"] == plain.speculation["steps"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_without_include_usage_no_usage_chunk_comes(client: openai.OpenAI) -> None:
    chunks = list(complete(client, "lake", stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_stream_ends_with_done_on_the_wire(server: Server) -> None:
    answer = server.post("/v1/completions", {"prompt": [9], "max_tokens": 3, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


def test_chat_answers_in_chat_form(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    messages: Any = [{"role": "user", "content": "lake"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=8, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokenizer.encode_chat(messages))
    by_ids = complete(client, tokenizer.encode_chat(messages), max_tokens=8, ignore_eos=False)
    assert answer.choices[0].message.content == by_ids.choices[0].text


def test_a_chat_stream_names_the_role_first_and_the_reason_last(client: openai.OpenAI) -> None:
    wanted: Any = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    wanted["messages"] = [{"role": "user", "content": [{"type": "text", "text": "la"}, {"type": "text", "text": "ke"}]}]
    plain = client.chat.completions.create(**wanted)
    chunks = list(client.chat.completions.create(**wanted, stream=True))
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert chunks[-1].choices[0].delta.content is None
    assert chunks[-1].choices[0].finish_reason == plain.choices[0].finish_reason
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == plain.choices[0].message.content


def test_a_stop_string_inside_a_commit_of_several_tokens_cuts_there(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    prompt, stop, used, text = a_stop_inside_a_commit(client, tokenizer)
    answer = complete(client, prompt, max_tokens=96, stop=stop)
    assert answer.choices[0].text == text
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", stop)
    assert answer.usage.completion_tokens == used
    assert sum((i + 1) * n for i, n in enumerate(answer.speculation["commit_lengths_hist"])) == used - 1
    streamed = list(complete(client, prompt, max_tokens=96, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == text


def a_stop_inside_a_commit(client: openai.OpenAI, tokenizer: Tokenizer) -> tuple[list[int], str, int, str]:
    """(prompt, a stop string that ends at a token with others of its commit behind it, tokens used, text before it)."""
    for case in CASES:
        done: list[int] = []
        for commit in commits(client, case["prompt"], max_tokens=96):
            used = len(done) + 1
            text = tokenizer.decode([*done, commit[0]])
            for length in (2, 3, 4, 5):
                stop = text[-length:]
                if len(commit) > 1 and len(done) > 4 and "\ufffd" not in stop and text.find(stop) == len(text) - length:
                    return case["prompt"], stop, used, text[:-length]
            done += commit
    raise AssertionError("no such place in any answer: the drafter accepts nothing")


def test_the_models_end_of_text_ends_an_answer_and_counts_as_a_token(client: openai.OpenAI) -> None:
    tokens = CASES[0]["autoregressive"]
    answer = complete(client, CASES[0]["prompt"], max_tokens=96, ignore_eos=False)
    assert answer.choices[0].token_ids == tokens[: tokens.index(END) + 1]
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", END)
    assert answer.usage.completion_tokens == tokens.index(END) + 1
    assert not answer.choices[0].text.endswith("|>")


def test_min_tokens_lets_early_ends_pass(client: openai.OpenAI) -> None:
    tokens = CASES[0]["autoregressive"]
    first = tokens.index(END)
    second = tokens.index(END, first + 1)
    answer = complete(client, CASES[0]["prompt"], max_tokens=96, ignore_eos=False, min_tokens=first + 1)
    assert answer.choices[0].token_ids == tokens[: second + 1]


def test_stop_token_ids_end_an_answer_even_where_the_end_of_text_is_ignored(client: openai.OpenAI) -> None:
    tokens = CASES[0]["autoregressive"]
    answer = complete(client, CASES[0]["prompt"], max_tokens=96, stop_token_ids=[47])
    assert answer.choices[0].token_ids == tokens[: tokens.index(47) + 1]


@pytest.mark.parametrize("count", [1, 2, 3, 17, 61])
def test_max_tokens_is_exact_whatever_a_commit_holds(client: openai.OpenAI, count: int) -> None:
    answer = complete(client, CASES[2]["prompt"], max_tokens=count)
    assert answer.choices[0].token_ids == CASES[2]["autoregressive"][:count]
    assert answer.usage.completion_tokens == count


def test_without_max_tokens_the_answer_fills_the_context(server: Server, client: openai.OpenAI) -> None:
    prompt = (CASES[0]["prompt"] * 1024)[:960]
    answer = complete(client, prompt, max_tokens=None)
    assert answer.usage.total_tokens == 1024
    assert answer.choices[0].finish_reason == "length"


def test_a_seed_fixes_a_sampled_answer_in_every_mode(client: openai.OpenAI) -> None:
    def sampled(seed: int, mode: str) -> Any:
        wishes: Any = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "min_p": 0.01, "seed": seed}
        return complete(client, [9], max_tokens=48, speculation={"mode": mode}, **wishes).choices[0].token_ids

    assert sampled(7, "ddtree") == sampled(7, "ddtree") == sampled(7, "off")
    assert sampled(7, "ddtree") != sampled(8, "ddtree")


def test_without_a_seed_sampled_answers_differ(client: openai.OpenAI) -> None:
    answers = {tuple(complete(client, [9], temperature=1.5).choices[0].token_ids) for _ in range(3)}
    assert len(answers) > 1


def test_speculation_figures_count_every_token_but_the_first(client: openai.OpenAI) -> None:
    answer = complete(client, CASES[0]["prompt"], max_tokens=64)
    figures = answer.speculation
    assert set(figures) == {"steps", "commit_lengths_hist", "decode_s", "prefill_s", "queue_s", "cached_tokens"}
    assert sum(figures["commit_lengths_hist"]) == figures["steps"]
    assert sum((i + 1) * n for i, n in enumerate(figures["commit_lengths_hist"])) == 63
    assert figures["steps"] < 63, "the drafter was right at least once"
    assert figures["decode_s"] > 0.0


def test_tokenize_counts_as_the_completion_does(server: Server, client: openai.OpenAI) -> None:
    counted = server.post("/tokenize", {"prompt": "lake: é"}).json()
    assert counted["count"] == len(counted["tokens"]) == complete(client, "lake: é", max_tokens=1).usage.prompt_tokens
    assert counted["max_model_len"] == 1024
    messages = [{"role": "user", "content": "lake"}]
    asked: Any = {"model": MODEL, "messages": messages, "max_tokens": 1}
    chat = client.chat.completions.create(**asked)
    assert chat.usage is not None
    assert server.post("/tokenize", {"messages": messages}).json()["count"] == chat.usage.prompt_tokens


def test_the_model_list_names_the_one_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_several_requests_at_once_wait_their_turn_and_all_get_their_own_answer(server: Server) -> None:
    def ask(case: Any) -> bool:
        body = {
            "prompt": case["prompt"],
            "max_tokens": 96,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return bool(server.post("/v1/completions", body).json()["choices"][0]["token_ids"] == case["autoregressive"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, CASES)) == [True] * len(CASES)


LONG = {"prompt": [9], "max_tokens": 1000, "ignore_eos": True, "speculation": {"mode": "off"}}


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_failure(server: Server) -> None:
    address = urlsplit(server.url)
    assert address.hostname and address.port
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 999\r\n\r\n"
    with socket.create_connection((address.hostname, address.port)) as link:
        link.sendall(head.encode() + b'{"prompt": [9],')
    with socket.create_connection((address.hostname, address.port)) as link:
        link.sendall(head.encode() + b'{"prompt": [9],')
    assert complete(server.client(), [9], max_tokens=1).usage.completion_tokens == 1
    assert server.records("error") == [] and server.errors == []
    assert "ddtree_failures_total 0.0" in server.get("/metrics").text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_pages(server: Server, stream: bool) -> None:
    def pages_used() -> int:
        return int(server.get("/server_info").json()["kv"]["pages_used"])

    assert pages_used() == 0
    before = len(server.records("request"))
    with asking(server, {**LONG, "stream": stream}):
        eventually(lambda: pages_used() > 0)
    eventually(lambda: pages_used() == 0)
    record = eventually(lambda: server.records("request")[before:])[0]
    assert record["finish"] == "cancelled"
    assert int(record["output_tokens"]) < 1000


def test_the_request_after_a_full_queue_is_refused_and_the_queue_empties_when_clients_leave(server: Server) -> None:
    def load() -> tuple[int, int]:
        requests = server.get("/server_info").json()["requests"]
        return requests["running"], requests["queued"]

    with contextlib.ExitStack() as clients:
        for _ in range(65):
            clients.enter_context(asking(server, LONG))
        eventually(lambda: load() == (1, 64))
        refused = server.post("/v1/completions", {"prompt": [9], "max_tokens": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) > 0
    eventually(lambda: load() == (0, 0))
    assert server.post("/v1/completions", {"prompt": [9], "max_tokens": 1}).status_code == 200


@contextlib.contextmanager
def asking(server: Server, body: dict[str, Any]) -> Iterator[None]:
    """A client that sends a request over a bare socket, never reads, and leaves at the end."""
    address = urlsplit(server.url)
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=10.0) as connection:
        connection.sendall(head.encode() + content)
        yield


def test_a_reader_that_does_not_read_holds_no_round_up(server: Server) -> None:
    before, address = len(server.records("request")), urlsplit(server.url)
    content = json.dumps({**LONG, "stream": True, "return_token_ids": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        link.connect((address.hostname, address.port))
        link.sendall(head.encode() + content)
        (record,) = eventually(lambda: server.records("request")[before:], 60.0)
        assert (record["finish"], record["output_tokens"]) == ("length", "1000")
        assert server.post("/v1/completions", {"prompt": [9], "max_tokens": 1}).status_code == 200


def test_trees_show_the_accepted_path(server: Server) -> None:
    with httpx.stream("GET", f"{server.url}/trees", trust_env=False, timeout=20.0) as feed:
        lines = feed.iter_lines()
        assert next(lines) == ": keep-alive"
        server.post("/v1/completions", {"prompt": [9], "max_tokens": 60, "temperature": 0, "ignore_eos": True})
        tree = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
    nodes = tree["nodes"]
    assert (nodes[0]["parent"], nodes[0]["depth"], nodes[0]["probability"], nodes[0]["accepted"]) == (-1, 0, 1.0, True)
    assert len(nodes) == tree["budget"] + 1 == 17
    assert sum(node["accepted"] for node in nodes) == tree["commit_length"]
    for node in nodes[1:]:
        parent = nodes[node["parent"]]
        assert node["depth"] == parent["depth"] + 1
        assert 0.0 <= node["probability"] <= parent["probability"]
        assert not node["accepted"] or parent["accepted"]
        assert isinstance(node["text"], str)
