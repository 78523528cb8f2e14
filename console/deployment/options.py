"""Settings as options of a foreign engine's command line: read from its words, and set in them.

Words the console does not know stay as they are and where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from console.deployment.settings import Setting, Value
from console.errors import UsageError


@dataclass(frozen=True)
class Option:
    """One setting and the flags that mean it, the one to write first.

    `form`: "value" takes a word after it; "on" and "off" are switches that make the setting true and false by being
    there. A setting at its `automatic` value has no word at all. `shown` is the engine's own name for it where it tells
    its settings, `spelling` its values as the engine spells them (ours -> its).
    """

    setting: Setting
    flags: tuple[str, ...]
    form: Literal["value", "on", "off"] = "value"
    shown: str = ""
    spelling: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        return self.setting.name

    def spelt(self, value: Value) -> Value:
        """Our value as the engine writes it."""
        return self.spelling.get(str(value), value) if self.spelling else value


def read_options(words: Sequence[str], options: Iterable[Option]) -> dict[str, Value]:
    """Setting name -> value for every option that stands in `words`, checked. The last of several holds."""
    return {option.name: found for option in options if (found := _read(words, option)) is not None}


def _read(words: Sequence[str], option: Option) -> Value | None:
    found: Value | None = None
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag not in option.flags:
            continue
        if option.form != "value":
            found = option.form == "on"
            continue
        if not equals:
            if at + 1 >= len(words):
                raise UsageError("has no value behind it", where=flag)
            value = words[at + 1]
        found = option.setting.accept(_ours(value, option))
    return found


def _ours(text: str, option: Option) -> str:
    back = {its.lower(): ours for ours, its in (option.spelling or {}).items()}
    return back.get(text.lower(), text)


def set_options(
    words: Sequence[str], changes: Mapping[str, Value], options: Iterable[Option], unset: Mapping[str, Value | None]
) -> tuple[str, ...]:
    """`words` with the changes made: in place where the option stands already, at the end where it does not.

    `unset` are the values that are said by leaving the option out.
    """
    out = list(words)
    for option in options:
        if option.name in changes:
            value = changes[option.name]
            out = _set(out, option, None if value == unset.get(option.name) else value)
    return tuple(out)


def _set(words: list[str], option: Option, value: Value | None) -> list[str]:
    """`words` with the option once, at the place of its first mention; not at all for None, or a switch that is off."""
    out: list[str] = []
    place: int | None = None
    flag = option.flags[0]
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name in option.flags:
            if place is None:
                place, flag = len(out), name
            skip = option.form == "value" and not equals
            continue
        out.append(word)
    wanted = value is not None if option.form == "value" else value is (option.form == "on")
    if wanted:
        new = [flag] if option.form != "value" else [flag, str(option.spelt(value if value is not None else ""))]
        at = len(out) if place is None else place
        out[at:at] = new
    return out
