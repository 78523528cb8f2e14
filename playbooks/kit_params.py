"""A script's own header, read on the box, and its parameters held against it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, Callable, Mapping

from kit_end import Stop


def read_header(script: Path) -> dict[str, Any]:
    """The `[tool.ddtree.playbook]` table of a script. Raises Stop for one that this reader cannot read."""
    lines = script.read_text(encoding="utf-8").splitlines()
    start = lines.index("# /// script")
    end = lines.index("# ///", start)
    text = "\n".join(line[2:] for line in lines[start + 1 : end])
    try:
        import tomllib
    except ImportError:  # Python 3.9 and 3.10
        table = read_plain_toml(text)
    else:
        table = tomllib.loads(text)
    found: dict[str, Any] = table["tool"]["ddtree"]["playbook"]
    return found


def read_plain_toml(text: str) -> dict[str, Any]:
    """TOML as headers use it: tables, and one `key = value` a line with strings, numbers, booleans and flat lists."""
    root: dict[str, Any] = {}
    table = root
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("["):
            table = root
            for part in stripped.strip("[]").split("."):
                table = table.setdefault(part.strip(), {})
            continue
        key, _, value = stripped.partition("=")
        table[key.strip()] = _plain_value(value.strip())
    return root


def _plain_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)  # a trailing `# comment` is a comment in Python too
    except (ValueError, SyntaxError):
        raise Stop("bad_params", f"the header holds {text!r}, which this Python has no reader for") from None


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "int_list": lambda value: isinstance(value, list) and all(_CHECKS["int"](one) for one in value),
    "float_list": lambda value: isinstance(value, list) and all(_CHECKS["float"](one) for one in value),
    "duration": lambda value: isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?(ms|s|m|h)", value) is not None,
}


def check_params(specs: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter with its value, typed and within plain bounds. Raises Stop(bad_params) naming the one at fault.

    Bounds that are expressions need facts of the engine; the console has judged those before it uploads.
    """
    unknown = sorted(given.keys() - specs.keys())
    if unknown:
        raise Stop("bad_params", f"no parameter {unknown[0]!r}; there are {', '.join(specs)}")
    values: dict[str, Any] = {}
    for name, spec in specs.items():
        if name not in given and "default" not in spec and spec["type"] != "secret":
            raise Stop("bad_params", f"{name} has no default and must be given")
        value = given.get(name, spec.get("default", ""))
        if not _CHECKS.get(spec["type"], lambda one: isinstance(one, str))(value):
            raise Stop("bad_params", f"{name}: {value!r} is not of type {spec['type']}")
        if spec["type"] == "choice" and value not in spec["choices"]:
            raise Stop("bad_params", f"{name}: {value!r} is none of {', '.join(spec['choices'])}")
        for one in value if isinstance(value, list) else [value]:
            low, high = spec.get("min"), spec.get("max")
            if isinstance(low, (int, float)) and isinstance(one, (int, float)) and one < low:
                raise Stop("bad_params", f"{name}: {one} is below {low}")
            if isinstance(high, (int, float)) and isinstance(one, (int, float)) and one > high:
                raise Stop("bad_params", f"{name}: {one} is above {high}")
        values[name] = value
    return values


def typed(spec: Mapping[str, Any], text: str) -> Any:
    """A `--param` text as a value; what cannot be read is left as text, for check_params to refuse."""
    if spec["type"] in ("str", "choice", "duration", "secret"):
        return text
    if spec["type"].endswith("_list") and not text.startswith("["):
        text = f"[{text}]"
    return json.loads(text) if re.fullmatch(r"[\[\]\d\s.,eE+-]+|true|false", text) else text
