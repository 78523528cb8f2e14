"""A tool call's arguments as Qwen3-Coder writes them, between tags, turned into JSON text as they come.

    <parameter=city>
    Paris
    </parameter>
    <parameter=days>
    3
    </parameter>
    </function>

One line break after the opening tag and one before the closing tag belong to the tags. Which values are texts and which are JSON
the function's own schema says; what it does not say is text. A closing tag that was left out is where the next tag begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.text_stream import first_of, undecided

PARAMETER, PARAMETER_END, FUNCTION_END = "<parameter=", "</parameter>", "</function>"
_TAGS = (PARAMETER, FUNCTION_END)
_ENDS = tuple(before + tag for tag in (PARAMETER_END, *_TAGS) for before in ("", "\n"))


@dataclass
class XmlArguments:
    """`take` text as it comes, until `ended`. `properties`: the function's parameters by name, as JSON schemas."""

    properties: Mapping[str, Any]
    ended: bool = False
    _held: str = ""
    _name: str | None = None  # of the parameter whose value comes
    _fresh: bool = True  # nothing of its value has come yet
    _whole: bool = False  # its value is read when all of it is there
    _count: int = 0

    def take(self, text: str) -> str:
        """JSON text that `text` makes certain. What follows the function's end is left in `rest`."""
        self._held += text
        written = ""
        while not self.ended:
            more = self._between() if self._name is None else self._value()
            if more is None:
                break
            written += more
        return written

    @property
    def rest(self) -> str:
        """Text after the function's end."""
        return self._held if self.ended else ""

    def finish(self) -> str:
        """What was held back of a text, once no more comes."""
        if self._name is None or self._whole:
            return ""
        held, self._held = self._held, ""
        return _inside(held)

    def _between(self) -> str | None:
        """From one value's end to the next one's beginning, or to the end; None where more text is needed."""
        found = first_of(self._held, _TAGS)
        if found is None:
            keep = undecided(self._held, _TAGS)
            self._held = self._held[len(self._held) - keep :]
            return None
        start, tag = found
        after = self._held[start + len(tag) :]
        if tag == FUNCTION_END:
            self.ended, self._held = True, after
            return "}" if self._count else "{}"
        name, closed, after = after.partition(">")
        if not closed:
            return None
        self._name, self._held, self._fresh, self._whole = name.strip(), after, True, not self._is_text(name.strip())
        self._count += 1
        head = f"{json.dumps(self._name, ensure_ascii=False)}: "
        return ("{" if self._count == 1 else ", ") + head + ("" if self._whole else '"')

    def _value(self) -> str | None:
        if self._fresh:
            if not self._held:
                return None
            self._held, self._fresh = self._held.removeprefix("\n"), False
        found = first_of(self._held, _ENDS)
        if found is not None:
            start, tag = found
            value = self._held[:start]
            self._held = self._held[start + len(tag) :] if tag.endswith(PARAMETER_END) else self._held[start:]
            name, self._name = self._name, None
            return self._read(name or "", value) if self._whole else _inside(value) + '"'
        if self._whole:
            return None
        sure = len(self._held) - undecided(self._held, _ENDS)
        if not sure:
            return None
        value, self._held = self._held[:sure], self._held[sure:]
        return _inside(value)

    def _is_text(self, name: str) -> bool:
        return set(kinds_of(self.properties.get(name))) <= {"string"}

    def _read(self, name: str, value: str) -> str:
        """JSON for a value that need not be a text; one that is no JSON of its kind is a text all the same."""
        word = value.strip()
        word = word.lower() if word.lower() in ("true", "false", "null") else word
        try:
            read = json.loads(word, parse_constant=_no_json)
        except ValueError:
            read = value
        kinds = kinds_of(self.properties.get(name))
        if isinstance(read, str) or ("string" in kinds and _kind(read) not in kinds):
            return json.dumps(read if isinstance(read, str) and "string" not in kinds else value, ensure_ascii=False)
        return word


def kinds_of(schema: Any) -> tuple[str, ...]:
    """The JSON types a parameter may have, as far as its schema names them."""
    if not isinstance(schema, Mapping):
        return ()
    kinds: list[Any] = []
    ways = [way for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list) for way in schema[key]]
    for part in (schema, *ways):
        named = part.get("type") if isinstance(part, Mapping) else None
        kinds += named if isinstance(named, list) else [named]
    return tuple(kind for kind in kinds if isinstance(kind, str))


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _kind(value: Any) -> str:
    """The JSON type of a value."""
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _inside(text: str) -> str:
    """`text` as it stands between a JSON text's quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
