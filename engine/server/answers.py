"""What an answer looks like on the wire: one shape for completions, one for chat, over the same facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from engine.events import Finished
from engine.requests import Ended


@dataclass(frozen=True)
class Facts:
    """What stands beside the content of an answer or a piece of it. `finish`: another word for how it ended."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, Any] | None = None
    ended: Ended | None = None
    finish: str | None = None


@dataclass(frozen=True)
class Answer:
    """The head that every object of one answer carries, and how its text is put. `token_ids`: give the ids as well."""

    kind: Literal["completion", "chat"]
    id: str
    created: int  # epoch seconds
    model: str
    fingerprint: str
    token_ids: bool

    def whole(self, content: dict[str, Any], facts: Facts) -> dict[str, Any]:
        """The answer in one object; `content` is `text` or the `message`. The facts tell how it ended."""
        name = "text_completion" if self.kind == "completion" else "chat.completion"
        assert facts.ended is not None
        return {
            **self._head(name),
            "choices": [self._choice(content, facts)],
            "usage": usage(facts.ended.record),
            "speculation": speculation(facts.ended.record),
        }

    def opening(self) -> dict[str, Any] | None:
        """The chunk before any text: chat names the role there."""
        if self.kind == "completion":
            return None
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, Facts())

    def more(self, content: dict[str, Any], facts: Facts) -> dict[str, Any]:
        """A chunk with more of the answer; `content` is `text` or a `delta`."""
        return self._chunk(content, facts)

    def closing(self, facts: Facts) -> dict[str, Any]:
        """The chunk that says why the answer ended, with its speculation figures."""
        assert facts.ended is not None
        content: dict[str, Any] = {"text": ""} if self.kind == "completion" else {"delta": {}}
        return {**self._chunk(content, facts), "speculation": speculation(facts.ended.record)}

    def usage_chunk(self, ended: Ended) -> dict[str, Any]:
        """The chunk after the last, with no choices: clients break where usage rides on one that has some."""
        return {**self._head(self._chunk_name), "choices": [], "usage": usage(ended.record)}

    @property
    def _chunk_name(self) -> str:
        return "text_completion" if self.kind == "completion" else "chat.completion.chunk"

    def _head(self, name: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _chunk(self, content: dict[str, Any], facts: Facts) -> dict[str, Any]:
        return {**self._head(self._chunk_name), "choices": [self._choice(content, facts)], "usage": None}

    def _choice(self, content: dict[str, Any], facts: Facts) -> dict[str, Any]:
        choice = {
            "index": 0,
            **content,
            "logprobs": facts.logprobs,
            "finish_reason": None if facts.ended is None else facts.finish or facts.ended.finish,
            "stop_reason": None if facts.ended is None else facts.ended.stop,
        }
        return {**choice, "token_ids": facts.token_ids} if self.token_ids else choice


def usage(record: Finished) -> dict[str, Any]:
    """OpenAI's usage object; completion_tokens counts every token told of, an end of text included."""
    return {
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.output_tokens,
        "total_tokens": record.prompt_tokens + record.output_tokens,
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
    }


def speculation(record: Finished) -> dict[str, Any]:
    """Exact step counts (contracts.md section 4). The first token comes from prefill and belongs to no step."""
    return {
        "steps": record.sums.steps,
        "commit_lengths_hist": list(record.sums.hist),
        "decode_s": round(record.sums.wall_ms / 1000.0, 6),
        "prefill_s": round(record.prefill_ms / 1000.0, 6),
        "queue_s": round(record.queue_ms / 1000.0, 6),
        "cached_tokens": record.cached_tokens,
        **({"lookup_tokens": record.sums.lookup_tokens} if record.looks_up else {}),
    }
