"""What SGLang and vLLM have in common as deployments: a unit that others made, its arguments in an EnvironmentFile."""

from __future__ import annotations

from collections.abc import Mapping

from console.deployment.argument_file import ArgumentFile, parse_argument_file
from console.deployment.base import ModelFacts
from console.deployment.capacity import Capacity, element_bytes, pool_of
from console.deployment.options import Option, read_options, set_options
from console.deployment.settings import Setting, Value
from console.errors import UsageError


def default_values(settings: tuple[Setting, ...], given: Mapping[str, Value]) -> dict[str, Value]:
    """Every setting's value: what is given, defaults elsewhere, in the table's order."""
    return {setting.name: given.get(setting.name, setting.default) for setting in settings}


def values_of(text: str, variable: str, options: tuple[Option, ...]) -> dict[str, Value]:
    """Every setting's value under the file."""
    words = parse_argument_file(text, variable).words
    return default_values(tuple(option.setting for option in options), read_options(words, options))


def edited(file: ArgumentFile, changes: Mapping[str, Value], options: tuple[Option, ...]) -> tuple[str, ...]:
    """The file's words with the changes made; a setting at its automatic value has no word."""
    unset = {option.name: option.setting.automatic for option in options}
    return set_options(file.words, changes, options, unset)


def to_be_shown(values: Mapping[str, Value], options: tuple[Option, ...]) -> dict[str, Value]:
    """What the engine must show under these values: those that are not left to it."""
    return {
        option.name: values[option.name]
        for option in options
        if option.shown and values[option.name] != option.setting.automatic
    }


def shown_names(options: tuple[Option, ...]) -> dict[str, str]:
    """Our names -> the engine's."""
    return {option.name: option.shown for option in options if option.shown}


def predicted_pool(
    values: Mapping[str, Value], model: ModelFacts, memory_bytes: int | None, fraction: float
) -> Capacity | None:
    """The KV pool: what the memory share leaves beside the weights, in whole pages.

    None where the memory or the size of the weights is not known. Activations and graphs take some of it as well, so the
    engine's own figure is lower; once it runs, that one counts.
    """
    if memory_bytes is None or model.weight_bytes is None:
        return None
    devices = int(values["tensor_parallel"])
    size = element_bytes(_short(str(values["kv_dtype"])), model.target.dtype)
    per_token = model.target.bytes_per_token(size, devices)
    if model.drafter is not None and values["mode"] != "off":
        per_token += model.drafter.bytes_per_token(size, devices)
    room = max(0, int(memory_bytes * fraction) - model.weight_bytes // devices)
    context = int(values["context_length"]) or model.target.max_position_embeddings
    return pool_of(per_token, int(values["page_size"]) or 1, room, context)


def _short(kv_dtype: str) -> str:
    """`fp8_e5m2` and the like take one byte, whatever the variant."""
    return "fp8" if kv_dtype.startswith("fp8") else "bfloat16" if kv_dtype == "bf16" else kv_dtype


def check_context_length(values: Mapping[str, Value], model: ModelFacts | None, *, overridden: bool, how: str) -> None:
    """Refuse a context beyond the model's, with both numbers, unless the environment allows it."""
    context = int(values["context_length"])
    if model is None or overridden or context <= model.target.max_position_embeddings:
        return
    raise UsageError(
        f"{context} is above the model's {model.target.max_position_embeddings}",
        where="context_length",
        mend=f"use {model.target.max_position_embeddings} or less, or set {how}=1 in the environment file",
    )


def need_drafter(values: Mapping[str, Value], modes: tuple[str, ...]) -> None:
    """Refuse a way of speculation that drafts with a model when none is named."""
    if values["mode"] in modes and not values["drafter"]:
        raise UsageError(
            f"{values['mode']} needs a drafter", where="mode", mend="set drafter to its folder, or mode=off"
        )
