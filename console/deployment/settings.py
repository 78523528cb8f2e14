"""The engine's settings as the console knows them: one typed table, and the check of a value against it.

`--set` names are the leaf names of engine.toml (contracts.md section 2). The table feeds the CLI, the settings form
and the settings file (`settings_file.py`); the engine has its own, and a test holds the two together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from math import isfinite
from typing import Any, Literal

from console.errors import UsageError

Value = bool | int | float | str


@dataclass(frozen=True)
class Setting:
    """One key of engine.toml.

    `minimum` and `maximum` are inclusive. `automatic` is the value that leaves the choice to the engine (None: there
    is none); what the engine then chose is read back from `/server_info`, never predicted.
    """

    name: str
    table: str
    kind: Literal["int", "float", "bool", "choice", "text", "path"]
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    automatic: Value | None = None
    only_default: bool = False  # the engine has the key but no other value yet
    secret: bool = False  # the engine does not report it

    @property
    def range_text(self) -> str:
        """What is allowed, in words: `1 to 256`, `off, dflash or ddtree`, `true or false`."""
        if self.only_default:
            return f"only {_shown(self.default)} in this engine"
        if self.kind == "bool":
            return "true or false"
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.minimum is not None and self.maximum is not None:
            return f"{self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"{self.minimum:g} or more"
        return "a folder or file on the box" if self.kind == "path" else "text"

    def accept(self, value: Any) -> Value:
        """`value`, typed or as text, checked against type and range; raises `UsageError` naming both numbers."""
        typed = self._typed(value)
        if self.only_default:
            if typed != self.default:
                raise UsageError(
                    f"{_shown(typed)} is not possible yet", where=self.name, mend=f"leave it at {_shown(self.default)}"
                )
        elif self.choices and typed not in self.choices:
            raise UsageError(f"{typed!r} is not a choice", where=self.name, mend=f"use {self.range_text}")
        elif isinstance(typed, int | float):
            if self.minimum is not None and typed < self.minimum:
                raise UsageError(
                    f"{typed} is below the least, {self.minimum:g}", where=self.name, mend=f"use {self.range_text}"
                )
            if self.maximum is not None and typed > self.maximum:
                raise UsageError(
                    f"{typed} is above the most, {self.maximum:g}", where=self.name, mend=f"use {self.range_text}"
                )
        return typed

    def _typed(self, value: Any) -> Value:
        given = value.strip() if isinstance(value, str) else value
        try:
            if self.kind == "bool":
                return _boolean(given)
            if self.kind == "int":
                return _whole(given)
            if self.kind == "float":
                return _finite(given)
        except (ValueError, TypeError, OverflowError) as error:
            kind = {"int": "a whole number", "float": "a number", "bool": "true or false"}[self.kind]
            raise UsageError(f"{value!r} is not {kind}", where=self.name, mend=f"use {self.range_text}") from error
        if not isinstance(given, str) or any(ord(character) < 32 for character in given):
            raise UsageError(f"{value!r} is not plain text", where=self.name)
        return given


def _shown(value: Any) -> str:
    return '""' if value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError(value)
    return words[value.lower()]


def _whole(value: Any) -> int:
    if isinstance(value, str):
        return int(value.replace(",", ""))  # 200,000 and 200_000 are how people write context lengths
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isfinite(number := float(value)):
        raise ValueError(value)
    return number


def _model() -> tuple[Setting, ...]:
    dtypes = ("auto", "bfloat16", "float32")
    return (
        Setting("path", "model", "path", "", "model folder: config.json, *.safetensors, tokenizer.json"),
        Setting("drafter", "model", "path", "", "drafter folder; empty: no speculation"),
        Setting(
            "dtype", "model", "choice", "auto", "type of weights and activations", choices=dtypes, automatic="auto"
        ),
    )


def _context() -> tuple[Setting, ...]:
    longest = "longest prompt plus output of one request, in tokens; 0: the model's own maximum"
    scaling = "yarn:F stretches the model's positions F times; empty: as the model says"
    return (
        Setting("context_length", "context", "int", 0, longest, minimum=0, automatic=0),
        Setting("rope_scaling", "context", "text", "", scaling),
    )


def _kv() -> tuple[Setting, ...]:
    share = "share of the device's memory the engine may take"
    prefix = "keep the pages of finished requests for prompts that begin alike"
    return (
        Setting("page_size", "kv", "int", 16, "tokens in one page of the KV pool", minimum=1, maximum=256),
        Setting(
            "kv_dtype", "kv", "text", "auto", "element type of the KV pool; auto: as the weights", only_default=True
        ),
        Setting("memory_fraction", "kv", "float", 0.85, share, minimum=0.01, maximum=0.98),
        Setting(
            "pages",
            "kv",
            "int",
            0,
            "pages in the pool; 0: from memory and context length",
            minimum=0,
            automatic=0,
        ),
        Setting("prefix_cache", "kv", "bool", True, prefix),
    )


def _speculation() -> tuple[Setting, ...]:
    modes = ("off", "dflash", "ddtree")
    block = "tokens the drafter proposes at once; 0: the drafter's own"
    window = "context tokens the drafter looks back on; 0: all of it"
    lookup = (
        "let what followed the last tokens before compete for the budget; auto: as far as it has held in the request"
    )
    return (
        Setting(
            "mode",
            "speculation",
            "choice",
            "ddtree",
            "off; dflash: a chain of drafts; ddtree: a tree of drafts",
            choices=modes,
        ),
        Setting("block_size", "speculation", "int", 0, block, minimum=0, maximum=256, automatic=0),
        Setting("tree_budget", "speculation", "int", 16, "drafted nodes verified at once", minimum=1, maximum=1024),
        Setting("adaptive_budget", "speculation", "bool", False, "grow trees only while it pays, by measured cost"),
        Setting("draft_window", "speculation", "int", 0, window, minimum=0),
        Setting("lookup", "speculation", "choice", "off", lookup, choices=("off", "on", "auto")),
    )


def _service() -> tuple[Setting, ...]:
    key_file = "file with the key requests must carry; empty: none"
    interval = "longest time between two decode lines of one request"
    reasoning = "format of the model's reasoning; empty: none"
    calls = "format of the model's tool calls; empty: none"
    return (
        Setting("host", "server", "text", "127.0.0.1", "address the engine listens on"),
        Setting("port", "server", "int", 8765, "TCP port the engine listens on", minimum=1, maximum=65535),
        Setting(
            "max_running_requests", "server", "int", 1, "requests decoded at the same time", minimum=1, maximum=1024
        ),
        Setting("reasoning_parser", "server", "choice", "", reasoning, choices=("", "qwen3", "deepseek_r1", "kimi_k2")),
        Setting(
            "tool_parser", "server", "choice", "", calls, choices=("", "hermes", "qwen3", "qwen3_coder", "kimi_k2")
        ),
        Setting("api_key_file", "server", "path", "", key_file, secret=True),
        Setting("tensor_parallel", "parallel", "int", 1, "GPUs the model is spread over", only_default=True),
        Setting("interval_s", "log", "float", 1.0, interval, minimum=0.01, maximum=3600.0),
    )


SETTINGS: tuple[Setting, ...] = (*_model(), *_context(), *_kv(), *_speculation(), *_service())


def find(name: str, table: Iterable[Setting] = SETTINGS) -> Setting:
    """The setting called `name` (`page_size` or `kv.page_size`); an unknown one is a `UsageError` with the nearest."""
    known = {setting.name: setting for setting in table}
    qualified = {f"{setting.table}.{setting.name}": setting for setting in known.values()}
    found = known.get(name) or qualified.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1, cutoff=0.0)
    raise UsageError("no such setting", where=name, mend=f"the nearest is {near[0]}" if near else None)


def parse_changes(changes: Mapping[str, Any], table: Iterable[Setting] = SETTINGS) -> dict[str, Value]:
    """`--set` pairs (leaf name -> text or value) as typed values; raises `UsageError` for the first that is wrong."""
    table = tuple(table)
    out: dict[str, Value] = {}
    for name, value in changes.items():
        setting = find(name, table)
        if setting.name in out:
            raise UsageError("is given twice", where=setting.name)
        out[setting.name] = setting.accept(value)
    return out


def check_together(values: Mapping[str, Value]) -> None:
    """What no single setting shows; raises `UsageError`. `values` is the complete set, leaf name -> value."""
    if not values["path"]:
        raise UsageError("no model is named", where="path", mend="set it to a model folder on the box")
    if values["mode"] != "off" and not values["drafter"]:
        raise UsageError(
            f"{values['mode']} needs a drafter", where="mode", mend="set drafter to its folder, or mode=off"
        )
    if not values["api_key_file"] and not _only_this_machine(str(values["host"])):
        raise UsageError(
            f"{values['host']} is open to other machines, and no key is set",
            where="host",
            mend="set api_key_file to a file with a key, or host=127.0.0.1",
        )


def _only_this_machine(host: str) -> bool:
    """Whether nobody else can reach that address: the engine's own rule (engine/server/auth.py)."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
