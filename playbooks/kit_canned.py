"""A canned engine for `--selftest`: right answers in the right shape, and no model behind them."""

from __future__ import annotations

import http.server
import json
import os
import threading
from typing import Any, Mapping


class CannedEngine:
    """A stand-in for an engine, for `--selftest`: right answers in the right shape at a known speed, and no model.

    Steps keep three tokens and take 1 ms plus 1 us a token of context, by its own count; nothing is slept for.
    """

    COMMIT = 3
    MAX_CONTEXT = 4096

    def __enter__(self) -> CannedEngine:
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _CannedHandler)
        self.server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


class _CannedHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error is for the playbook."""

    def do_GET(self) -> None:
        answers: Mapping[str, Mapping[str, Any]] = {
            "/server_info": {
                "engine": "bundled", "version": "canned", "pid": os.getpid(), "started": 0.0, "invocation": None,
                "model": {"name": "canned"}, "drafter": {"path": "canned", "block_size": 16}, "settings": {"mode": "ddtree"},
                "settings_sha": "canned", "kv": {"capacity_tokens": CannedEngine.MAX_CONTEXT}, "requests": {"running": 0, "queued": 0},
            },
            "/v1/models": {"data": [{"id": "canned", "max_model_len": CannedEngine.MAX_CONTEXT}]},
        }  # fmt: skip
        self._answer(
            200 if self.path in answers else 404, answers.get(self.path, {"error": {"message": "no such path"}})
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            known = "prompt" in body  # it has no chat template
            return self._answer(200 if known else 400, {"tokens": list(body.get("prompt", "").encode("utf-8"))})
        prompt, wanted = len(body["prompt"]), body["max_tokens"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        steps, sent, decode_ms = 0, 1, 0.0
        self._event({"choices": [{"text": "a", "token_ids": [7]}]})
        while sent < wanted:
            kept = min(CannedEngine.COMMIT, wanted - sent)
            decode_ms += 1.0 + 0.001 * (prompt + sent)
            ids = [(sent * 7919 + place * 104729) % 50021 for place in range(kept)]
            self._event({"choices": [{"text": "b" * kept, "token_ids": ids}]})
            steps, sent = steps + 1, sent + kept
        counters = {
            "steps": steps,
            "commit_lengths_hist": [0, 0, steps],
            "decode_s": decode_ms / 1000,
            "prefill_s": prompt / 1e5,
        }
        self._event({"choices": [{"text": "", "finish_reason": "length"}], "speculation": counters})
        self._event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": sent}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
        return None

    def _event(self, data: Mapping[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode("utf-8") + b"\n\n")

    def _answer(self, status: int, data: Mapping[str, Any]) -> None:
        text = json.dumps(data).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
