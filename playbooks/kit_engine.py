"""One engine over one kept connection: JSON requests, and streamed completions with every chunk stamped on arrival."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
import urllib.parse
from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Mapping, Sequence

from kit_end import Stop
from kit_foreign import counters_of, sglang_body, sglang_chunks, sglang_steps, steps_between

REQUEST_LIMIT_S = 600.0  # until the first byte: a prefill of a long prompt is silent for minutes on slow machines
STALL_LIMIT_S = 30.0  # between two bytes of a stream that has begun: no step takes so long, the engine is stuck
READY_LIMIT_S = 120.0  # a single token of a single one; /health may say 200 while nothing is generated any more


@dataclass(frozen=True)
class Completion:
    """One streamed answer. Times are seconds since the request was sent, by this process's clock."""

    text: str
    token_ids: tuple[int, ...] | None  # None where the engine does not tell them
    stamps_s: tuple[float, ...]  # arrival of each chunk that carried text or tokens
    chunk_tokens: tuple[int, ...]  # tokens in each of them; empty where the engine does not tell token ids
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    finish: str | None
    e2e_s: float
    steps: Mapping[str, Any] | None  # the engine's own exact counters, None where it has none
    fields: Mapping[str, int] = field(default_factory=dict)  # chunks by the field their text came in
    hidden_tokens: int = 0  # reasoning that the engine counted and did not stream

    @property
    def ttft_s(self) -> float | None:
        return self.stamps_s[0] if self.stamps_s else None


@dataclass
class Engine:
    """One engine over one kept connection. Parameters it refuses by name are left out from then on, and remembered."""

    base_url: str
    model: str | None = None
    key: str | None = None
    refused: list[str] = field(default_factory=list)
    kind: str = "bundled"
    drafting: bool = True  # whether it speculates, as it says
    connection: http.client.HTTPConnection | None = None
    aborted: Stop | None = None
    limit_s: float = REQUEST_LIMIT_S
    stall_s: float = STALL_LIMIT_S
    _socket: Any = None  # of the connection; the response may hold it alone

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.base_url)
        if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise Stop("bad_params", f"base URL {self.base_url!r}: playbooks talk to the box's own loopback, over http")
        self.host, self.port = parts.hostname, parts.port or 80

    def twin(self) -> Engine:
        """Another connection to the same engine."""
        return Engine(self.base_url, self.model, self.key, list(self.refused), self.kind, self.drafting)

    def abort(self, why: Stop) -> None:
        """From another thread: break the request under way, so that the engine stops working on it."""
        self.aborted = why
        connection = self.connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):  # it was closed in the same moment
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _send(self, method: str, path: str, body: Any) -> tuple[http.client.HTTPResponse, int]:
        """The response, and when its request went out, in nanoseconds of the performance counter."""
        if self.aborted:
            raise self.aborted
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode("utf-8")
        for attempt in (1, 2):
            if self.connection is None:
                self.connection = http.client.HTTPConnection(self.host, self.port, timeout=self.limit_s)
            try:
                if self.connection.sock is None:
                    self.connection.connect()
                    sock: Any = self.connection.sock  # typed as None before the call above
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._socket = sock
                self._socket.settimeout(self.limit_s)
                sent = time.perf_counter_ns()
                self.connection.request(method, path, body=data, headers=headers)
                return self.connection.getresponse(), sent
            except (http.client.BadStatusLine, ConnectionError) as error:
                self.close()
                if self.aborted:
                    raise self.aborted from None
                if attempt == 2 or isinstance(error, ConnectionRefusedError):
                    raise
        raise AssertionError("the loop returns or raises")

    def close(self) -> None:
        """Drop the connection; the next request makes a new one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def get(self, path: str) -> Any:
        """The JSON answer of a GET, or None for a path the engine does not have. Raises Stop(engine) otherwise."""
        return self._json("GET", path, None, optional=True)

    def post(self, path: str, body: Mapping[str, Any], optional: bool = False) -> Any:
        """The JSON answer of a POST; with `optional`, None where the engine has no such path or refuses the request."""
        return self._json("POST", path, body, optional=optional)

    def _json(self, method: str, path: str, body: Any, optional: bool) -> Any:
        with self._trouble(path):
            response, _ = self._send(method, path, body)
            data = response.read()
        if optional and response.status in (400, 404, 405, 501):
            return None
        if response.status != 200:
            raise Stop("engine", f"{path}: HTTP {response.status}: {_error_message(data)}", "engine_http")
        return json.loads(data)

    @contextlib.contextmanager
    def _trouble(self, path: str) -> Iterator[None]:
        """What a broken connection means: the run was told to stop, or the engine failed."""
        where = f"{self.base_url}{path}"
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            if self.aborted:
                raise self.aborted from None
            if isinstance(error, ConnectionRefusedError):
                message = f"{where}: nothing answers there; is the engine serving?"
                raise Stop("missing", message, "engine_unreachable") from None
            if isinstance(error, socket.timeout):
                message = (
                    f"{where}: no byte within {self._socket.gettimeout() or self.limit_s:.0f} s: the engine is stuck"
                )
                raise Stop("engine", message, "engine_stalled") from None
            raise Stop("engine", f"{where}: {type(error).__name__}: {error}", "engine_lost") from None

    def complete(
        self, prompt: Sequence[int] | str, max_tokens: int, *, ignore_eos: bool = True, seed: int = 0,
        temperature: float = 0.0, speculation: Mapping[str, Any] | None = None, chat: bool = False,
    ) -> Completion:  # fmt: skip
        """One streamed completion, every chunk stamped on arrival and parsed after the last. Raises Stop(engine).

        With `chat` the prompt is a user's message to the chat endpoint, whose parsers see the answer.
        """
        if self.kind != "bundled" and speculation is not None:
            raise Stop("missing", f"{self.kind} takes no choice of speculation with a request", "capability_missing")
        if self.kind == "sglang" and not chat:
            return self._complete_sglang(prompt, max_tokens, ignore_eos)
        if self.kind == "vllm":
            before = self.counters()
            answer = self._complete_openai(prompt, max_tokens, ignore_eos, seed, temperature, None, chat)
            counted = before and self.drafting
            after = self.counters() if counted else {}
            n = None if answer.completion_tokens is None else answer.completion_tokens - 1
            steps = steps_between(before, after, n) if counted else None if self.drafting else n
            return replace(answer, steps={"steps": steps} if steps else None)
        return self._complete_openai(prompt, max_tokens, ignore_eos, seed, temperature, speculation, chat)

    def _complete_sglang(self, prompt: Sequence[int] | str, max_tokens: int, ignore_eos: bool) -> Completion:
        with self._trouble("/generate"):
            response, sent = self._send("POST", "/generate", sglang_body(prompt, max_tokens, ignore_eos))
            if response.status != 200:
                raise Stop(
                    "engine", f"/generate: HTTP {response.status}: {_error_message(response.read())}", "engine_http"
                )
            lines = self._read_stream(response)
        chunks, meta, text = sglang_chunks(lines)
        ids = tuple(token for _, _, new in chunks for token in new)
        finish = meta.get("finish_reason")
        tokens = meta.get("completion_tokens")
        steps = sglang_steps(meta, tokens, self.drafting)
        return Completion(
            text=text,
            token_ids=ids if ids and len(ids) == tokens else None,
            stamps_s=tuple((stamp - sent) / 1e9 for stamp, _, _ in chunks),
            chunk_tokens=tuple(count for _, count, _ in chunks),
            prompt_tokens=meta.get("prompt_tokens"),
            completion_tokens=tokens,
            cached_tokens=meta.get("cached_tokens"),
            finish=finish.get("type") if isinstance(finish, dict) else finish,
            e2e_s=(lines[-1][0] - sent) / 1e9,
            steps={"steps": steps} if steps else None,
        )

    def _read_stream(self, response: http.client.HTTPResponse) -> list[tuple[int, bytes]]:
        """Every `data:` line with the time it came, in nanoseconds; the response is read to its end."""
        lines: list[tuple[int, bytes]] = []
        while True:
            line = response.readline()
            if line.startswith(b"data:"):
                lines.append((time.perf_counter_ns(), line[5:].strip()))
                self._socket.settimeout(self.stall_s)
            if not line:
                if not lines or lines[-1][1] != b"[DONE]":
                    raise http.client.HTTPException("the stream broke off before [DONE]")
                return lines

    def prove_ready(self) -> None:
        """One real token, soon. Raises Stop(engine) for an engine that says it is healthy and generates nothing."""
        self.close()
        self.limit_s, kept = READY_LIMIT_S, self.limit_s
        try:
            self.complete([1], 1)
        finally:
            self.limit_s = kept

    def text(self, path: str) -> str | None:
        """A plain text answer, or None for a path the engine does not have."""
        with self._trouble(path):
            response, _ = self._send("GET", path, None)
            data = response.read()
        return data.decode("utf-8", "replace") if response.status == 200 else None

    def counters(self) -> dict[str, float]:
        """vLLM's speculation counters now; empty where it does not draft."""
        return counters_of(self.text("/metrics") or "")

    def _complete_openai(
        self, prompt: Sequence[int] | str, max_tokens: int, ignore_eos: bool, seed: int, temperature: float,
        speculation: Mapping[str, Any] | None, chat: bool,
    ) -> Completion:  # fmt: skip
        path = "/v1/chat/completions" if chat else "/v1/completions"
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        wanted: dict[str, Any] = {
            "seed": seed,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
            "speculation": speculation,
            "ignore_eos": ignore_eos or None,
        }
        while True:
            options = {name: value for name, value in wanted.items() if value is not None and name not in self.refused}
            body = {**asked, "max_tokens": max_tokens, "temperature": temperature, "stream": True, **options}
            if self.model:
                body["model"] = self.model
            with self._trouble(path):
                response, sent = self._send("POST", path, body)
                if response.status == 200:
                    return _completion(self._read_stream(response), sent)
                data = response.read()
            name = _refused_parameter(data)
            if response.status != 400 or name not in options:
                raise Stop("engine", f"{path}: HTTP {response.status}: {_error_message(data)}", "engine_http")
            self.refused.append(name)

    def stream_lines(self, prompt: Sequence[int] | str, max_tokens: int) -> Iterator[tuple[float, bytes]]:
        """A greedy completion's stream as it comes: seconds since the request was sent, and each `data:` line with its
        line breaks. Raises Stop(engine)."""
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "return_token_ids": True,
        }
        options = {"ignore_eos": True, "model": self.model}
        body.update({name: value for name, value in options.items() if value and name not in self.refused})
        with self._trouble("/v1/completions"):
            response, sent = self._send("POST", "/v1/completions", body)
            if response.status != 200:
                raise Stop(
                    "engine",
                    f"/v1/completions: HTTP {response.status}: {_error_message(response.read())}",
                    "engine_http",
                )
            while True:
                line = response.readline()
                if line.startswith(b"data:"):
                    yield (time.perf_counter_ns() - sent) / 1e9, line.rstrip() + b"\n\n"
                if not line:
                    return


def _error_message(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace")


def _refused_parameter(data: bytes) -> str:
    try:
        name = json.loads(data)["error"].get("param") or ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return str(name).split(".")[0]


def _completion(lines: Sequence[tuple[int, bytes]], sent: int) -> Completion:
    stamps: list[float] = []
    sizes: list[int] = []
    texts: list[str] = []
    ids: list[int] | None = None
    usage: Mapping[str, Any] = {}
    steps: Mapping[str, Any] | None = None
    finish: str | None = None
    fields: dict[str, int] = {}
    for stamp, data in lines[:-1]:
        chunk = json.loads(data)
        if "error" in chunk:
            raise Stop("engine", f"the engine broke off: {_error_message(data)}", "engine_broke_off")
        usage = chunk.get("usage") or usage
        steps = chunk.get("speculation") or steps
        for choice in chunk.get("choices") or ():
            name, said = _said(choice)
            new_ids = choice.get("token_ids")
            if new_ids:
                ids = [*(ids or ()), *new_ids]
            if said or new_ids or name == "tool_calls":
                stamps.append((stamp - sent) / 1e9)
                texts.append(said)
                sizes.append(len(new_ids or ()))
                fields[name] = fields.get(name, 0) + 1
            finish = choice.get("finish_reason") or finish
    details, reasoned = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    shown = any(fields.get(name) for name in ("reasoning", "reasoning_content"))
    return Completion(
        text="".join(texts),
        token_ids=None if ids is None else tuple(ids),
        stamps_s=tuple(stamps),
        chunk_tokens=() if ids is None else tuple(sizes),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens"),
        finish=finish,
        e2e_s=(lines[-1][0] - sent) / 1e9,
        steps=steps,
        fields=fields,
        hidden_tokens=0 if shown or ids is not None else int(reasoned.get("reasoning_tokens") or 0),
    )


def _said(choice: Mapping[str, Any]) -> tuple[str, str]:
    """The field that a chunk's text came in, and the text; ("none", "") for a chunk without any."""
    delta = choice.get("delta") or {}
    if choice.get("text"):
        return "text", str(choice["text"])
    for name in ("content", "reasoning_content", "reasoning"):
        if delta.get(name):
            return name, str(delta[name])
    calls = [(call.get("function") or {}) for call in delta.get("tool_calls") or ()]
    said = "".join(f"{call.get('name') or ''}{call.get('arguments') or ''}" for call in calls)
    return ("tool_calls", said) if calls else ("none", "")
