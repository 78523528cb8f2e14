"""JSON, and what a JSON schema allows of it, as a grammar over bytes.

The grammar is narrower than the schema: members come in the schema's order, with none beyond those it names; blanks stand only
where printers put them; numbers have at most 16 digits before the point, after it, and 2 in the exponent. Whatever it
describes holds under the schema. A keyword that is not enforced is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.grammar.automaton import Grammar, Symbol

DEEPEST = 24
"""How many objects and lists may stand in one another where the schema does not say."""
MOST_ITEMS = 256
MOST_INDENT = 32

_SAYS_NOTHING = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "$comment")
)
_OF_KIND: Mapping[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "minItems", "maxItems")),
}
_KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_WHOLE = frozenset(
    ("$ref", "anyOf", "enum", "const", "type", "$defs", "definitions", *_OF_KIND["object"], *_OF_KIND["array"])
)


class UnsupportedSchemaError(ValueError):
    """A schema with something in it that is not enforced here: where, and what."""


@dataclass
class JsonForm:
    """Rules for JSON within one grammar."""

    grammar: Grammar
    _named: dict[str, int] = field(default_factory=dict)
    _references: dict[str, int] = field(default_factory=dict)
    _root: Mapping[str, Any] = field(default_factory=dict)

    def value_of(self, schema: Any, where: str = "schema") -> int:
        """The rule of the values that hold under a schema. Raises UnsupportedSchemaError."""
        self._root = schema if isinstance(schema, Mapping) else {}
        self._references.clear()
        return self._of(schema, where)

    def any_object(self) -> int:
        """The rule of any object."""
        return self._object_of_any(DEEPEST)

    # ── what schemas say ──

    def _of(self, schema: Any, where: str) -> int:
        if schema is True:
            return self._anything(DEEPEST)
        if not isinstance(schema, Mapping):
            raise UnsupportedSchemaError(f"{where} is no schema")
        unknown = sorted(schema.keys() - _WHOLE - _SAYS_NOTHING)
        if unknown:
            raise UnsupportedSchemaError(f"{where}.{unknown[0]} is not supported")
        for key in ("$ref", "anyOf", "enum", "const"):
            if key in schema:
                beside = sorted(schema.keys() - _SAYS_NOTHING - {key, "$defs", "definitions", "type"})
                if beside or (key in ("$ref", "anyOf") and "type" in schema):
                    raise UnsupportedSchemaError(f"{where}: {key} beside {(*beside, 'type')[0]} is not supported")
        if "$ref" in schema:
            return self._reference(schema["$ref"], where)
        if "anyOf" in schema:
            ways = self._list(schema["anyOf"], f"{where}.anyOf")
            return self.grammar.rule(*([self._of(way, f"{where}.anyOf.{i}")] for i, way in enumerate(ways)))
        kinds = self._kinds(schema, where)
        if "enum" in schema or "const" in schema:
            values = [schema["const"]] if "const" in schema else self._list(schema["enum"], f"{where}.enum")
            fitting = [value for value in values if _is_of(value, kinds)]
            if not fitting:
                raise UnsupportedSchemaError(f"{where} allows no value")
            return self.grammar.rule(*(self.grammar.word(json.dumps(value, ensure_ascii=False)) for value in fitting))
        for kind, keys in _OF_KIND.items():
            out_of_place = sorted(keys & schema.keys()) if kind not in kinds else ()
            if out_of_place and "type" in schema:
                raise UnsupportedSchemaError(f"{where}.{out_of_place[0]} belongs to type {kind}")
        return self.grammar.rule(*([self._kind(kind, schema, where)] for kind in kinds))

    def _kinds(self, schema: Mapping[str, Any], where: str) -> Sequence[str]:
        named = schema.get("type")
        if named is None:
            said = [kind for kind, keys in _OF_KIND.items() if keys & schema.keys()]
            if said and not {"enum", "const"} & schema.keys():
                return said  # narrower than the schema, which would let values of every other kind through
            return _KINDS
        kinds = [named] if isinstance(named, str) else named
        if not isinstance(kinds, list) or not kinds or any(kind not in _KINDS for kind in kinds):
            raise UnsupportedSchemaError(f"{where}.type is not one of {', '.join(_KINDS)}")
        return kinds

    def _kind(self, kind: str, schema: Mapping[str, Any], where: str) -> int:
        if kind == "object":
            return self._object(schema, where)
        if kind == "array":
            return self._array(schema, where)
        return self._scalar(kind)

    def _reference(self, target: Any, where: str) -> int:
        if not isinstance(target, str) or not target.startswith("#"):
            raise UnsupportedSchemaError(f"{where}.$ref leads out of the schema")
        if target not in self._references:
            found: Any = self._root
            for step in filter(None, target[1:].split("/")):
                name = step.replace("~1", "/").replace("~0", "~")
                if not isinstance(found, Mapping) or name not in found:
                    raise UnsupportedSchemaError(f"{where}.$ref leads to {target}, which is not there")
                found = found[name]
            if isinstance(found, Mapping) and "$ref" in found:
                raise UnsupportedSchemaError(f"{where}.$ref leads to another $ref")
            number = self._references[target] = self.grammar.rule()
            self.grammar.rules[number] = [(self._of(found, target),)]
        return self._references[target]

    def _object(self, schema: Mapping[str, Any], where: str) -> int:
        members, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        needed = self._list(schema.get("required", []), f"{where}.required", empty=True)
        if not isinstance(members, Mapping) or not all(isinstance(name, str) for name in needed):
            raise UnsupportedSchemaError(f"{where}.properties is no object, or required no list of names")
        absent = [name for name in needed if name not in members]
        if absent and more is False:
            raise UnsupportedSchemaError(f"{where}.required names {absent[0]}, which nothing allows")
        if not members and not absent:
            of_any = more if isinstance(more, Mapping) else True
            return (
                self._any_members(self._of(of_any, f"{where}.additionalProperties"))
                if more is not False
                else self._none()
            )
        named = {**members, **dict.fromkeys(absent, more)}
        pairs = [
            ((*self._member(name), self._of(inner, f"{where}.properties.{name}")), name in needed)
            for name, inner in named.items()
        ]
        first = following = self.grammar.rule((self._blank(), *self.grammar.word("}")))
        for pair, is_needed in reversed(pairs):
            begun = (self._blank(), *pair, following)
            gone_on = (*self.grammar.word(","), self._blank(), *pair, following)
            skipped: list[tuple[Symbol, ...]] = [] if is_needed else [(first,)]
            first = self.grammar.rule(begun, *skipped)
            following = self.grammar.rule(gone_on, *([] if is_needed else [(following,)]))
        return self.grammar.rule((*self.grammar.word("{"), first))

    def _array(self, schema: Mapping[str, Any], where: str) -> int:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        for key in {"minItems", "maxItems"} & schema.keys():
            if type(schema[key]) is not int or not 0 <= schema[key] <= MOST_ITEMS:
                raise UnsupportedSchemaError(f"{where}.{key} is not a whole number of 0 to {MOST_ITEMS}")
        if high is not None and high < low:
            raise UnsupportedSchemaError(f"{where}.maxItems is less than minItems")
        return self._items(self._of(schema.get("items", True), f"{where}.items"), low, high)

    def _items(self, item: int, low: int = 0, high: int | None = None) -> int:
        word, blank = self.grammar.word, self._blank()
        closing: tuple[Symbol, ...] = (blank, *word("]"))
        another: tuple[Symbol, ...] = (*word(","), blank, item)
        if high is None:
            rest = self.grammar.rule((*another * max(0, low - 1), self.grammar.repeated(*another), *closing))
        else:
            rest = self.grammar.rule(
                (*another * max(0, low - 1), self.grammar.at_most(high - max(1, low), *another), *closing)
            )
        ways = [] if high == 0 else [(*word("["), blank, item, rest)]
        return self.grammar.rule(*ways, *([(*word("["), *closing)] if low == 0 else []))

    def _list(self, value: Any, where: str, *, empty: bool = False) -> list[Any]:
        if not isinstance(value, list) or not (value or empty):
            raise UnsupportedSchemaError(f"{where} is no list with something in it")
        return value

    # ── JSON itself ──

    def _anything(self, depth: int) -> int:
        """Any value, with at most so many objects and lists in one another."""
        name = f"anything {depth}"
        if name not in self._named:
            ways = [[self._scalar(kind)] for kind in ("string", "number", "boolean", "null")]
            if depth:
                ways += [[self._object_of_any(depth)], [self._items(self._anything(depth - 1))]]
            self._named[name] = self.grammar.rule(*ways)
        return self._named[name]

    def _object_of_any(self, depth: int) -> int:
        name = f"object {depth}"
        if name not in self._named:
            self._named[name] = self._any_members(self._anything(depth - 1))
        return self._named[name]

    def _any_members(self, value: int) -> int:
        word, blank = self.grammar.word, self._blank()
        pair: tuple[Symbol, ...] = (self._scalar("string"), *word(":"), blank, value)
        rest = self.grammar.repeated(*word(","), blank, *pair)
        return self.grammar.rule((*word("{"), blank, *pair, rest, blank, *word("}")), (self._none(),))

    def _none(self) -> int:
        return self.grammar.rule((*self.grammar.word("{"), self._blank(), *self.grammar.word("}")))

    def _member(self, name: str) -> tuple[Symbol, ...]:
        return (*self.grammar.word(json.dumps(name, ensure_ascii=False) + ":"), self._blank())

    def _blank(self) -> int:
        """Nothing, one blank, or a line break with an indent."""
        if "blank" not in self._named:
            indent = self.grammar.at_most(MOST_INDENT, frozenset(b" \t"))
            ways: list[tuple[Symbol, ...]] = [(), self.grammar.word(" "), (*self.grammar.word("\n"), indent)]
            self._named["blank"] = self.grammar.rule(*ways)
        return self._named["blank"]

    def _scalar(self, kind: str) -> int:
        if kind not in self._named:
            makers = {"string": self._string, "number": self._number, "integer": self._integer}
            words = {"boolean": ("true", "false"), "null": ("null",)}
            self._named[kind] = (
                makers[kind]() if kind in makers else self.grammar.rule(*(self.grammar.word(w) for w in words[kind]))
            )
        return self._named[kind]

    def _string(self) -> int:
        hexes, tail = frozenset(b"0123456789abcdefABCDEF"), frozenset(range(0x80, 0xC0))

        def span(low: int, high: int) -> frozenset[int]:
            return frozenset(range(low, high + 1))

        escape = self.grammar.rule(
            (frozenset(b'"\\/bfnrt'),),
            (*self.grammar.word("u"), hexes - frozenset(b"dD"), hexes, hexes, hexes),
            (*self.grammar.word("u"), frozenset(b"dD"), frozenset(b"01234567"), hexes, hexes),  # no half of a pair
        )
        character = self.grammar.rule(
            (span(0x20, 0x7F) - frozenset(b'"\\'),),
            (*self.grammar.word("\\"), escape),
            (span(0xC2, 0xDF), tail),
            (span(0xE0, 0xE0), span(0xA0, 0xBF), tail),
            (span(0xE1, 0xEC) | span(0xEE, 0xEF), tail, tail),
            (span(0xED, 0xED), span(0x80, 0x9F), tail),
            (span(0xF0, 0xF0), span(0x90, 0xBF), tail, tail),
            (span(0xF1, 0xF3), tail, tail, tail),
            (span(0xF4, 0xF4), span(0x80, 0x8F), tail, tail),
        )
        quote = self.grammar.word('"')
        return self.grammar.rule((*quote, self.grammar.repeated(character), *quote))

    def _integer(self) -> int:
        digits = frozenset(b"0123456789")
        whole = self.grammar.rule((frozenset(b"0"),), (digits - frozenset(b"0"), self.grammar.at_most(15, digits)))
        return self.grammar.rule((self.grammar.optional(frozenset(b"-")), whole))

    def _number(self) -> int:
        digits = frozenset(b"0123456789")
        fraction = self.grammar.optional(frozenset(b"."), digits, self.grammar.at_most(15, digits))
        exponent = self.grammar.optional(
            frozenset(b"eE"), self.grammar.optional(frozenset(b"+-")), digits, self.grammar.at_most(1, digits)
        )
        return self.grammar.rule((self._scalar("integer"), fraction, exponent))


def _is_of(value: Any, kinds: Sequence[str]) -> bool:
    """Whether a JSON value is of one of the types."""
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer" in kinds or "number" in kinds
    names: Mapping[type, str] = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)] in kinds
