"""The engine's settings as a form: the file's values, the engine's, and the table of what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from console.deployment.settings import SETTINGS, Setting, Value, find
from console.errors import UsageError
from console.tui.widgets.fields import Field, Form


def settings_form(
    in_file: Mapping[str, Value], in_force: Mapping[str, Any], table: tuple[Setting, ...] = SETTINGS
) -> Form:
    """A form over every setting of `table`. `in_file` is what the file says, `in_force` what the engine reports."""
    fields = tuple(_field(setting, in_file.get(setting.name, setting.default)) for setting in table)
    return Form(fields, in_force={name: setting_text(value) for name, value in in_force.items() if value is not None})


def check_setting(name: str, text: str, table: tuple[Setting, ...] = SETTINGS) -> str | None:
    """What is wrong with `text` for this setting, or None."""
    try:
        find(name, table).accept(text)
    except UsageError as error:
        return f"{error.what}; {error.mend}" if error.mend else error.what
    return None


def setting_text(value: Any) -> str:
    """A value as the form writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _field(setting: Setting, value: Value) -> Field:
    return Field(
        name=setting.name,
        group=setting.table,
        value=setting_text(value),
        default=setting_text(setting.default),
        help=setting.help,
        allowed=setting.range_text,
        choices=("false", "true") if setting.kind == "bool" else setting.choices,
        secret=setting.secret,
    )
