"""Chat answers taken apart: reasoning, content, tool calls; any cut of the text gives the same message."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.server.message import CallBegan, CallWent, MessageParser, Part, Said, merged

Tools = Literal["", "json", "xml", "kimi"]


def parsed(
    text: str, tools: Tools = "", *, reasons: bool = True, inside: bool = False, cuts: tuple[int, ...] = ()
) -> list[Part]:
    parser = MessageParser(reasons, tools, inside, schemas=SCHEMAS)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts: list[Part] = []
    for start, stop in pairwise(edges):
        parts += parser.push(text[start:stop])
    return merged([*parts, *parser.finish()])


def reasoning(text: str) -> Said:
    return Said("reasoning_content", text)


def content(text: str) -> Said:
    return Said("content", text)


KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>'
    "<|tool_calls_section_end|>"
)
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "a } \\" ]b", "n": [1, {}]}}\n</tool_call>'

SCHEMAS: dict[str, dict[str, Any]] = {
    "write": {
        "path": {"type": "string"},
        "mode": {"type": "integer"},
        "force": {"type": "boolean"},
        "lines": {"type": "array"},
        "owner": {"type": ["string", "null"]},
        "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "odd": {"anyOf": 3, "oneOf": {"type": "string"}, "type": 7},
    }
}


def xml(*pairs: tuple[str, str]) -> str:
    """A call of `write` as Qwen3-Coder's template writes it."""
    values = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in pairs)
    return f"<tool_call>\n<function=write>\n{values}</function>\n</tool_call>"


def write(arguments: str, index: int = 0) -> list[Part]:
    return [CallBegan(index, f"call_{index}", "write"), CallWent(index, arguments)]


CODE = 'if a < b:\n    print("<tag> \\\\ </parameter")\n\n'

CASES: list[tuple[str, Tools, bool, list[Part]]] = [
    ("plain < text </ with signs", "json", False, [content("plain < text </ with signs")]),
    (xml(), "xml", False, write("{}")),
    (
        "<think>Look.</think>I write.\n" + xml(("path", "a b"), ("mode", "420"), ("force", "True")) + "\n",
        "xml",
        False,
        [reasoning("Look."), content("I write."), *write('{"path": "a b", "mode": 420, "force": true}')],
    ),
    (
        xml(("path", "420"), ("lines", '["a", {"b": 1}]'), ("other", "null"), ("mode", "many"), ("size", "NaN")),
        "xml",
        False,
        write('{"path": "420", "lines": ["a", {"b": 1}], "other": "null", "mode": "many", "size": "NaN"}'),
    ),
    (
        xml(("owner", "null"), ("owner", "420"), ("size", "null"), ("size", "1.5e3")),
        "xml",
        False,
        write('{"owner": null, "owner": "420", "size": null, "size": 1.5e3}'),
    ),
    (xml(("path", CODE)), "xml", False, write(json.dumps({"path": CODE}))),
    (xml(("odd", "3")), "xml", False, write('{"odd": "3"}')),
    (xml(("path", "")), "xml", False, write('{"path": ""}')),
    (
        f"{xml(('path', 'é'))}\n{xml(('path', 'b'))}",
        "xml",
        False,
        [*write('{"path": "é"}'), *write('{"path": "b"}', 1)],
    ),
    # Tags that were left out: the outer ones, and the end of a value.
    ("Well.\n" + xml(("mode", "1"))[len("<tool_call>\n") :], "xml", False, [content("Well."), *write('{"mode": 1}')]),
    (
        "<tool_call><function=write><parameter=path>a<parameter=mode>1</function>",
        "xml",
        False,
        write('{"path": "a", "mode": 1}'),
    ),
    ("<tool_call>\n<function=write>\n<parameter=path>\nhalf a li", "xml", False, write('{"path": "half a li')),
    ("<tool_call>\n<function=write>\n<parameter=mode>\n42", "xml", False, write('{"mode": ')),
    ("<tool_call>\n<function=wri", "xml", False, [content("<tool_call>\n<function=wri")]),
    ("I would <tool_call> but no.", "xml", False, [content("I would<tool_call> but no.")]),
    (
        HERMES,
        "xml",
        False,
        [CallBegan(0, "call_0", "get_weather"), CallWent(0, '{"city": "a } \\" ]b", "n": [1, {}]}')],
    ),
    ("<think>\nHm, 1 < 2.\n</think>\n\nYes.", "", False, [reasoning("Hm, 1 < 2."), content("Yes.")]),
    ("Hm.\n</think>\n\nYes.\n", "", True, [reasoning("Hm."), content("Yes.\n")]),
    ("<think>\n\n</think>\n\nYes.", "", False, [content("Yes.")]),
    ("<think>never ends \n", "", False, [reasoning("never ends")]),
    (
        f"<think>Look.</think>I look.\n{HERMES}\n{HERMES}",
        "json",
        False,
        [
            reasoning("Look."),
            content("I look."),
            CallBegan(0, "call_0", "get_weather"),
            CallWent(0, '{"city": "a } \\" ]b", "n": [1, {}]}'),
            CallBegan(1, "call_1", "get_weather"),
            CallWent(1, '{"city": "a } \\" ]b", "n": [1, {}]}'),
        ],
    ),
    (
        '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call> done',
        "json",
        False,
        [CallBegan(0, "call_0", "f"), CallWent(0, '{"x": 1}'), content("done")],
    ),
    ("<tool_call>no json</tool_call>", "json", False, [content("<tool_call>no json</tool_call>")]),
    (
        '<tool_call>{"name": "f", "arguments": {"x": "cut of',
        "json",
        False,
        [CallBegan(0, "call_0", "f"), CallWent(0, '{"x": "cut of')],
    ),
    (
        f"thinking goes straight on {KIMI}",
        "kimi",
        True,
        [
            reasoning("thinking goes straight on"),
            CallBegan(0, "functions.get_weather:0", "get_weather"),
            CallWent(0, '{"city": "Oslo"}'),
            CallBegan(1, "functions.now:1", "now"),
            CallWent(1, "{}"),
        ],
    ),
    (
        'Sure.<|tool_call_begin|>functions.f:2<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>',
        "kimi",
        False,
        [content("Sure."), CallBegan(0, "functions.f:2", "f"), CallWent(0, '{"x": 1}')],
    ),
]


@pytest.mark.parametrize(("text", "tools", "inside", "message"), CASES)
def test_a_text_is_taken_apart(text: str, tools: Tools, inside: bool, message: list[Part]) -> None:
    assert parsed(text, tools, inside=inside) == message


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 260), max_size=12).map(tuple))
def test_any_cut_of_the_text_gives_the_same_message(
    case: tuple[str, Tools, bool, list[Part]], cuts: tuple[int, ...]
) -> None:
    text, tools, inside, message = case
    assert parsed(text, tools, inside=inside, cuts=cuts) == message


MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": ',
    "{}",
    "<function=write>",
    "<parameter=path>",
    "<parameter=mode>\n",
    "</parameter>",
    "</function>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_begin|>",
    "<",
    "\n",
    " ",
    "a",
    '"',
    "}",
]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(MARKS), max_size=14).map("".join),
    st.sampled_from(["", "json", "xml", "kimi"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=20).map(tuple),
)
def test_even_senseless_text_is_taken_apart_the_same_whatever_its_cuts(
    text: str, tools: Tools, reasons: bool, inside: bool, cuts: tuple[int, ...]
) -> None:
    assert parsed(text, tools, reasons=reasons, inside=inside, cuts=cuts) == parsed(
        text, tools, reasons=reasons, inside=inside
    )


@given(st.text(alphabet="ab <>/think\n"))
def test_text_without_parsers_passes_through_untouched(text: str) -> None:
    assert "".join(part.text for part in parsed(text, reasons=False) if isinstance(part, Said)) == text


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4)
    )
)
def test_arguments_of_any_kind_come_back_whole(arguments: dict[str, object]) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    began, *went = parsed(text, "json")
    assert began == CallBegan(0, "call_0", "f")
    assert json.loads("".join(part.arguments for part in went if isinstance(part, CallWent))) == arguments


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["", "  ", "<think>Hm </think>\n\n", "<think>\n</think>"]),
    st.sampled_from(['{"a": "<think>x</think> </think>"}', '{"<think>": 1}', "<thin>", " <th", "no"]),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_where_reasoning_comes_first_tags_in_the_content_are_content(before: str, answer: str, cuts: list[int]) -> None:
    text, parser, parts = before + answer, MessageParser(True, "", thinks_first=True), list[Part]()
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, stop in pairwise(edges):
        parts += parser.push(text[start:stop])
    said = merged([*parts, *parser.finish()])
    reasoned = [reasoning("Hm")] if "Hm" in before else []
    assert said == [*reasoned, content(answer.lstrip() if "think" in before else text)]
