"""The header's schema: what the block and its `[tool.ddtree.playbook]` table may hold, every breach with its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from console.experiments.params import Param, expression_names
from console.experiments.script import vocabulary
from console.experiments.script.block import Block, Path
from console.experiments.script.expression import ExpressionError, parse_expression
from console.experiments.script.fault import Fault, Source
from console.experiments.script.header_params import check_params, read_param
from console.experiments.script.nearest import did_you_mean
from console.experiments.script.schema import Wrong, kind_of, one_line, pattern, short, words
from console.experiments.script.versions import NEWEST, OLDEST, admitted

_TABLE: Path = ("tool", "ddtree", "playbook")
_PARAMS: Path = (*_TABLE, "params")
_TABLE_NAME = f"[{'.'.join(_TABLE)}]"
_LONGEST_S = 7 * 24 * 3600


@dataclass(frozen=True)
class Header:
    """What a header says, as far as it could be read; a field with a fault keeps its empty value."""

    id: str = ""
    title: str = ""
    key: str = ""
    summary: str = ""
    version: str = ""
    kind: str = ""
    engines: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    restarts_on: tuple[str, ...] = ()
    exclusive: bool = True
    est_seconds: str = ""  # an expression
    max_seconds: int = 0
    verdicts: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()
    requires_python: str = ""


def read_header(source: Source, block: Block, stem: str) -> tuple[Header, tuple[Fault, ...]]:
    """The header of a block, and its faults in the order of their lines. `stem` is the file's name without `.py`."""
    faults: list[Fault] = []

    def blame(path: Path, message: str) -> None:
        faults.append(source.fault(*block.place(path), message))

    _only((), block.data, ("requires-python", "dependencies", "tool"), blame)
    fields = _read_fields((), block.data, _TOP, blame)
    table = _playbook_table(block, blame)
    if table is not None:
        _only(_TABLE, table, (*_FIELDS, "params"), blame)
        fields |= _read_fields(_TABLE, table, _FIELDS, blame)
        if fields.get("id", stem) != stem:
            blame((*_TABLE, "id"), f"id is {fields['id']!r} and the file's name is {stem!r}; they must be one word")
        params = _read_params(table.get("params", {}), blame)
        for name, message in check_params(params):
            blame((*_PARAMS, *name), message)
        if wrong := _estimate_fault(fields.get("est_seconds"), params, fields.get("max_seconds")):
            blame((*_TABLE, "est_seconds"), wrong)
        fields["params"] = params
    known = {name: value for name, value in fields.items() if name in Header.__dataclass_fields__}
    return Header(**known), tuple(sorted(faults))


_Blame = Callable[[Path, str], None]
_Field = tuple[bool, Callable[[Any], Any]]  # required?, reader that raises Wrong


def _only(path: Path, table: Mapping[str, Any], known: Iterable[str], blame: _Blame) -> None:
    names = tuple(known)
    for key in table:
        if key not in names:
            where = f" in [{'.'.join(path)}]" if path else ""
            blame(
                (*path, key), f"unknown key {key!r}{where}{did_you_mean(key, names) or '; known: ' + ', '.join(names)}"
            )


def _read_fields(path: Path, table: Mapping[str, Any], schema: Mapping[str, _Field], blame: _Blame) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (required, read) in schema.items():
        if name not in table:
            if required:
                blame(path, f"{name} is missing" + (f" from {_TABLE_NAME}" if path else " from the header"))
            continue
        try:
            found[name.replace("-", "_")] = read(table[name])
        except Wrong as wrong:
            blame((*path, name), f"{name} {wrong}")
    return found


def _playbook_table(block: Block, blame: _Blame) -> Mapping[str, Any] | None:
    node: Any = block.data
    for depth, name in enumerate(_TABLE):
        if name not in node:
            blame(_TABLE[:depth], f"the header has no table {_TABLE_NAME}{did_you_mean(name, node)}")
            return None
        node = node[name]
        if not isinstance(node, Mapping):
            blame(_TABLE[: depth + 1], f"{'.'.join(_TABLE[: depth + 1])} is {kind_of(node)}, not a table")
            return None
    return node


def _read_params(tables: Any, blame: _Blame) -> tuple[Param, ...]:
    if not isinstance(tables, Mapping):
        blame(_PARAMS, f"params is {kind_of(tables)}; each parameter is a table [tool.ddtree.playbook.params.NAME]")
        return ()
    params = []
    for name, table in tables.items():
        param, wrongs = read_param(name, table)
        for key, message in wrongs:
            blame((*_PARAMS, name, *key), message)
        if param is not None:
            params.append(param)
    return tuple(params)


def _estimate_fault(text: str | None, params: tuple[Param, ...], most_s: int | None) -> str | None:
    if text is None:
        return None
    expression = parse_expression(text)
    known = {param.name for param in params} | set(vocabulary.ENGINE_FACTS)
    unknown = sorted(expression.names - known)
    if unknown:
        return f"est_seconds uses {unknown[0]!r}, which is no parameter{did_you_mean(unknown[0], known)}"
    defaults = expression_names(params, {param.name: param.default for param in params if not param.required})
    if expression.names - defaults.keys():
        return None  # it depends on the engine, or on what must be given
    try:
        seconds = expression.value(defaults)
    except ExpressionError as error:
        return f"est_seconds has no value with the parameters' defaults: {error}"
    if seconds <= 0:
        return f"est_seconds is {seconds:g} with the parameters' defaults; nothing takes so little"
    if most_s is not None and seconds > most_s:
        return f"est_seconds is {seconds:g} with the parameters' defaults, and max_seconds ends the run after {most_s}"
    return None


def _requires_python(value: Any) -> str:
    text = one_line(value)
    try:
        versions = admitted(text)
    except ValueError as error:
        raise Wrong(f"is not readable: {error}") from None
    if not versions:
        bounds = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise Wrong(f"is {text!r}, which admits none of Python {bounds}")
    return text


def _dependencies(value: Any) -> None:
    if not isinstance(value, list):
        raise Wrong(f"is {kind_of(value)}, not a list")
    if value:
        raise Wrong(f"must be empty: a box installs nothing for a playbook, so {value[0]!r} cannot be had there")


def _api(value: Any) -> None:
    if isinstance(value, bool) or value != vocabulary.API:
        raise Wrong(f"is {value!r}; this console speaks api = {vocabulary.API}")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"is {kind_of(value)}, not true or false")
    return value


def _engines(value: Any) -> tuple[str, ...]:
    engines = words(vocabulary.ENGINES)(value)
    if not engines:
        raise Wrong("is empty; name the engines that the script can measure")
    return engines


def _estimate(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 < value <= _LONGEST_S:
            raise Wrong(f"is {value}; it must lie above 0 and within a week")
        return str(value)
    text = one_line(value)
    try:
        parse_expression(text)
    except ExpressionError as error:
        raise Wrong(f"is no expression, at its character {error.offset + 1}: {error}") from None
    return text


def _seconds(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Wrong(f"is {kind_of(value)}, not a whole number of seconds")
    if not 0 < value <= _LONGEST_S:
        raise Wrong(f"is {value}; it must lie between 1 and {_LONGEST_S}")
    return value


def _kind(value: Any) -> str:
    return words(vocabulary.KINDS)([one_line(value)])[0]


_TOP: dict[str, _Field] = {
    "requires-python": (True, _requires_python),
    "dependencies": (False, _dependencies),
}
_FIELDS: dict[str, _Field] = {
    "api": (True, _api),
    "id": (True, pattern(re.compile(r"[a-z][a-z0-9_]{2,40}"), "a small letter and then 2 to 40 of a-z, 0-9 and _")),
    "title": (True, short(60)),
    "key": (True, pattern(re.compile(r"[!-~]"), "one printable ASCII character")),
    "summary": (True, short(160)),
    "version": (True, pattern(re.compile(r"\d+\.\d+\.\d+([-+.][0-9A-Za-z.-]+)?"), 'three numbers such as "1.0.0"')),
    "kind": (True, _kind),
    "engines": (True, _engines),
    "needs": (False, words(vocabulary.CAPABILITIES)),
    "wants": (False, words(vocabulary.CAPABILITIES)),
    "effects": (False, words(vocabulary.EFFECTS)),
    "restarts_on": (False, words(vocabulary.ENGINES)),
    "exclusive": (False, _flag),
    "est_seconds": (True, _estimate),
    "max_seconds": (True, _seconds),
    "verdicts": (False, words(vocabulary.VERDICTS)),
}
