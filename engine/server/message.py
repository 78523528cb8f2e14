"""A chat answer's text taken apart: reasoning, content and tool calls, however the text is cut into pieces.

Markers are looked for in the growing text; an end of it that a marker could begin with is held back until it is decided.
So any split of the same text gives the same message.

Formats: think tags as Qwen3, DeepSeek and Kimi K2 write them; tool calls as JSON between tags (Hermes, Qwen3), as tags for every
argument (Qwen3-Coder), and as Kimi K2 writes them, whose ids go back to the client unchanged because its template wants them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.server.xml_arguments import XmlArguments
from engine.text_stream import first_of, undecided

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"
FUNCTION = "<function="
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL, KIMI_ARGUMENTS, KIMI_CALLED = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

MARKERS = (THINK, THOUGHT, CALL, CALLED, SECTION, SECTION_END, KIMI_CALL, KIMI_ARGUMENTS, KIMI_CALLED)
"""All of them: text of tokens that are special, and would else be left out of the text."""

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')
"""How a JSON tool call begins, up to its arguments."""


@dataclass(frozen=True)
class Said:
    """More of the content, or of the reasoning before it."""

    kind: Literal["content", "reasoning_content"]
    text: str


@dataclass(frozen=True)
class CallBegan:
    """The `index`th tool call of the message."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallWent:
    """More of a tool call's arguments, as JSON text."""

    index: int
    arguments: str


Part = Said | CallBegan | CallWent
State = Literal[
    "content",
    "reasoning",
    "json call",
    "json rest",
    "xml call",
    "xml name",
    "xml",
    "section",
    "kimi head",
    "kimi arguments",
]
Format = Literal["", "json", "xml", "kimi"]


@dataclass
class MessageParser:
    """`push` text as it comes, then `finish`. `reasons` looks for think tags, `tools` for calls in one format.

    `inside`: the prompt has opened the reasoning already. `call_id` names a call whose format gives it no id. `schemas`: each
    function's parameters by name, which the format with a tag for every argument needs. `thinks_first`: reasoning comes before all
    content or not at all, and think tags in the content are part of it.
    """

    reasons: bool
    tools: Format
    inside: bool = False
    call_id: Callable[[int], str] = lambda index: f"call_{index}"
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    thinks_first: bool = False
    calls: int = 0
    _state: State = "content"
    _held: str = ""
    _answers: bool = False  # content has begun, or reasoning has ended
    _trims: bool = False  # blanks are left out until something else comes
    _scan: JsonScan = field(default_factory=lambda: JsonScan())
    _xml: XmlArguments = field(default_factory=lambda: XmlArguments({}))

    def __post_init__(self) -> None:
        if self.inside and self.reasons:
            self._state, self._trims = "reasoning", True

    def push(self, text: str) -> list[Part]:
        """What `text` makes certain."""
        self._held += text
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """What was held back, once no more text comes. A call that never began in earnest is content as it stands."""
        parts = self.push("")
        rest, self._held = self._held, ""
        if self._state == "reasoning":
            self._say(parts, "reasoning_content", rest.rstrip())
        elif self._state == "content":
            self._say(parts, "content", rest)
        elif self._state in ("json call", "xml call"):
            self._say(parts, "content", CALL + rest)
        elif self._state == "xml name":
            self._say(parts, "content", FUNCTION + rest)
        elif self._state == "xml" and (more := self._xml.finish()):
            parts.append(CallWent(self.calls - 1, more))
        elif self._state == "kimi arguments" and rest:
            parts.append(CallWent(self.calls - 1, rest))
        return parts

    def _advance(self, parts: list[Part]) -> bool:
        """One step; False where more text is needed."""
        match self._state:
            case "content":
                return self._text(parts, "content", ((THINK, "reasoning"),) if self._may_think() else ())
            case "reasoning":
                return self._text(parts, "reasoning_content", ((THOUGHT, "content"),))
            case "json call":
                return self._json_head(parts)
            case "json rest":
                return self._json_rest(parts)
            case "xml call":
                return self._xml_call(parts)
            case "xml name":
                return self._xml_name(parts)
            case "xml":
                return self._xml_arguments(parts)
            case "section":
                return self._marker(((KIMI_CALL, "kimi head"), (SECTION_END, "content")))
            case "kimi head":
                return self._kimi_head(parts)
            case "kimi arguments":
                return self._kimi_arguments(parts)

    def _may_think(self) -> bool:
        """Whether think tags are looked for in the content."""
        start = self._held.lstrip()
        first = not self._answers and (start.startswith(THINK) or THINK.startswith(start))
        return self.reasons and (first or not self.thinks_first)

    def _text(
        self,
        parts: list[Part],
        kind: Literal["content", "reasoning_content"],
        ways: tuple[tuple[str, State], ...],
    ) -> bool:
        """Give out text up to a marker that leads elsewhere; tool calls end reasoning as well as content."""
        kind_state: State = "content" if kind == "content" else "reasoning"
        calls: dict[str, tuple[tuple[str, State], ...]] = {
            "": (),
            "json": ((CALL, "json call"),),
            # The outer tags are left out at times, before a call and after it.
            "xml": ((CALL, "xml call"), (FUNCTION, "xml name"), (CALLED, kind_state)),
            "kimi": ((SECTION, "section"), (KIMI_CALL, "kimi head")),
        }
        leads: dict[str, State] = dict((*ways, *calls[self.tools]))
        found = first_of(self._held, tuple(leads))
        if found is not None:
            start, marker = found
            before, self._held = self._held[:start], self._held[start + len(marker) :]
            self._say(parts, kind, before.rstrip() if kind == "reasoning_content" or marker != THINK else before)
            self._state, self._trims = leads[marker], True
            self._answers = self._answers or marker == THOUGHT
            return True
        sure = len(self._held) - undecided(self._held, tuple(leads))
        # Blanks before a marker are left out, so they wait for what follows them.
        sure = len(self._held[:sure].rstrip()) if leads else sure
        self._say(parts, kind, self._held[:sure])
        self._held = self._held[sure:]
        return False

    def _say(self, parts: list[Part], kind: Literal["content", "reasoning_content"], text: str) -> None:
        text = text.lstrip() if self._trims else text
        if text:
            self._trims = False
            self._answers = self._answers or (kind == "content" and not text.isspace())
            parts.append(Said(kind, text))

    def _marker(self, ways: tuple[tuple[str, State], ...]) -> bool:
        """Skip to the first of some markers and go where it leads."""
        found = first_of(self._held, tuple(marker for marker, _ in ways))
        if found is None:
            keep = undecided(self._held, tuple(marker for marker, _ in ways))
            self._held = self._held[len(self._held) - keep :]
            return False
        start, marker = found
        self._held = self._held[start + len(marker) :]
        self._state, self._trims = dict(ways)[marker], True
        return True

    def _json_head(self, parts: list[Part]) -> bool:
        """The name of a JSON call; its arguments then go out as they come. Keys in another order: read when it is whole."""
        head = _HEAD.match(self._held)
        if head is not None and head.end() < len(self._held):
            self._begin(parts, json.loads(head[1]))
            self._held = self._held[head.end() :]
            self._state, self._scan = "json rest", JsonScan()
            return True
        end = self._held.find(CALLED)
        if end < 0:
            return False
        whole, self._held = self._held[:end], self._held[end + len(CALLED) :]
        self._state, self._trims = "content", True
        call = _read_call(whole)
        if call is None:
            self._trims = False
            self._say(parts, "content", CALL + whole + CALLED)
        else:
            self._begin(parts, call[0])
            parts.append(CallWent(self.calls - 1, call[1]))
        return True

    def _json_rest(self, parts: list[Part]) -> bool:
        used = self._scan.take(self._held)
        if used:
            parts.append(CallWent(self.calls - 1, self._held[:used]))
            self._held = self._held[used:]
        return self._scan.ended and self._marker(((CALLED, "content"),))

    def _xml_call(self, parts: list[Part]) -> bool:
        """Behind the outer tag: a function's name comes next, or something that is no call of this kind."""
        begun = self._held.lstrip()
        if FUNCTION.startswith(begun) or (begun.startswith(FUNCTION) and ">" not in begun):
            return False
        if begun.startswith(FUNCTION):
            self._held, self._state = begun[len(FUNCTION) :], "xml name"
        elif begun.startswith("{"):
            self._state = "json call"
        else:
            self._trims = False
            self._say(parts, "content", CALL)
            self._state = "content"
        return True

    def _xml_name(self, parts: list[Part]) -> bool:
        name, closed, rest = self._held.partition(">")
        if not closed:
            return False
        self._begin(parts, name.strip())
        self._held, self._state = rest, "xml"
        self._xml = XmlArguments(self.schemas.get(name.strip(), {}))
        return True

    def _xml_arguments(self, parts: list[Part]) -> bool:
        written = self._xml.take(self._held)
        self._held = self._xml.rest
        if written:
            parts.append(CallWent(self.calls - 1, written))
        if self._xml.ended:
            self._state, self._trims = "content", True
        return self._xml.ended

    def _kimi_head(self, parts: list[Part]) -> bool:
        name, marker, rest = self._held.partition(KIMI_ARGUMENTS)
        if not marker:
            return False
        call_id = name.strip()
        self._held, self._state = rest, "kimi arguments"
        self._begin(parts, call_id.removeprefix("functions.").rpartition(":")[0] or call_id, call_id)
        return True

    def _kimi_arguments(self, parts: list[Part]) -> bool:
        end = self._held.find(KIMI_CALLED)
        sure = end if end >= 0 else len(self._held) - undecided(self._held, (KIMI_CALLED,))
        if sure > 0:
            parts.append(CallWent(self.calls - 1, self._held[:sure]))
        self._held = self._held[sure:]
        if end < 0:
            return False
        self._held, self._state = self._held[len(KIMI_CALLED) :], "section"
        return True

    def _begin(self, parts: list[Part], name: str, call_id: str | None = None) -> None:
        parts.append(CallBegan(self.calls, call_id or self.call_id(self.calls), name))
        self.calls += 1


@dataclass
class JsonScan:
    """Where a JSON value ends in text that comes in pieces: an object, a list, or a text."""

    ended: bool = False
    _depth: int = 0
    _quoted: bool = False
    _escaped: bool = False

    def take(self, text: str) -> int:
        """Characters of `text` that belong to the value."""
        for place, character in enumerate(text):
            if self.ended:
                return place
            if self._quoted:
                self._quoted = character != '"' or self._escaped
                self._escaped = character == "\\" and not self._escaped
                self.ended = not self._quoted and self._depth == 0
            elif character == '"':
                self._quoted = True
            elif character in "[{":
                self._depth += 1
            elif character in "]}":
                self._depth -= 1
                self.ended = self._depth <= 0
                if self._depth < 0:  # the end of what is around a bare number or word
                    return place
        return len(text)


def _read_call(text: str) -> tuple[str, str] | None:
    """(name, arguments as JSON text) of a whole JSON call, None where it is none."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return call["name"], json.dumps(call.get("arguments", call.get("parameters", {})), ensure_ascii=False)


def merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind joined: the message, whatever pieces it came in."""
    whole: list[Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, Said) and isinstance(last, Said) and last.kind == part.kind:
            whole[-1] = Said(part.kind, last.text + part.text)
        elif isinstance(part, CallWent) and isinstance(last, CallWent) and last.index == part.index:
            whole[-1] = CallWent(part.index, last.arguments + part.arguments)
        else:
            whole.append(part)
    return whole
