"""Chat messages to prompt text, by the model's own jinja template, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(ValueError):
    """The template refuses these messages, in its own words, or cannot be run at all."""


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`: templates mark the assistant's words for training; here the body is all."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain set off the class

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """A compiled chat template. Templates come with model weights, so they run sandboxed and see no Python objects."""

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        """`special_tokens` maps bos_token, eos_token, … to their text. Raises ChatTemplateError on a syntax error."""

        def refuse(message: str) -> None:
            raise jinja2.TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as fault:
            raise ChatTemplateError(f"line {fault.lineno}: {fault.message}") from fault

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text. `arguments` are the template's own switches (enable_thinking, …).

        Raises ChatTemplateError with the template's words where it refuses (roles that must alternate, …).
        """
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **(arguments or {}),
                    "messages": [dict(message) for message in messages],
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (jinja2.TemplateError, TypeError, ValueError) as fault:
            # A template meets wrong values with Python's own errors too: still the request's fault, not the engine's.
            raise ChatTemplateError(str(fault)) from fault


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Plain JSON: jinja2's own filter escapes <, > and & for HTML, which models have never seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
