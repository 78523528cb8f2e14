"""engine.toml as text: what it gives, what is in force under it, edits that keep its comments, and its difference.

Everything here is a function of text and values; nothing is read or written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, MutableMapping

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from console.deployment.change import Difference
from console.deployment.settings import SETTINGS, Setting, Value, find
from console.errors import UsageError

HEADLINE = "Settings of the DDTree engine. `ddtree restart HOST --set name=value` edits this file safely."


def explicit(text: str, table: Iterable[Setting] = SETTINGS) -> dict[str, Value]:
    """The settings a file really gives, leaf name -> value, checked; unknown tables and keys are a `UsageError`."""
    table = tuple(table)
    places = {(setting.table, setting.name): setting for setting in table}
    out: dict[str, Value] = {}
    for table_name, body in _parsed(text).unwrap().items():
        if not isinstance(body, dict):
            raise UsageError(
                "stands outside every table", where=table_name, mend=f"put it under [{find(table_name, table).table}]"
            )
        for name, value in body.items():
            setting = places.get((table_name, name))
            if setting is None:
                wanted = find(name, table)
                raise UsageError(f"stands in [{table_name}]", where=name, mend=f"it belongs in [{wanted.table}]")
            out[name] = setting.accept(value)
    return out


def complete(text: str, table: Iterable[Setting] = SETTINGS) -> dict[str, Value]:
    """Every setting's value under this file: what it gives, defaults elsewhere, in the table's order."""
    table = tuple(table)
    given = explicit(text, table)
    values = {setting.name: given.get(setting.name, setting.default) for setting in table}
    if "mode" not in given and not values.get("drafter", True):
        values["mode"] = "off"  # the engine's own rule: without a drafter an unsaid mode is off
    return values


def edit_toml(text: str, changes: Mapping[str, Value], table: Iterable[Setting] = SETTINGS) -> str:
    """`text` with `changes` made; comments, order and blank lines of everything else stay as they are.

    The result is checked whole: a file that would still hold an unknown or a wrong key is a `UsageError`.
    """
    table = tuple(table)
    document = _parsed(text)
    for name, value in changes.items():
        setting = find(name, table)
        section = document.get(setting.table)
        if section is None:
            section = tomlkit.table()
            document.append(setting.table, section)
        if not isinstance(section, MutableMapping):
            raise UsageError("is a value where a table belongs", where=setting.table, mend=f"write [{setting.table}]")
        section[setting.name] = value
    edited = tomlkit.dumps(document)
    explicit(edited, table)
    return edited


def first_settings(values: Mapping[str, Value], table: Iterable[Setting] = SETTINGS) -> str:
    """A whole settings file with every key, its help as a comment: what an install lays down as generation 0."""
    table = tuple(table)
    document = tomlkit.document()
    document.add(tomlkit.comment(HEADLINE))
    for name in values:
        find(name, table)
    for setting in table:
        if setting.table not in document:
            document.add(tomlkit.nl())
            document.append(setting.table, tomlkit.table())
        section = document[setting.table]
        assert isinstance(section, Table)
        section.add(tomlkit.comment(f"{setting.help} ({setting.range_text})"))
        section.add(setting.name, tomlkit.item(setting.accept(values.get(setting.name, setting.default))))
    return tomlkit.dumps(document)


def differences(old: str, new: str, table: Iterable[Setting] = SETTINGS) -> tuple[Difference, ...]:
    """What changes in force between two files, in the table's order; a default spelled out is no difference."""
    table = tuple(table)
    before, after = complete(old, table), complete(new, table)
    return tuple(Difference(name, before[name], after[name]) for name in before if before[name] != after[name])


def settings_file_sha(text: str) -> str:
    """The identity of a settings file: SHA-256 of its bytes, in hex. Compare-and-swap is done on this."""
    return hashlib.sha256(text.encode()).hexdigest()


def to_read_back(text: str, table: Iterable[Setting] = SETTINGS) -> dict[str, Value]:
    """Leaf name -> value that `/server_info` must show under this file.

    Settings left to the engine are not in it (it reports what it chose), nor are those it keeps to itself.
    """
    table = tuple(table)
    values = complete(text, table)
    return {
        s.name: values[s.name] for s in table if not s.secret and (s.automatic is None or values[s.name] != s.automatic)
    }


def _parsed(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise UsageError(str(error), where="engine.toml", mend="mend the file's TOML") from error
