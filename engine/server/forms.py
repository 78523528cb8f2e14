"""`tool_choice`, `response_format` and `strict`: the form an answer must have, in the way the service's models write it.

What cannot be enforced is refused by name. Before the form a model that reasons may do so.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.grammar.automaton import Automaton, Grammar, Symbol
from engine.grammar.constraint import Form
from engine.grammar.json_form import JsonForm, UnsupportedSchemaError
from engine.server.errors import ApiError
from engine.server.message import (
    CALL,
    CALLED,
    FUNCTION,
    KIMI_ARGUMENTS,
    KIMI_CALL,
    KIMI_CALLED,
    MARKERS,
    SECTION,
    SECTION_END,
    THINK,
    THOUGHT,
    Format,
    MessageParser,
)
from engine.server.schema import ChatBody, Tool
from engine.server.service import Serving
from engine.server.xml_arguments import FUNCTION_END, PARAMETER, PARAMETER_END, kinds_of

MOST_KIMI_CALLS = 32
"""So many calls may be in one answer where each has a number of its own."""


def form_of(engine: Serving, body: ChatBody, parser: MessageParser | None) -> Form | None:
    """The form a chat answer must have; None where it may be any text. Raises ApiError 400."""
    if not body.must_call:
        _refuse_what_needs_a_call(body)
    if not body.must_call and body.json_schema is None:
        return None
    param = "tool_choice" if body.must_call else "response_format"
    _check_company(body, param)
    tokenizer = engine.tokenizer
    if tokenizer is None or not tokenizer.is_byte_level:
        raise _refusal(param, "this model's tokenizer does not say which bytes its tokens are")
    if not engine.end_ids:
        raise _refusal(param, "this model names no token that ends an answer")
    grammar = Grammar()
    if body.must_call:
        said = _calls(grammar, body, "" if parser is None else parser.tools)
    else:
        said = _json_value(JsonForm(grammar), body.json_schema)
    root = grammar.rule((*_reasoning(grammar, parser), said))
    shown = {} if parser is None else tokenizer.special_ids(MARKERS)
    pieces = tokenizer.pieces
    written = {token: text.encode() for token, text in shown.items()}

    def bytes_of(token: int) -> bytes:
        return written.get(token) or (pieces[token] if token < len(pieces) else b"")

    return Form(Automaton(grammar, root), bytes_of, engine.end_ids)


def _refuse_what_needs_a_call(body: ChatBody) -> None:
    """Where the model may call or not, nothing holds its calls to one, or to their schemas."""
    mend = "is enforced only where tool_choice is required or names a function"
    if not body.parallel_tool_calls:
        raise _refusal("parallel_tool_calls", f"false {mend}")
    for number, tool in enumerate(body.tools):
        if tool.function.strict:
            raise _refusal(f"tools.{number}.function.strict", f"true {mend}")


def _check_company(body: ChatBody, param: str) -> None:
    """What else of a request the form leaves no room for."""
    if body.must_call and body.json_schema is not None:
        raise _refusal("response_format", "an answer that must call a tool has no other form")
    if not body.must_call and body.offered:
        raise _refusal(
            param, "with tools on offer it is not enforced; set tool_choice to none, or to required without it"
        )
    for name, asked in (("ignore_eos", body.ignore_eos), ("min_tokens", bool(body.min_tokens))):
        if asked:
            raise _refusal(name, f"an answer with {param} ends when it is whole")


def _reasoning(grammar: Grammar, parser: MessageParser | None) -> tuple[Symbol, ...]:
    if parser is None or not parser.reasons:
        return ()
    thought: tuple[Symbol, ...] = (grammar.until(THOUGHT), grammar.at_most(2, frozenset(b"\n")))
    return thought if parser.inside else (grammar.optional(*grammar.word(THINK), *thought),)


def _json_value(form: JsonForm, schema: Mapping[str, Any] | None) -> int:
    if not schema:
        return form.any_object()
    try:
        return form.value_of(schema, "schema")
    except UnsupportedSchemaError as fault:
        raise _refusal("response_format", f"{fault} (json_schema)") from fault


def _calls(grammar: Grammar, body: ChatBody, written: Format) -> int:
    """One call of the functions that may be called, or several where those are allowed."""
    if not body.offered:
        raise _refusal("tool_choice", "there are no tools to choose from")
    callable_ = [tool for tool in body.tools if body.named_function in (None, tool.function.name)]
    if not callable_:
        near = difflib.get_close_matches(str(body.named_function), [tool.function.name for tool in body.tools], 1, 0.0)
        raise _refusal("tool_choice", f"no tool is called {body.named_function}; the nearest is {near[0]}")
    single = body.named_function is not None or not body.parallel_tool_calls
    if written == "kimi":
        return _kimi_section(grammar, callable_, body, 1 if single else MOST_KIMI_CALLS)
    call = grammar.rule(*(_call(grammar, tool, written) for tool in callable_))
    return grammar.rule((call,) if single else (call, grammar.repeated(*grammar.word("\n"), call)))


def _kimi_section(grammar: Grammar, tools: Sequence[Tool], body: ChatBody, most: int) -> int:
    """Calls as Kimi K2 writes them: the number in a call's id counts those of the whole conversation."""
    first = sum(len(message.tool_calls or ()) for message in body.messages)
    arguments, word = {tool.function.name: _arguments(grammar, tool) for tool in tools}, grammar.word
    rest = grammar.rule(word(SECTION_END))
    for number in reversed(range(first, first + most)):
        calls = [
            (*word(f"{KIMI_CALL}functions.{name}:{number}{KIMI_ARGUMENTS}"), rule, *word(KIMI_CALLED), rest)
            for name, rule in arguments.items()
        ]
        rest = grammar.rule(*calls, *([word(SECTION_END)] if number > first else []))
    return grammar.rule((*word(SECTION), rest))


def _call(grammar: Grammar, tool: Tool, written: Format) -> tuple[Symbol, ...]:
    """One call of one function, in tags or as JSON between tags."""
    name, word = tool.function.name, grammar.word
    if written == "xml":
        return (*word(f"{CALL}\n{FUNCTION}{name}>\n"), _tags(grammar, tool), *word(f"{FUNCTION_END}\n{CALLED}"))
    head = word(f'{CALL}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ')
    return (*head, _arguments(grammar, tool), *word(f"}}\n{CALLED}"))


def _arguments(grammar: Grammar, tool: Tool) -> int:
    """The rule of a function's arguments: by its schema; where that says more than is enforced, any object, unless strict."""
    schema = tool.function.parameters
    if not schema:
        return JsonForm(grammar).any_object()
    try:
        return JsonForm(grammar).value_of({**schema, "type": "object"}, "parameters")
    except UnsupportedSchemaError as fault:
        if tool.function.strict:
            raise _refusal("tools", f"{fault} ({tool.function.name}, strict)") from fault
        return JsonForm(grammar).any_object()


def _tags(grammar: Grammar, tool: Tool) -> int:
    """The same as tags, one for each argument in the schema's order. Texts hold no tag; others are JSON by their schema."""
    schema = tool.function.parameters or {}
    if tool.function.strict:
        raise _refusal("tools", "strict is not enforced in the format of qwen3_coder")
    properties, named = schema.get("properties"), schema.get("required")
    needed = named if isinstance(named, list) else []
    rest = grammar.rule(())
    for name, inner in reversed(properties.items() if isinstance(properties, dict) else ()):
        pair = (*grammar.word(f"{PARAMETER}{name}>\n"), *_tagged(grammar, schema, inner), *grammar.word("\n"))
        skipped: list[tuple[Symbol, ...]] = [] if name in needed else [(rest,)]
        rest = grammar.rule((*pair, rest), *skipped)
    return rest


def _tagged(grammar: Grammar, schema: Mapping[str, Any], inner: Any) -> tuple[Symbol, ...]:
    end = f"\n{PARAMETER_END}"
    kinds = set(kinds_of(inner))
    if kinds and "string" not in kinds and not {"object", "array"} & kinds:
        try:
            return (JsonForm(grammar).value_of(inner, "parameters"), *grammar.word(end))
        except UnsupportedSchemaError:
            pass  # its schema is not enforced, as in the other formats; any text is read as far as it can be
    return (grammar.until(end, (PARAMETER_END, PARAMETER, FUNCTION_END)),)


def _refusal(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", code="invalid_value", param=param)
