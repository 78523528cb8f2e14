"""SGLang as a playbook sees it: its pace follows from its arguments, so that a sweep has something to find.

    measured_stand_in.py sglang.launch_server ARGUMENTS…

A step costs 4 ms and 0.1 ms a node of the tree; a tree of 16 nodes keeps four tokens, a smaller one two, a larger one five.
The real engine needs a GPU. Standard library only.
"""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "playbooks"))
from foreign_engines import CONTEXT, SGLang


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


ALGORITHM = option("--speculative-algorithm")
BUDGET = int(option("--speculative-ddtree-budget", "64"))


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
        return super().do_POST()

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
