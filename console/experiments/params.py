"""Param: one parameter of a playbook, strictly typed; and the one place where its values are judged."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from console.errors import UsageError
from console.experiments.script.expression import ExpressionError, parse_expression
from console.experiments.script.nearest import did_you_mean

ParamType: TypeAlias = Literal["int", "float", "bool", "str", "choice", "int_list", "float_list", "duration", "secret"]
PARAM_TYPES: tuple[str, ...] = get_args(ParamType)
Bound: TypeAlias = int | float | str | None  # a string is an expression over params and `engine.max_context`

_NUMERIC = frozenset({"int", "float", "int_list", "float_list", "duration"})
_DURATION = re.compile(r"^(?P<count>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h)$")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "choice": "one of its choices",
    "int_list": "a list of integers",
    "float_list": "a list of numbers",
    "duration": 'a duration such as "90s", "5m" or "250ms"',
    "secret": "a string",
}


@dataclass(frozen=True)
class Param:
    """One parameter as the header declares it. Lists keep to `min` and `max` in each of their values."""

    name: str
    type: ParamType
    default: Any = None
    min: Bound = None
    max: Bound = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    help: str = ""
    required: bool = False  # no default: the operator must give a value

    @property
    def numeric(self) -> bool:
        """Whether `min` and `max` mean anything for it."""
        return self.type in _NUMERIC


def type_fault(param: Param, value: Any) -> str | None:
    """Why `value` is not of the parameter's type, or None. Nothing is converted: `"5"` is no int, `1` is no bool."""
    ok = {
        "int": lambda: _is_int(value),
        "float": lambda: _is_number(value),
        "bool": lambda: isinstance(value, bool),
        "str": lambda: isinstance(value, str),
        "secret": lambda: isinstance(value, str),
        "choice": lambda: isinstance(value, str),
        "int_list": lambda: isinstance(value, list | tuple) and all(map(_is_int, value)),
        "float_list": lambda: isinstance(value, list | tuple) and all(map(_is_number, value)),
        "duration": lambda: isinstance(value, str) and bool(_DURATION.match(value)),
    }[param.type]()
    if not ok:
        shown = "its value" if param.type == "secret" else _shown(value)
        return f"{shown} is not {_WORDS[param.type]}"
    if param.type == "choice" and value not in param.choices:
        return f"{_shown(value)} is none of {', '.join(param.choices)}{did_you_mean(value, param.choices)}"
    if param.pattern is not None and not re.fullmatch(param.pattern, value):
        return f"{_shown(value)} does not match the pattern {param.pattern}"
    return None


def range_fault(param: Param, value: Any, names: Mapping[str, int | float]) -> str | None:
    """Why a value of the right type lies outside `min`..`max`, or None. A bound with a name not in `names` is left out."""
    numbers = [number(param, part) for part in value] if isinstance(value, list | tuple) else [number(param, value)]
    for bound, word in ((param.min, "below"), (param.max, "above")):
        try:
            limit = _limit(bound, names)
        except ExpressionError as error:
            return f"has no {'min' if word == 'below' else 'max'} to be held against: {error}"
        if limit is None:
            continue
        for one in numbers:
            if (word == "below" and one < limit) or (word == "above" and one > limit):
                source = f" = {bound}" if isinstance(bound, str) else ""
                edge = "min" if word == "below" else "max"
                return f"{_plain(one)} is {word} the {edge} {_plain(limit)}{source}"
    return None


def within_bounds(param: Param, value: Any, names: Mapping[str, int | float]) -> Any:
    """A default moved to the nearest value that its bounds allow; a list keeps each value once, in order."""
    if param.type == "duration" or not param.numeric or range_fault(param, value, names) is None:
        return value
    try:
        low, high = _limit(param.min, names), _limit(param.max, names)
    except ExpressionError:
        return value
    if low is not None and high is not None and low > high:
        return value
    kind = int if param.type in ("int", "int_list") else float

    def moved(one: int | float) -> int | float:
        one = one if low is None else max(one, low)
        return kind(one if high is None else min(one, high))

    return list(dict.fromkeys(map(moved, value))) if isinstance(value, list | tuple) else moved(value)


def number(param: Param, value: Any) -> int | float:
    """A value as a number for bounds and estimates: durations in seconds, others as they are."""
    if param.type == "duration":
        match = _DURATION.match(value)
        if match is None:
            raise ValueError(f"{value!r} is no duration")
        return float(match["count"]) * _UNIT_S[match["unit"]]
    if isinstance(value, int | float):
        return value
    raise ValueError(f"{param.name} has no number")


def expression_names(params: tuple[Param, ...], values: Mapping[str, Any]) -> dict[str, int | float]:
    """What names stand for in expressions: a number itself, a duration its seconds, a list its length, a bool 0 or 1."""
    names: dict[str, int | float] = {}
    for param in params:
        value = values.get(param.name)
        if isinstance(value, list | tuple):
            names[param.name] = len(value)
        elif isinstance(value, bool):
            names[param.name] = int(value)
        elif value is not None and param.numeric:
            names[param.name] = number(param, value)
    return names


def parse_value(param: Param, text: str) -> Any:
    """A command-line text as the parameter's type: `levels=50,1000` or `levels=[50,1000]`, `on=true`. Raises UsageError."""
    try:
        value = _parse(param.type, text.strip())
    except ValueError:
        shown = "the value given" if param.type == "secret" else repr(text)
        raise UsageError(f"{shown} is not {_WORDS[param.type]}", where=f"--param {param.name}") from None
    return value


def _parse(kind: str, text: str) -> Any:
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text)
    if kind == "bool":
        return {"true": True, "false": False}[text] if text in ("true", "false") else _refuse(text)
    if kind in ("int_list", "float_list"):
        convert = int if kind == "int_list" else float
        inner = text.removeprefix("[").removesuffix("]").strip()
        return [convert(part.strip()) for part in inner.split(",")] if inner else []
    return text


def _refuse(text: str) -> Any:
    raise ValueError(text)


def resolve_params(
    params: tuple[Param, ...],
    given: Mapping[str, Any],
    engine: Mapping[str, int | float],
    *,
    where: str,
) -> dict[str, Any]:
    """Every parameter with the value it will have: given (typed, or text from a command line), else its default.

    `engine` holds what is known of the engine (`{"engine.max_context": 8192}`). A default that passes a bound of this
    engine's is moved to the bound, a value that was given is not. Raises UsageError that names the parameter, what is
    wrong with the value, and the nearest name for one that does not exist.
    """
    known = {param.name: param for param in params}
    for name in given:
        if name not in known:
            have = ", ".join(known) or "none"
            mend = did_you_mean(name, known) or f" (it has {have})"
            raise UsageError(f"no parameter {name!r}{mend}", where=where)
    values: dict[str, Any] = {}
    for param in params:
        if param.name in given:
            raw = given[param.name]
            parse = isinstance(raw, str) and param.type not in ("str", "secret", "choice", "duration")
            values[param.name] = parse_value(param, raw) if parse else raw
        elif param.required:
            raise UsageError(f"parameter {param.name!r} has no default and must be given", where=where)
        else:
            values[param.name] = param.default
    names = {**expression_names(params, _well_typed(params, values)), **engine}
    for param in params:
        if param.name not in given:
            values[param.name] = within_bounds(param, values[param.name], names)
        value = values[param.name]
        fault = type_fault(param, value) or (range_fault(param, value, names) if param.numeric else None)
        if fault:
            raise UsageError(f"{param.name}: {fault}", where=where)
        if param.type == "float":
            values[param.name] = float(value)
    return values


def _well_typed(params: tuple[Param, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    return {param.name: values[param.name] for param in params if type_fault(param, values[param.name]) is None}


def _limit(bound: Bound, names: Mapping[str, int | float]) -> int | float | None:
    if not isinstance(bound, str):
        return bound
    expression = parse_expression(bound)
    return expression.value(names) if expression.names <= names.keys() else None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _plain(value: int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
