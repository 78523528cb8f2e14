"""Telling: the engine's outputs for one answer -> what goes over the wire, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.requests import Delta, Ended
from engine.server.answers import Answer, Facts
from engine.server.logprobs import LogprobWriter
from engine.server.message import CallBegan, CallWent, MessageParser, Part, Said, merged


@dataclass
class Telling:
    """One answer's wire shape, its log-probabilities, and what takes its text apart (None: the text is the content)."""

    answer: Answer
    logprobs: LogprobWriter
    parser: MessageParser | None

    def whole(self, deltas: Sequence[Delta], ended: Ended) -> dict[str, Any]:
        """The complete answer."""
        text = "".join(delta.text for delta in deltas)
        tokens = [token for delta in deltas for token in delta.token_ids]
        logprobs = self.logprobs.write([token for delta in deltas for token in delta.logprobs])
        if self.answer.kind == "completion":
            return self.answer.whole({"text": text}, Facts(tokens, logprobs, ended))
        message = {"role": "assistant", "content": text}
        if self.parser is not None:
            message = message_of(merged([*self.parser.push(text), *self.parser.finish()]))
        return self.answer.whole({"message": message}, Facts(tokens, logprobs, ended, self._finish(ended)))

    def chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Chunks for one delta, none where there is nothing to say yet. Its token facts ride on the first."""
        contents = self._contents(delta.text)
        logprobs = self.logprobs.write(delta.logprobs)
        if not contents and (logprobs is not None or self.answer.token_ids):
            contents = [{"text": ""} if self.answer.kind == "completion" else {"delta": {"content": ""}}]
        for number, content in enumerate(contents):
            facts = Facts(list(delta.token_ids), logprobs) if number == 0 else Facts()
            yield self.answer.more(content, facts)

    def last_chunks(self, ended: Ended) -> Iterator[dict[str, Any]]:
        """What the parser still held, then the chunk that says how the answer ended."""
        for part in self.parser.finish() if self.parser is not None else ():
            yield self.answer.more({"delta": delta_of(part)}, Facts())
        yield self.answer.closing(Facts(ended=ended, finish=self._finish(ended)))

    def _contents(self, text: str) -> list[dict[str, Any]]:
        if self.parser is not None:
            return [{"delta": delta_of(part)} for part in merged(self.parser.push(text))]
        if not text:
            return []
        return [{"text": text} if self.answer.kind == "completion" else {"delta": {"content": text}}]

    def _finish(self, ended: Ended) -> str | None:
        """An answer that ends of itself after calling tools ends because of them."""
        return "tool_calls" if self.parser is not None and self.parser.calls and ended.finish == "stop" else None


def delta_of(part: Part) -> dict[str, Any]:
    """A part of a message as a chat chunk's delta."""
    match part:
        case Said():
            return {part.kind: part.text}
        case CallBegan():
            function = {"name": part.name, "arguments": ""}
            return {"tool_calls": [{"index": part.index, "id": part.id, "type": "function", "function": function}]}
        case CallWent():
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.arguments}}]}


def message_of(parts: Sequence[Part]) -> dict[str, Any]:
    """Merged parts as a chat message; `content` is null where it only calls tools."""
    said = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case Said():
                said[part.kind] += part.text
            case CallBegan():
                function = {"name": part.name, "arguments": ""}
                calls.append({"id": part.id, "type": "function", "function": function})
            case CallWent():
                calls[part.index]["function"]["arguments"] += part.arguments
    message: dict[str, Any] = {"role": "assistant", "content": said["content"] or (None if calls else "")}
    if said["reasoning_content"]:
        message["reasoning_content"] = said["reasoning_content"]
    return {**message, "tool_calls": calls} if calls else message
