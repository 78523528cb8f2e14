"""SGLang as a playbook sees it: its pace follows from its arguments, so that a sweep has something to find.

    measured_stand_in.py sglang.launch_server ARGUMENTS…

A step costs 4 ms and 0.1 ms a node of the tree; a tree of 16 nodes keeps four tokens, a smaller one two, a larger one five.
One of more than 64 starts well, and runs out of memory where two requests run beside each other.
The real engine needs a GPU. Standard library only.
"""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "playbooks"))
from foreign_engines import CONTEXT, SGLang


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


ALGORITHM = option("--speculative-algorithm")
BUDGET = int(option("--speculative-ddtree-budget", "64"))


LARGEST = 64


class Beside:
    """How many requests are answered now; a lock around it."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = Lock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


beside = Beside()


def kept() -> int:
    """Tokens a step."""
    if ALGORITHM == "DDTREE":
        return 2 if BUDGET < 16 else 4 if BUDGET == 16 else 5
    return 2 if ALGORITHM else 1


class Started(SGLang):
    """The engine that these arguments make."""

    commit = kept()
    step_s = 0.004 + 0.0001 * (BUDGET if ALGORITHM == "DDTREE" else 0)
    drafting = bool(ALGORITHM)

    def do_GET(self) -> None:
        info: dict[str, Any] = {
            "version": "stand-in", "model_path": option("--model-path"), "speculative_algorithm": ALGORITHM or None,
            "speculative_draft_model_path": option("--speculative-draft-model-path") or None,
            "speculative_ddtree_budget": BUDGET if ALGORITHM == "DDTREE" else None, "page_size": int(option("--page-size", "1")),
            "tp_size": 1, "attention_backend": option("--attention-backend"), "max_total_num_tokens": 100_000,
            "reasoning_parser": option("--reasoning-parser") or None,
        }  # fmt: skip
        answers = {
            "/server_info": info,
            "/health": "",
            "/v1/models": {"data": [{"id": "served", "max_model_len": CONTEXT}]},
            "/metrics": "sglang:num_running_reqs 0.0\n",
        }
        self.answer(answers.get(self.path, {}), 200 if self.path in answers else 404)

    def do_POST(self) -> None:
        if self.path == "/v1/completions":  # a change of settings asks for a few tokens
            return self.answer({"usage": {"completion_tokens": self.body()["max_tokens"]}})
        if self.path == "/v1/chat/completions":
            return self.chat(self.body()["max_tokens"])
        with beside:
            beside.count += 1
            crowded = beside.count > 1 and BUDGET > LARGEST
        try:
            if crowded:
                message = "CUDA out of memory. Tried to allocate 32.00 MiB"
                return self.answer({"error": {"message": message}}, 500)
            return super().do_POST()
        finally:
            with beside:
                beside.count -= 1

    def chat(self, tokens: int) -> None:
        """With a parser the text comes as reasoning, in chunks of three steps."""
        parser = option("--reasoning-parser")
        field, steps = ("reasoning_content", 3) if parser else ("content", 1)
        sizes = [1] + [self.commit * steps] * ((tokens - 1) // (self.commit * steps))
        usage = {"prompt_tokens": 40, "completion_tokens": sum(sizes)}
        said = [{"choices": [{"delta": {field: "x" * size}}]} for size in sizes]
        self.stream(
            iter([*said, {"choices": [{"delta": {}, "finish_reason": "length"}]}, {"choices": [], "usage": usage}])
        )


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Started).serve_forever()
