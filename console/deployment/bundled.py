"""The engine bundled with the console, as a Deployment: settings in engine.toml, one decode line a window."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from console.box.layout import IDENTIFIER
from console.deployment.base import Endpoint, ModelFacts
from console.deployment.capacity import Capacity, KvShape, check_context, element_bytes, kv_shape, stretched
from console.deployment.settings import SETTINGS, Setting, Value, check_together, parse_changes
from console.deployment.settings_file import complete, edit_toml, first_settings, to_read_back
from console.errors import UsageError
from console.telemetry.bundled import BundledReader
from console.telemetry.reader import LogReader
from console.telemetry.sample import Sample


@dataclass(frozen=True)
class Bundled:
    """See console.deployment.base.Deployment."""

    kind: str = "bundled"
    identifier: str = IDENTIFIER
    settings: tuple[Setting, ...] = SETTINGS
    suffix: str = ".toml"
    info_paths: tuple[str, ...] = ("/server_info",)

    def reader(self) -> LogReader:
        return BundledReader()

    def values(self, text: str) -> dict[str, Value]:
        return complete(text)

    def environment(self, text: str) -> Mapping[str, str]:
        return {}

    def edit(self, text: str, changes: Mapping[str, Value]) -> str:
        return edit_toml(text, changes)

    def read_back(self, text: str) -> dict[str, Value]:
        return to_read_back(text)

    def from_start(self, sample: Sample) -> dict[str, Value]:
        return {}  # `/server_info` tells them all

    def endpoint(self, text: str) -> Endpoint:
        values = complete(text)
        return Endpoint(str(values["host"]), int(values["port"]), str(values["api_key_file"]))

    def gate(self) -> dict[str, Any]:
        return {}  # the agent's own rules are this engine's

    def check_argv(self, python: str) -> list[str]:
        return ["env", "PYTHONSAFEPATH=1", python, "-m", "engine", "serve", "--check-config", "--config"]

    def inspect(self, text: str, model: ModelFacts | None) -> tuple[str, ...]:
        self.check(complete(text), model)
        return ()

    def server_info(self, answers: Mapping[str, bytes]) -> Mapping[str, Any] | None:
        try:
            found = json.loads(answers.get("/server_info", b""))
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def check(self, values: Mapping[str, Value], model: ModelFacts | None) -> None:
        """See `inspect`. `values` is the complete set, leaf name -> value."""
        check_together(values)
        if model is None:
            return
        target = stretched(model.target, str(values["rope_scaling"]))
        context, pages, page_size = (int(values[name]) for name in ("context_length", "pages", "page_size"))
        if context or not pages:  # left to the engine, the context length becomes what a fixed pool holds
            check_context(context, target, pages=pages, page_size=page_size)
        block = int(values["block_size"])
        if model.block_size and block and not 2 <= block <= model.block_size:
            raise UsageError(
                f"{block} is outside 2 to {model.block_size}, what the drafter was trained for",
                where="block_size",
                mend="use 0 for the drafter's own",
            )

    def capacity(self, values: Mapping[str, Value], model: ModelFacts, memory_bytes: int | None) -> Capacity:
        """The engine's own rule: pages as asked, else what the running requests need at full length, as far as the
        memory share goes. The drafter's cache has as many slots as the target's."""
        size = element_bytes(str(values["dtype"]), "float32" if model.target.dtype == "float32" else "bfloat16")
        per_token = sum(shape.bytes_per_token(size) for shape in (model.target, model.drafter) if shape is not None)
        page_size, context = int(values["page_size"]), int(values["context_length"])
        context = context or stretched(model.target, str(values["rope_scaling"])).max_position_embeddings
        if values["pages"]:
            return Capacity(per_token, page_size, int(values["pages"]), context)
        block = int(values["block_size"]) or model.block_size
        lookahead = max(int(values["tree_budget"]) + 1, block) if model.drafter else 1
        pages = ceil((context + lookahead) / page_size) * int(values["max_running_requests"])
        if memory_bytes is not None:
            pages = min(pages, int(memory_bytes * float(values["memory_fraction"])) // (per_token * page_size))
        return Capacity(per_token, page_size, pages, context)


BUNDLED = Bundled()


def first_settings_with(changes: Mapping[str, Any]) -> Callable[[str, str], str]:
    """What an install calls with the model's and the drafter's folder ("" for none) to get generation 0.

    `changes` are what `--set` asked for; a wrong one is a UsageError now, before anything is touched.
    """
    asked = parse_changes(changes)

    def compose(model: str, drafter: str) -> str:
        values: dict[str, Value] = {"path": model, "drafter": drafter, **asked}
        if not values["drafter"]:
            values.setdefault("mode", "off")
        text = first_settings(values)
        check_together(complete(text))
        return text

    return compose


def model_facts(target: Mapping[str, Any], drafter: Mapping[str, Any] | None) -> ModelFacts:
    """What two `config.json` say. Raises UsageError naming a key that is missing."""
    if drafter is None:
        return ModelFacts(kv_shape(target))
    shape: KvShape = kv_shape({**drafter, "max_position_embeddings": drafter.get("max_position_embeddings", 1)})
    return ModelFacts(kv_shape(target), shape, int(drafter.get("block_size", 0)))
