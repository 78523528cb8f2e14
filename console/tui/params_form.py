"""A playbook's parameters as a form, and the form's texts as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from console.errors import UsageError
from console.experiments.params import Param, resolve_params
from console.experiments.playbook import Playbook
from console.tui.widgets.catalogue import param_text
from console.tui.widgets.fields import Field, Form


def params_form(playbook: Playbook, engine: Mapping[str, int | float]) -> Form:
    """A form with every parameter at its default; bounds that ask the engine are told as it answers."""
    return Form(tuple(_field(param, engine) for param in playbook.params))


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


def _field(param: Param, engine: Mapping[str, int | float]) -> Field:
    bounds = (("from", param.min), ("to", param.max))
    limits = [f"{word} {engine.get(str(bound), bound)}" for word, bound in bounds if bound is not None]
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
