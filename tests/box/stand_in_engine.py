"""SGLang and vLLM as far as a settings change sees them; the real ones need a GPU. Standard library only.

    stand_in_engine.py sglang.launch_server|vllm ARGUMENTS…

Arguments as theirs; a context above 100,000 fails while loading, as theirs does, with a traceback's last line.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONGEST = 100_000


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return

    def answer(self, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        sglang = sys.argv[1].startswith("sglang")
        if self.path == "/health":
            self.answer("")
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": "served", "max_model_len": int(option("--max-model-len", "4096"))}]})
        elif self.path == "/server_info" and sglang:
            self.answer(
                {
                    "model_path": option("--model-path"),
                    "context_length": int(option("--context-length", "0")) or None,
                    "page_size": int(option("--page-size", "1")),
                    "tp_size": 1,
                    "version": "stand-in",
                }
            )
        elif self.path == "/metrics":
            block = option("--block-size", "16")
            running = "sglang:num_running_reqs 0.0\nvllm:num_requests_running 0.0\n"
            self.answer(f'vllm:cache_config_info{{block_size="{block}",cache_dtype="auto"}} 1.0\n{running}')
        elif self.path == "/argv":
            self.answer(sys.argv[2:])
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == "served"
        self.answer({"usage": {"completion_tokens": asked["max_tokens"]}})


def main() -> None:
    context = int(option("--context-length", option("--max-model-len", "0")))
    if context > LONGEST:
        print("Traceback (most recent call last):", file=sys.stderr)
        sys.exit(f"ValueError: the KV pool holds {LONGEST} tokens, fewer than {context}")
    told = "chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=32768"
    print(f"[2026-05-04 10:22:31] max_total_num_tokens=142304, {told}, available_gpu_mem=9.87 GB", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


main()
