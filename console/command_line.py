"""Words of a command line -> the verb asked for and its arguments, typed, by the table of verbs. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.errors import UsageError
from console.verbs.verb import Argument, Verb

_BYTES = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([kMGT]i?)?B?")
_SCALES = {
    "": 1,
    **{f"{unit}{i}": base**power for power, unit in enumerate("kMGT", 1) for i, base in (("", 1000), ("i", 1024))},
}


@dataclass(frozen=True)
class Request:
    """What a command line asks for. Without a verb, the console is wanted: on `host`, or on the last one."""

    verb: Verb | None
    host: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    session: Mapping[str, Any] = field(default_factory=dict)
    help: bool = False


def read_command_line(
    words: Sequence[str], verbs: Mapping[str, Verb], session: Sequence[Argument], is_host: Callable[[str], bool]
) -> Request:
    """The Request in `words`.

    `session` are the options that every verb takes, before or after its name. `is_host` tells whether a first word
    that is no verb is a known host. Raises UsageError with the nearest thing there is.
    """
    verb, plain, given = _split(list(words), verbs, session)
    own = verb.arguments if verb else ()
    options = {argument.name: argument for argument in (*own, *session) if argument.option}
    values = {name: _typed(options[name], texts, f"--{name}") for name, texts in given.items()}
    of_session = {argument.name: values.get(argument.name, _unasked(argument)) for argument in session}
    if of_session.get("help"):
        return Request(verb, session=of_session, help=True)
    if verb is None:
        return Request(None, _host(plain, verbs, is_host), session=of_session)
    values |= _positional(verb, [argument for argument in own if not argument.option], plain)
    arguments = {argument.name: values.get(argument.name, _unasked(argument)) for argument in own}
    missing = [argument.shown for argument in own if argument.required and arguments[argument.name] is None]
    if missing:
        raise UsageError(f"needs {' and '.join(missing)}", where=verb.name, mend=f"write {verb.usage}")
    return Request(verb, arguments=arguments, session=of_session)


def _unasked(argument: Argument) -> Any:
    return False if argument.kind == "flag" else argument.default


def _split(
    words: list[str], verbs: Mapping[str, Verb], session: Sequence[Argument]
) -> tuple[Verb | None, list[str], dict[str, list[str]]]:
    """The verb, the words that are no options, and the texts given to each option."""
    verb: Verb | None = None
    plain: list[str] = []
    given: dict[str, list[str]] = {}
    while words:
        word = words.pop(0)
        if word == "--":
            return verb, [*plain, *words], given
        if word == "-h":
            word = "--help"
        if not word.startswith("-") or word == "-":
            if verb is None and not plain and word in verbs:
                verb = verbs[word]
            else:
                plain.append(word)
            continue
        argument, value = _option(word, verb, session)
        if argument.kind == "flag":
            if value is not None:
                raise UsageError("takes no value", where=f"--{argument.name}")
            given[argument.name] = []
            continue
        values = [] if value is None else [value]
        if len(words) < argument.takes - len(values):
            needs = "a value" if argument.takes == 1 else f"{argument.takes} values"
            raise UsageError(f"needs {needs}", where=f"--{argument.name}", mend=f"write {argument.shown}")
        while len(values) < argument.takes:
            values.append(words.pop(0))
        given.setdefault(argument.name, []).extend(values)
    return verb, plain, given


def _option(word: str, verb: Verb | None, session: Sequence[Argument]) -> tuple[Argument, str | None]:
    """The option that `word` names, and the value behind its equals sign."""
    name, equals, value = word.partition("=")
    options = {f"--{a.name}": a for a in (*(verb.arguments if verb else ()), *session) if a.option}
    if name not in options:
        near = nearest(name, options)
        mend = f"did you mean {near}?" if near else None
        raise UsageError(f"no option {name}", where=verb.name if verb else None, mend=mend)
    return options[name], value if equals else None


def _typed(argument: Argument, texts: Sequence[str], where: str) -> Any:
    """What the texts given to one argument mean."""
    if argument.kind == "flag":
        return True
    if argument.kind == "pair":
        return _pairs(texts, where)
    values = [_one(argument, text, where) for text in texts]
    if argument.repeat:
        return tuple(values)
    if len(values) > argument.takes:
        raise UsageError("is given twice", where=where)
    return values[0] if argument.takes == 1 else tuple(values)


def _one(argument: Argument, text: str, where: str) -> Any:
    if argument.choices and text not in argument.choices:
        near = nearest(text, argument.choices)
        mend = f"did you mean {near}?" if near else f"use {', '.join(argument.choices)}"
        raise UsageError(f"{text!r} is not a choice", where=where, mend=mend)
    if argument.kind == "count":
        if not text.isascii() or not text.isdecimal():
            raise UsageError(f"{text!r} is not a whole number", where=where)
        return int(text)
    if argument.kind == "bytes":
        return _bytes(text, where)
    return Path(text) if argument.kind == "path" else text


def _bytes(text: str, where: str) -> int:
    match = _BYTES.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no number of bytes", where=where, mend="write 80GB, 16GiB or 80e9")
    return int(float(match[1]) * _SCALES[match[2] or ""])


def _pairs(texts: Iterable[str], where: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"{text!r} is no NAME=VALUE", where=where)
        if name in pairs:
            raise UsageError(f"{name} is given twice", where=where)
        pairs[name] = value
    return pairs


def _positional(verb: Verb, arguments: Sequence[Argument], words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for argument in arguments:
        if argument.repeat:
            values[argument.name] = tuple(_one(argument, word, argument.shown) for word in words) or None
            return values
        if words:
            value = _one(argument, words.pop(0), argument.shown)
            values[argument.name] = (value,) if argument.kind == "path" else value
    if words:
        raise UsageError(f"takes no {words[0]!r}", where=verb.name, mend=f"write {verb.usage}")
    return values


def _host(words: Sequence[str], verbs: Mapping[str, Verb], is_host: Callable[[str], bool]) -> str | None:
    """The host a command line without a verb names. A word close to a verb is a slip, unless it is a known host."""
    if not words:
        return None
    word = words[0]
    looks_like_host = is_host(word) or any(sign in word for sign in "@.:")
    near = nearest(word, verbs)
    if len(words) == 1 and (looks_like_host or near is None):
        return word
    if looks_like_host:
        raise UsageError(
            f"takes no {words[1]!r}", where=f"ddtree {word}", mend=f"write the verb first: ddtree {words[1]} {word}"
        )
    mend = f"did you mean {near}?" if near else f"verbs are {', '.join(verbs)}"
    raise UsageError(f"no verb {word!r}", mend=mend)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when none is."""
    return next(iter(difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)), None)
