"""What strangers and broken clients send to the port: each gets its answer or its end, nothing fails, and nothing stays behind."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from engine_process import Server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD = b'{"prompt": "a", "max_tokens": 1}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n"


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Iterator[Server]:
    """A server that, when all tests here have had it, has failed on nothing, printed nothing and kept no page."""
    running = start_server("[context]\ncontext_length = 128\n").until_ready()
    yield running
    assert running.post(COMPLETIONS, GOOD).status_code == 200
    assert running.records("error") == []
    assert running.get("/server_info").json()["kv"]["pages_used"] == 0
    assert running.stop() == 0
    assert running.errors == []


def chat(**parts: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "a"}], **parts}).encode()


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (COMPLETIONS, b"", 400, "not JSON"),
        (COMPLETIONS, b"null", 400, "object"),
        (COMPLETIONS, b'"a"', 400, "object"),
        (COMPLETIONS, b"\xef\xbb\xbf" + GOOD, 400, "not JSON"),
        (COMPLETIONS, GOOD.decode().encode("utf-16"), 400, "not JSON"),
        (COMPLETIONS, gzip.compress(GOOD), 400, "not JSON"),
        (COMPLETIONS, GOOD + b" and more", 400, "trailing characters"),
        (COMPLETIONS, b'{"prompt": "\xff\xfe"}', 400, "unicode"),
        (COMPLETIONS, b'{"prompt": "\\ud800"}', 400, "not JSON"),
        (COMPLETIONS, b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "recursion limit"),
        (COMPLETIONS, b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", 400, "number out of range"),
        (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', 400, "temperature: input should be a finite number"),
        (COMPLETIONS, b'{"prompt": "a", "temperature": 1e999}', 400, "temperature: input should be a finite number"),
        (COMPLETIONS, b'{"prompt": "a", "temperature": 5e-324, "max_tokens": 4}', 200, ""),
        (COMPLETIONS, b'{"prompt": "a", "repetition_penalty": 1e-300}', 400, "repetition_penalty: input should be"),
        (COMPLETIONS, b'{"prompt": "a", "repetition_penalty": 0.01, "max_tokens": 4}', 200, ""),
        (COMPLETIONS, b'{"prompt": "a", "max_tokens": 1' + b"0" * 30 + b"}", 400, "this service holds 128"),
        (COMPLETIONS, b'{"prompt": "a", "max_tokens": 3.0}', 400, "max_tokens: input should be a valid integer"),
        (COMPLETIONS, b'{"prompt": "a", "top_k": 1' + b"0" * 30 + b', "max_tokens": 2}', 200, ""),
        (COMPLETIONS, b'{"prompt": "a", "stop_token_ids": [-5]}', 400, "stop_token_ids: token id -5 is outside"),
        (COMPLETIONS, b'{"prompt": [1e2]}', 400, "prompt: one prompt a request"),
        (COMPLETIONS, b'{"prompt": [true]}', 400, "prompt: one prompt a request"),
        (COMPLETIONS, b'{"prompt": "a", "stop": [null]}', 400, "stop.0: input should be a valid string"),
        (COMPLETIONS, b'{"prompt": "a", "": 1}', 400, '"": unknown parameter'),
        (COMPLETIONS, b'{"prompt": "a", "x\\n<y>": 1}', 400, '"x\\n<y>": unknown parameter'),
        (COMPLETIONS, b'{"prompt": "a", "speculation": {"budget": 3}}', 400, "speculation.budget: unknown parameter"),
        (COMPLETIONS, b'{"prompt": "' + b"lake " * 50_000 + b'"}', 400, "this service holds 128"),
        (CHAT, chat(messages="hi"), 400, "messages: input should be a valid array"),
        (CHAT, chat(messages=[{"role": "user", "content": 5}]), 400, "messages.0.content:"),
        (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": 5}]}]), 400, "is not a text"),
        (CHAT, chat(messages=[{"role": "user", "content": "a", "mood": 1}]), 400, "messages.0.mood: unknown parameter"),
        (CHAT, chat(chat_template_kwargs={"messages": []}), 400, "messages is none of the template's own switches"),
        (CHAT, chat(chat_template_kwargs={"tools": []}), 400, "tools is none of the template's own switches"),
        (
            CHAT,
            chat(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]),
            400,
            "messages.0.tool_calls.0.function.arguments: input should be a valid string",
        ),
        ("/tokenize", b'{"prompt": "a", "add_special_tokens": "no"}', 400, "add_special_tokens: input should be"),
        ("//v1/completions", GOOD, 404, "Not Found"),
        ("/v1/completions?n=2", GOOD, 200, ""),
    ],
)
def test_an_odd_body_is_answered_or_refused_in_one_line(
    server: Server, path: str, body: bytes, status: int, says: str
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == status
    message = answer.json().get("error", {}).get("message", "")
    assert says in message and "\n" not in message


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
        (HEAD + b"Expect: 100-continue\r\nContent-Length: 32\r\n\r\n" + GOOD, 100),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n20\r\n" + GOOD + b"\r\n0\r\n\r\n", 200),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD + b"Content-Length: many\r\n\r\n", 400),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400),
        (HEAD + b"Content-Length: 32\r\nContent-Length: 33\r\n\r\n" + GOOD, 400),
        (HEAD + b"Content-Length: 99999999999\r\n\r\n", 413),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 32\r\n\r\n" + GOOD, 415),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: engine\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: engine\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", 400),
        (
            b"GET /v1/completions HTTP/1.1\r\nHost: engine\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            405,
        ),
    ],
)
def test_odd_http_is_answered_with_its_status(server: Server, sent: bytes, status: int) -> None:
    with connection(server) as link:
        link.sendall(sent)
        assert link.recv(64).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /hea",
        HEAD + b"Content-Length: 500\r\n\r\n" + GOOD,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n20\r\n{",
    ],
)
def test_a_client_that_stops_in_the_middle_is_let_go(server: Server, sent: bytes) -> None:
    with connection(server) as link:
        link.sendall(sent)
        link.shutdown(socket.SHUT_WR)
        while link.recv(4096):
            pass


def test_requests_that_come_in_one_write_are_answered_in_turn(server: Server) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: engine\r\n"
    with connection(server) as link:
        link.sendall(request + b"\r\n" + request + b"Connection: close\r\n\r\n")
        answers = b"".join(iter(lambda: link.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b'{"status":"serving"') == 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"])
def test_a_method_that_is_not_there_is_told_so(server: Server, method: str) -> None:
    answer = httpx.request(method, server.url + COMPLETIONS, trust_env=False)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def connection(server: Server) -> socket.socket:
    address = urlsplit(server.url)
    assert address.hostname and address.port
    return socket.create_connection((address.hostname, address.port), timeout=20.0)
