"""A request's body, from bytes to checked fields; what is wrong with it is named field by field, and never shown."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from engine.server.errors import ApiError

UNSUPPORTED: Mapping[str, Sequence[Any]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "include_stop_str_in_output": (False,),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (),
    "prediction": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "user": (),
}
"""Parameters that clients know and this engine does not, each with the values that ask for nothing and are let through."""


_PLAIN = re.compile(r"[\w-]+")


def is_neutral(name: str, value: Any) -> bool:
    """Whether a parameter that is not supported asks for nothing."""
    # False == 0 in Python, but JSON's false is not a number: `n: true` must not pass as 1.
    return any(
        value == neutral and isinstance(value, bool) is isinstance(neutral, bool)
        for neutral in UNSUPPORTED.get(name, ())
    )


Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], raw: bytes) -> Body:
    """`raw` JSON as a checked body. Raises ApiError 400 that names every parameter at fault, and never their values."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    if first["type"] == "json_invalid":
        raise ApiError(400, f"the body is not JSON: {first['msg']}", code="invalid_json")
    unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
    messages = [_sentence(kind, fault["type"], fault["loc"], fault["msg"]) for fault in faults]
    code = "invalid_value"
    if unknown:
        code = "unsupported_parameter" if unknown[0]["loc"][-1] in UNSUPPORTED else "unknown_parameter"
    param = _path((unknown or faults)[0]["loc"])
    raise ApiError(400, "; ".join(dict.fromkeys(messages)), code=code, param=param or None)


def _sentence(kind: type[BaseModel], fault: str, location: tuple[int | str, ...], message: str) -> str:
    path = _path(location)
    if fault == "extra_forbidden":
        name = str(location[-1])
        if name in UNSUPPORTED and len(location) == 1:
            neutral = UNSUPPORTED[name]
            return f"{path}: this engine does not support it" + (f" (only {json.dumps(neutral[0])})" if neutral else "")
        close = difflib.get_close_matches(name, kind.model_fields, n=1) if len(location) == 1 else []
        return f"{path}: unknown parameter" + (f"; the nearest known one is {close[0]}" if close else "")
    text = message.removeprefix("Value error, ")
    return f"{path}: {text[:1].lower()}{text[1:]}" if path else text


def _path(location: tuple[int | str, ...]) -> str:
    """`messages.0.content`, the way to the field at fault; a name that is no plain word is quoted."""
    return ".".join(step if _PLAIN.fullmatch(step) else json.dumps(step) for step in map(str, location))
