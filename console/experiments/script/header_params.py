"""The header's parameter tables: `[tool.ddtree.playbook.params.NAME]` -> Param, with every breach under its key."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Any

from console.experiments.params import PARAM_TYPES, Param, expression_names, range_fault, type_fault
from console.experiments.script import vocabulary
from console.experiments.script.block import Path
from console.experiments.script.expression import ExpressionError, parse_expression
from console.experiments.script.keys import looks_like_a_key
from console.experiments.script.nearest import did_you_mean
from console.experiments.script.schema import kind_of

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_RESERVED = ("engine", "min", "max")
_KEYS = ("type", "default", "min", "max", "choices", "pattern", "help")
_Wrongs = list[tuple[Path, str]]  # (key within the parameter's table, message)


def read_param(name: str, table: Any) -> tuple[Param | None, _Wrongs]:
    """One parameter, or None with what is wrong with its table. What concerns several parameters is not judged here."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _RESERVED:
        return None, [((), f"{name!r} is no parameter name: small letters, digits and _, and no reserved word")]
    if not isinstance(table, Mapping):
        return None, [((), f"parameter {name} is {kind_of(table)}, not a table with type and default")]
    wrongs: _Wrongs = [
        ((key,), f"unknown key {key!r} in parameter {name}{_near(key)}") for key in table if key not in _KEYS
    ]
    kind = table.get("type")
    if kind is None:
        return None, [*wrongs, ((), f"parameter {name} has no type; one of {', '.join(PARAM_TYPES)}")]
    if kind not in PARAM_TYPES:
        near = did_you_mean(str(kind), PARAM_TYPES) or f"; known: {', '.join(PARAM_TYPES)}"
        return None, [*wrongs, (("type",), f"parameter {name}: unknown type {kind!r}{near}")]
    shape = Param(name=name, type=kind)
    wrongs += [((key,), f"parameter {name}: {why}") for key, why in _wrong_attributes(shape, table)]
    if wrongs:
        return None, wrongs
    param = Param(
        name=name,
        type=kind,
        default=table.get("default", "" if kind == "secret" else None),
        min=table.get("min"),
        max=table.get("max"),
        choices=tuple(table.get("choices", ())),
        pattern=table.get("pattern"),
        help=table.get("help", ""),
        required="default" not in table and kind != "secret",
    )
    fault = None if param.required or kind == "secret" else type_fault(param, param.default)
    return (None, [(("default",), f"parameter {name}: the default {fault}")]) if fault else (param, [])


def _near(key: str) -> str:
    return did_you_mean(key, _KEYS) or f"; known: {', '.join(_KEYS)}"


def _wrong_attributes(shape: Param, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for edge in ("min", "max"):
        if edge not in table:
            continue
        value = table[edge]
        if not shape.numeric:
            yield edge, f"{edge} has no meaning for type {shape.type}"
        elif isinstance(value, str):
            try:
                parse_expression(value)
            except ExpressionError as error:
                yield edge, f"{edge} is no expression, at its character {error.offset + 1}: {error}"
        elif isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            yield edge, f"{edge} is {kind_of(value)}, not a number or an expression"
    if shape.type == "choice" or "choices" in table:
        yield from _wrong_choices(shape, table.get("choices"))
    if "pattern" in table:
        yield from _wrong_pattern(shape, table["pattern"])
    if "help" in table and (not isinstance(table["help"], str) or not table["help"].isprintable()):
        yield "help", "help must be one line of text"
    default = table.get("default")
    if shape.type == "str" and isinstance(default, str) and looks_like_a_key(shape.name, default):
        yield "default", "the default is a key; make it type secret, which is asked for and never stored"
    if shape.type == "secret" and table.get("default", "") != "":
        yield "default", "a secret has no default: it would stand in the script for all to read"


def _wrong_choices(shape: Param, choices: Any) -> Iterator[tuple[str, str]]:
    if shape.type != "choice":
        yield "choices", f"choices have no meaning for type {shape.type}; use type choice"
    elif not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
        yield "choices", "a choice needs choices, a list of strings"
    elif len(set(choices)) < len(choices):
        yield "choices", "choices names one twice"


def _wrong_pattern(shape: Param, expression: Any) -> Iterator[tuple[str, str]]:
    if shape.type != "str":
        yield "pattern", f"pattern has no meaning for type {shape.type}"
    elif not isinstance(expression, str):
        yield "pattern", f"pattern is {kind_of(expression)}, not a string"
    else:
        try:
            re.compile(expression)
        except re.error as error:
            yield "pattern", f"pattern is no regular expression: {error}"


def check_params(params: tuple[Param, ...]) -> Iterator[tuple[Path, str]]:
    """What concerns bounds across parameters: names in expressions, and every default within its own bounds."""
    known = {param.name for param in params} | set(vocabulary.ENGINE_FACTS)
    defaults = expression_names(params, {param.name: param.default for param in params if not param.required})
    for param in params:
        bad = False
        for edge, bound in (("min", param.min), ("max", param.max)):
            names = parse_expression(bound).names if isinstance(bound, str) else frozenset()
            for unknown in sorted(names - known):
                bad = True
                near = did_you_mean(unknown, known) or f"; known: {', '.join(sorted(known))}"
                yield (param.name, edge), f"parameter {param.name}: {edge} uses unknown {unknown!r}{near}"
            if param.name in names:
                bad = True
                yield (param.name, edge), f"parameter {param.name}: {edge} refers to itself"
        if bad or not param.numeric:
            continue
        if isinstance(param.min, int | float) and isinstance(param.max, int | float) and param.min > param.max:
            yield (param.name, "min"), f"parameter {param.name}: min {param.min} is above max {param.max}"
        elif not param.required and (why := range_fault(param, param.default, defaults)):
            yield (param.name, "default"), f"parameter {param.name}: the default {why}"
