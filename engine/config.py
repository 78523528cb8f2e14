"""EngineConfig: what `engine.toml` says, checked (contracts.md section 2).

Each table of the file is one frozen dataclass. A setting's range stands beside its default, and a setting whose
feature this engine does not have is refused by name as soon as it is switched on.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from engine.errors import EngineError

REASONING_PARSERS = ("", "qwen3", "deepseek_r1", "kimi_k2")
TOOL_PARSERS = ("", "hermes", "qwen3", "qwen3_coder", "kimi_k2")


def _setting(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    only: bool = False,
    secret: bool = False,
) -> Any:
    """A dataclass field with its range. `only`: no value but the default works in this engine yet."""
    rule = {"low": low, "high": high, "choices": choices, "only": only, "secret": secret}
    return field(default=default, metadata=rule)


@dataclass(frozen=True)
class ModelTable:
    """Which target and drafter, and the arithmetic they run in."""

    path: str = _setting("")
    drafter: str = _setting("")
    dtype: str = _setting("auto", choices=("auto", "bfloat16", "float32"))


@dataclass(frozen=True)
class ContextTable:
    """`context_length` in tokens, prompt and answer together; 0 is the model's own maximum.

    `rope_scaling` "yarn:F" stretches a model's positions F times.
    """

    context_length: int = _setting(0, low=0)
    rope_scaling: str = _setting("")


@dataclass(frozen=True)
class KvTable:
    """The paged KV pool. `pages` 0 sizes the pool from the context length and the memory there is."""

    page_size: int = _setting(16, low=1, high=256)
    kv_dtype: str = _setting("auto", only=True)
    memory_fraction: float = _setting(0.85, low=0.01, high=0.98)
    pages: int = _setting(0, low=0)
    prefix_cache: bool = _setting(True)


@dataclass(frozen=True)
class SpeculationTable:
    """`tree_budget` counts drafted nodes a round, the root left out; `block_size` 0 is the drafter's own."""

    mode: str = _setting("ddtree", choices=("off", "dflash", "ddtree"))
    block_size: int = _setting(0, low=0, high=256)
    tree_budget: int = _setting(16, low=1, high=1024)
    adaptive_budget: bool = _setting(False)
    draft_window: int = _setting(0, low=0)
    lookup: str = _setting("off", choices=("off", "on", "auto"))


@dataclass(frozen=True)
class ServerTable:
    """Where the HTTP side listens and how many requests it runs at a time."""

    host: str = _setting("127.0.0.1")
    port: int = _setting(8765, low=0, high=65535)
    max_running_requests: int = _setting(1, low=1, high=1024)
    reasoning_parser: str = _setting("", choices=REASONING_PARSERS)
    tool_parser: str = _setting("", choices=TOOL_PARSERS)
    api_key_file: str = _setting("", secret=True)


@dataclass(frozen=True)
class ParallelTable:
    """How many devices share the model."""

    tensor_parallel: int = _setting(1, only=True)


@dataclass(frozen=True)
class LogTable:
    """Seconds between two `decode` lines of one request."""

    interval_s: float = _setting(1.0, low=0.01, high=3600.0)


@dataclass(frozen=True)
class EngineConfig:
    """All of `engine.toml`; every table has working defaults but the model's path."""

    model: ModelTable = field(default_factory=ModelTable)
    context: ContextTable = field(default_factory=ContextTable)
    kv: KvTable = field(default_factory=KvTable)
    speculation: SpeculationTable = field(default_factory=SpeculationTable)
    server: ServerTable = field(default_factory=ServerTable)
    parallel: ParallelTable = field(default_factory=ParallelTable)
    log: LogTable = field(default_factory=LogTable)


def load_config(path: Path | str) -> EngineConfig:
    """The configuration in a TOML file. Raises EngineError naming the file where it cannot be read or is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(f"cannot read the settings ({error.strerror})", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise EngineError("the settings file is not UTF-8 text", where=str(path)) from error
    return config_from_toml(text, where=str(path))


def config_from_toml(text: str, *, where: str = "engine.toml") -> EngineConfig:
    """Parse and check TOML text. Without a drafter an unsaid `mode` is "off"; a said one needs its drafter."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EngineError(f"not valid TOML ({error})", where=where) from error
    config = EngineConfig(**{table: _read_table(table, keys, where) for table, keys in tables.items()})
    if not config.model.path:
        raise EngineError("no model is named", where=where, mend="set path in [model] to a model folder")
    if config.speculation.mode == "off" or config.model.drafter:
        return config
    if "mode" in tables.get("speculation", {}):
        raise EngineError(
            f'mode = "{config.speculation.mode}" needs a drafter',
            where=f"{where} [speculation]",
            mend='set drafter in [model], or mode = "off"',
        )
    return replace(config, speculation=replace(config.speculation, mode="off"))


def check_setting(name: str, value: Any, *, where: str) -> Any:
    """One leaf setting's value against its type and range, for values that come from a command line."""
    kind = _TABLES[_home(name, where)]
    leaf = next(leaf for leaf in fields(kind) if leaf.name == name)
    return _checked(leaf, get_type_hints(kind)[name], value, where)


def leaf_settings(config: EngineConfig) -> dict[str, Any]:
    """Leaf name -> value, in the file's order, as `--set` names them; what points at secrets is left out."""
    return {
        leaf.name: getattr(getattr(config, table), leaf.name)
        for table, kind in _TABLES.items()
        for leaf in fields(kind)
        if not leaf.metadata["secret"]
    }


def settings_sha(config: EngineConfig) -> str:
    """First 12 hex digits of the SHA-256 of the leaf settings: equal settings, equal sha."""
    canonical = json.dumps(leaf_settings(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


_TABLES: Mapping[str, type[Any]] = get_type_hints(EngineConfig)
_TYPE_WORDS: Mapping[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _read_table(table: str, keys: Any, where: str) -> Any:
    if table not in _TABLES:
        nearest = difflib.get_close_matches(table, list(_TABLES), n=1, cutoff=0.0)[0]
        raise EngineError(f"unknown table [{table}]", where=where, mend=f"the nearest known one is [{nearest}]")
    if not isinstance(keys, dict):
        raise EngineError(f"{table} is a value, not a table", where=where, mend=f"write it as [{table}]")
    kind, place = _TABLES[table], f"{where} [{table}]"
    leaves = {leaf.name: leaf for leaf in fields(kind)}
    hints = get_type_hints(kind)
    for key in keys.keys() - leaves.keys():
        home = _home(key, place)
        raise EngineError(f"{key} does not belong here", where=place, mend=f"move it to [{home}]")
    return kind(**{key: _checked(leaves[key], hints[key], value, place) for key, value in keys.items()})


def _home(name: str, where: str) -> str:
    """The table a leaf setting lives in; an unknown name is an error that offers the nearest known one."""
    homes = {leaf.name: table for table, kind in _TABLES.items() for leaf in fields(kind)}
    if name not in homes:
        nearest = difflib.get_close_matches(name, list(homes), n=1, cutoff=0.0)[0]
        mend = f"the nearest known one is {nearest} in [{homes[nearest]}]"
        raise EngineError(f"unknown setting {name}", where=where, mend=mend)
    return homes[name]


def _checked(leaf: Field[Any], hint: Any, value: Any, where: str) -> Any:
    wanted = hint if isinstance(hint, type) else str
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise EngineError(f"{leaf.name} = {json.dumps(value, default=str)} is not {_TYPE_WORDS[wanted]}", where=where)
    rule, shown = leaf.metadata, json.dumps(value)
    if rule["only"] and value != leaf.default:
        raise EngineError(
            f"{leaf.name} = {shown} is not supported by this engine",
            where=where,
            mend=f"leave it at {json.dumps(leaf.default)}",
        )
    if rule["choices"] and value not in rule["choices"]:
        words = ", ".join(filter(None, rule["choices"])) + (' or ""' if "" in rule["choices"] else "")
        raise EngineError(f"{leaf.name} = {shown} is not one of {words}", where=where)
    low, high = rule["low"], rule["high"]
    if isinstance(value, float) and not math.isfinite(value):
        raise EngineError(f"{leaf.name} = {shown} is not a finite number", where=where)
    if (low is not None and value < low) or (high is not None and value > high):
        span = f"below {low:g}" if high is None else f"outside {low:g}-{high:g}"
        raise EngineError(f"{leaf.name} = {shown} is {span}", where=where)
    return value
