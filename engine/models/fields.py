"""Fields: the entries of a config.json, read one by one with a type and a range; what is wrong is named in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError

REQUIRED: Any = object()
"""The default of an entry that must be there."""

MOST = 2**20
"""Sizes beyond this are of no model there is; three of them still multiply to a number that tensors can have."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder, or an EngineError that says what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        mend = "give a Hugging Face model folder" if path.parent.is_dir() else "there is no such folder"
        raise EngineError(f"no {path.name} in the folder", where=str(path.parent), mend=mend) from error
    except NotADirectoryError as error:
        mend = "give the folder it lies in"
        raise EngineError("this is a file, not a model folder", where=str(path.parent), mend=mend) from error
    except RecursionError as error:
        raise EngineError("cannot read it as JSON (it is nested too deep)", where=str(path)) from error
    except (OSError, ValueError) as error:
        refuse_pointer(path)
        why = error.strerror if isinstance(error, OSError) else error
        raise EngineError(f"cannot read it as JSON ({why})", where=str(path)) from error
    if not isinstance(value, dict):
        raise EngineError("it holds no JSON object", where=str(path))
    return value


def refuse_pointer(path: Path) -> None:
    """Raise EngineError where a file holds no more than Git LFS's note of what it should hold."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(24) == b"version https://git-lfs.":
                mend = "run git lfs pull in the folder it came from, and copy it again"
                raise EngineError("it is a Git LFS pointer, not the file itself", where=str(path), mend=mend)


@dataclass(frozen=True)
class Fields:
    """A JSON object and where it stands. A missing entry and null are the same; a wrong one raises EngineError."""

    raw: Mapping[str, Any]
    where: str
    inside: str = ""  # the name of the nested object this is, for messages

    def has(self, key: str) -> bool:
        """Whether the entry is there and not null."""
        return self.raw.get(key) is not None

    def whole(self, key: str, default: Any = REQUIRED, *, low: int = 1, high: int = MOST) -> int:
        """A whole number of `low` to `high`."""
        value = self._value(key, default)
        if value is default or (type(value) is int and low <= value <= high):
            return int(value)
        too_large = type(value) is int and value > high
        raise self.wrong(key, f"is more than {high}" if too_large else f"is not a whole number of {low} or more")

    def number(self, key: str, default: Any = REQUIRED, *, above: float = 0.0) -> float:
        """A finite number above `above`."""
        value = self._value(key, default)
        if value is default or (type(value) in (int, float) and math.isfinite(value) and value > above):
            return float(value)
        raise self.wrong(key, f"is not a number above {above:g}")

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(key, default)
        if type(value) is bool:
            return value
        raise self.wrong(key, "is neither true nor false")

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        raise self.wrong(key, "is not a text")

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty where there is none; a lone text is a list of one."""
        value = self._value(key, ())
        if isinstance(value, str):
            return (value,)
        if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise self.wrong(key, "is not a list of texts")

    def wholes(self, key: str, *, low: int = 0) -> tuple[int, ...]:
        """A list of whole numbers of `low` or more, empty where there is none; a lone one is a list of one."""
        value = self._value(key, ())
        values = [value] if type(value) is int else value
        if isinstance(values, list | tuple) and all(type(item) is int and item >= low for item in values):
            return tuple(values)
        raise self.wrong(key, f"is not a list of whole numbers of {low} or more")

    def table(self, key: str) -> Fields:
        """A nested object, empty where there is none."""
        value = self._value(key, {})
        if isinstance(value, Mapping):
            return Fields(value, self.where, f"{self.inside}{key}.")
        raise self.wrong(key, "is not an object")

    def wrong(self, key: str, complaint: str) -> EngineError:
        """The error that says what an entry holds and what is wrong with it."""
        shown = json.dumps(self.raw.get(key), default=str)
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        return EngineError(f"config.json: {self.inside}{key} = {shown} {complaint}", where=self.where)

    def need(self, *keys: str) -> None:
        """Raise EngineError naming all of `keys` that are missing."""
        missing = [f"{self.inside}{key}" for key in keys if not self.has(key)]
        if missing:
            raise EngineError(f"config.json lacks {', '.join(missing)}", where=self.where)

    def _value(self, key: str, default: Any) -> Any:
        value = self.raw.get(key)
        if value is None and default is REQUIRED:
            self.need(key)
        return default if value is None else value
