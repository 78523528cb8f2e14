"""A playbook's parameters as a form, and the form's texts as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from console.errors import UsageError
from console.experiments.params import Param, resolve_params
from console.experiments.playbook import Playbook
from console.tui.widgets.catalogue import param_text
from console.tui.widgets.fields import Field, Form


def params_form(playbook: Playbook) -> Form:
    """A form with every parameter at its default."""
    return Form(tuple(_field(param) for param in playbook.params))


def values_of(playbook: Playbook, edits: Mapping[str, str], engine: Mapping[str, int | float]) -> dict[str, Any]:
    """Every parameter's value for a run; raises UsageError naming the one that is wrong."""
    return resolve_params(playbook.params, edits, engine, where=playbook.id)


def fault_in(playbook: Playbook, name: str, text: str, engine: Mapping[str, int | float]) -> str | None:
    """What is wrong with one parameter's text, or None."""
    try:
        values_of(playbook, {name: text}, engine)
    except UsageError as error:
        return error.what
    return None


def _field(param: Param) -> Field:
    limits = [f"{word} {bound}" for word, bound in (("from", param.min), ("to", param.max)) if bound is not None]
    return Field(
        name=param.name,
        group="",
        value=param_text(param, param.default),
        default=param_text(param, param.default),
        help=param.help or param.type.replace("_", " "),
        allowed=" ".join(limits),
        choices=("false", "true") if param.type == "bool" else param.choices,
        secret=param.type == "secret",
    )
