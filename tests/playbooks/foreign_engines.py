"""Stand-ins for SGLang and vLLM, which need a GPU: their endpoints and shapes of answers, with steps at a known pace."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

COMMIT = 3
CONTEXT = 4096
STEP_S = 0.004


class _Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    tokenizes: ClassVar[bool] = True
    seen: ClassVar[list[dict[str, Any]]] = []

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self, data: Any, status: int = 200) -> None:
        text = data.encode() if isinstance(data, str) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self, chunks: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return found

    def tokenized(self, body: dict[str, Any]) -> None:
        if not self.tokenizes or "prompt" not in body:
            return self.answer({"error": "no"}, 404)
        return self.answer({"tokens": list(body["prompt"].encode())})


class SGLang(_Engine):
    """Text and ids come as all there is so far."""

    seen: ClassVar[list[dict[str, Any]]] = []
    commit: ClassVar[int] = COMMIT
    step_s: ClassVar[float] = STEP_S
    drafting: ClassVar[bool] = True

    def do_GET(self) -> None:
        info = {
            "version": "0.5.9", "model_path": "/m", "speculative_algorithm": "DDTREE", "speculative_num_draft_tokens": 65,
            "page_size": 64, "tp_size": 8, "attention_backend": "triton", "max_total_num_tokens": 142304, "internal_states": [],
        }  # fmt: skip
        answers = {"/server_info": info, "/v1/models": {"data": [{"id": "/m", "max_model_len": CONTEXT}]}}
        self.answer(answers.get(self.path, {}), 200 if self.path in answers else 404)

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/tokenize":
            return self.tokenized(body)
        self.seen.append(body)
        wanted = body["sampling_params"]["max_new_tokens"]
        prompt = len(body["input_ids"]) if "input_ids" in body else len(body["text"]) // 4

        def chunks() -> Iterator[dict[str, Any]]:
            ids, steps = [7], 0
            while True:
                meta: dict[str, Any] = {
                    "prompt_tokens": prompt,
                    "completion_tokens": len(ids),
                    "cached_tokens": 0,
                    "finish_reason": None,
                }
                if len(ids) == wanted:
                    meta |= {
                        "finish_reason": {"type": "length"},
                        **({"spec_verify_ct": steps} if self.drafting else {}),
                    }
                yield {"text": "".join(chr(97 + i % 26) for i in ids), "output_ids": list(ids), "meta_info": meta}
                if len(ids) == wanted:
                    return
                time.sleep(self.step_s)
                steps += 1
                ids += [(len(ids) + i) * 7919 % 5003 for i in range(min(self.commit, wanted - len(ids)))]

        return self.stream(chunks())


class VLLM(_Engine):
    """Counts drafts in Prometheus counters; a step's tokens come in one chunk."""

    counting: ClassVar[threading.Lock] = threading.Lock()
    drafts: ClassVar[int] = 0
    accepted: ClassVar[int] = 0
    seen: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        if self.path == "/metrics":
            kind = type(self)
            return self.answer(
                '# TYPE vllm:spec_decode_num_drafts counter\nvllm:spec_decode_num_drafts_total{engine="0"} '
                f'{kind.drafts}.0\nvllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {kind.accepted}.0\n'
                'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9\n'
            )
        answers = {
            "/version": {"version": "0.19.0"},
            "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": CONTEXT}]},
        }
        return self.answer(answers.get(self.path, {}), 200 if self.path in answers else 404)

    def do_POST(self) -> None:
        body, kind = self.body(), type(self)
        if self.path == "/tokenize":
            return self.tokenized(body)
        self.seen.append(body)
        wanted = body["max_tokens"]

        def chunks() -> Iterator[dict[str, Any]]:
            sent = 1
            yield {"choices": [{"text": "a", "token_ids": [7]}]}
            while sent < wanted:
                time.sleep(STEP_S)
                kept = min(COMMIT, wanted - sent)
                ids = [(sent * 7919 + i * 104729) % 5003 for i in range(kept)]
                yield {"choices": [{"text": "b" * kept, "token_ids": ids}]}
                with kind.counting:
                    kind.drafts, kind.accepted = kind.drafts + 1, kind.accepted + kept - 1
                sent += kept
            yield {"choices": [{"text": "", "finish_reason": "length"}]}
            yield {"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": sent}}

        return self.stream(chunks())


class SGLangWithoutTokenizer(SGLang):
    """An older one that does not count tokens for its clients."""

    tokenizes: ClassVar[bool] = False
    seen: ClassVar[list[dict[str, Any]]] = []


@contextmanager
def serving_stand_in(kind: type[_Engine]) -> Iterator[str]:
    """The stand-in's base URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
