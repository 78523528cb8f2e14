"""Answers of a prescribed form: what the grammars describe, and that a tree's answer is the plain one under them as well."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.device.serving import not_covered
from engine.generate import generate
from engine.grammar.automaton import DEAD, Automaton, Grammar
from engine.grammar.constraint import Constraint, Form
from engine.grammar.json_form import JsonForm, UnsupportedSchemaError
from engine.prefill import begin, prefill, release
from engine.round import decode_round
from engine.runtime import Runtime, Sampling, Speculation
from engine.sampling import NothingFitsError

ORDER: dict[str, Any] = {
    "type": "object",
    "title": "An order",
    "properties": {
        "id": {"type": "integer", "description": "its number"},
        "kind": {"enum": ["new", "old é", None, 3]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 3},
        "note": {"type": ["string", "null"]},
        "total": {"anyOf": [{"type": "number"}, {"const": "unknown"}]},
        "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "required": ["id", "items"],
    "additionalProperties": False,
    "$defs": {
        "item": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}


def automaton(schema: Any = None) -> Automaton:
    grammar = Grammar()
    form = JsonForm(grammar)
    return Automaton(grammar, form.any_object() if schema is None else form.value_of(schema))


def whole(machine: Automaton, text: str) -> bool:
    return machine.is_whole(machine.read(machine.start, text.encode()))


def walked(machine: Automaton, seed: int, longest: int = 400) -> str | None:
    """A text of the grammar found by chance; None where it did not come to an end."""
    chance, state, text = random.Random(seed), machine.start, bytearray()
    while len(text) < longest:
        allowed = [byte for byte in range(256) if machine.step(state, byte) != DEAD]
        if machine.is_whole(state) and (not allowed or chance.random() < 0.9):
            return text.decode()
        assert allowed, f"a dead end after {bytes(text)!r}"
        closing = [byte for byte in allowed if byte in b'"}]']
        text.append(chance.choice(closing if closing and chance.random() < 0.5 else allowed))
        state = machine.step(state, text[-1])
    return None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(-1e9, 1e9).map(lambda value: round(value, 6))
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


ANY_OBJECT = automaton()


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.text(max_size=6), json_values, max_size=4), st.sampled_from([None, 1, 2, 4, "\t"]), st.booleans()
)
def test_every_object_that_a_printer_writes_is_one(value: dict[str, Any], indent: Any, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # half of a surrogate pair: no text at all
    if ascii_only and "\\ud" in text:
        return  # pairs of escapes for one character are not written here
    assert whole(ANY_OBJECT, text)
    assert not whole(ANY_OBJECT, text[:-1]) and ANY_OBJECT.read(ANY_OBJECT.start, text.encode()[:-1]) != DEAD


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[]",
            '"a"',
            "1",
            "{'a': 1}",
            '{"a": 1,}',
            '{"a" 1}',
            '{"a": 01}',
            '{"a": NaN}',
            '{"a": "\n"}',
            '{"a": 1} ',
            "{}{}",
        ),
        *('{"a": "\\x"}', '{"a": "\\ud800"}', '{"a": .5}', '{"a": 1.}', '{"a": +1}', '{"a": tru}', '{"a":\n\n1}'),
    ],
)
def test_what_is_no_object_is_none(text: str) -> None:
    assert not whole(ANY_OBJECT, text)


@pytest.mark.parametrize(
    "broken", [b"\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xff"]
)
def test_bytes_that_are_no_text_are_in_no_text(broken: bytes) -> None:
    assert ANY_OBJECT.read(ANY_OBJECT.start, b'{"a": "' + broken) == DEAD


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_grammar_describes_is_json(seed: int) -> None:
    text = walked(ANY_OBJECT, seed)
    assert text is None or isinstance(json.loads(text), dict)


def holds(value: Any) -> bool:
    """ORDER, written out by hand."""

    def item(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and set(value) <= {"name", "parts"}
            and isinstance(value.get("name"), str)
            and all(item(part) for part in value.get("parts", []))
        )

    return (
        set(value) <= set(ORDER["properties"])
        and type(value["id"]) is int
        and value.get("kind") in ("new", "old é", None, 3)
        and 1 <= len(value["items"]) <= 3
        and all(item(each) for each in value["items"])
        and isinstance(value.get("note"), str | None)
        and (value.get("total", "unknown") == "unknown" or type(value["total"]) in (int, float))
        and all(type(each) is bool for each in value.get("more", {}).values())
    )


def test_whatever_a_schemas_grammar_describes_holds_under_it() -> None:
    machine, found = automaton(ORDER), 0
    for seed in range(150):
        text = walked(machine, seed)
        if text is not None:
            found += 1
            assert holds(json.loads(text)), text
    assert found > 50


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"id": 7, "items": [{"name": "a"}]}', True),
        ('{"id":7,"kind":"old é","items":[{"name":"a","parts":[{"name":"b"}]}],"total":"unknown"}', True),
        ('{\n  "id": -7,\n  "items": [\n    {"name": "a"}\n  ],\n  "more": {"x": true}\n}', True),
        ('{"items": [{"name": "a"}], "id": 7}', False),  # another order than the schema's
        ('{"id": 7.5, "items": [{"name": "a"}]}', False),
        ('{"id": 7, "items": []}', False),
        ('{"id": 7, "items": [' + ", ".join(['{"name": "a"}'] * 4) + "]}", False),
        ('{"id": 7}', False),
        ('{"id": 7, "items": [{"name": "a"}], "other": 1}', False),
        ('{"id": 7, "kind": "newer", "items": [{"name": "a"}]}', False),
        ('{"id": 7, "items": [{"name": "a"}], "more": {"x": 1}}', False),
    ],
)
def test_a_schemas_own_rules_are_kept(text: str, fits: bool) -> None:
    assert whole(automaton(ORDER), text) is fits


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "a+"}, "schema.pattern is not supported"),
        ({"type": "object", "properties": {"x": {"minimum": 3}}}, "schema.properties.x.minimum is not supported"),
        ({"oneOf": [{"type": "string"}]}, "schema.oneOf is not supported"),
        ({"type": "text"}, "schema.type is not one of object, array"),
        ({"$ref": "other.json"}, "schema.$ref leads out of the schema"),
        ({"$ref": "#/$defs/x"}, "schema.$ref leads to #/$defs/x, which is not there"),
        ({"$ref": "#"}, "schema.$ref leads to another $ref"),
        ({"anyOf": []}, "schema.anyOf is no list with something in it"),
        ({"enum": ["a"], "type": "integer"}, "schema allows no value"),
        ({"enum": ["a"], "minItems": 1}, "enum beside minItems is not supported"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "schema.maxItems is less than minItems"),
        ({"type": "array", "minItems": None}, "schema.minItems is not a whole number of 0 to 256"),
        ({"type": "array", "maxItems": 10**6}, "schema.maxItems is not a whole number of 0 to 256"),
        ({"type": "object", "required": ["x"], "additionalProperties": False}, "names x, which nothing allows"),
        ({"type": "string", "properties": {}}, "schema.properties belongs to type object"),
        (False, "schema is no schema"),
    ],
)
def test_what_of_a_schema_is_not_enforced_is_refused_by_name(schema: Any, says: str) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        JsonForm(Grammar()).value_of(schema)
    assert says in str(caught.value)


def test_anything_up_to_a_word_and_nothing_after_it() -> None:
    grammar = Grammar()
    machine = Automaton(grammar, grammar.rule((grammar.until("</a>", ["<b"]), *grammar.word("!"))))
    assert whole(machine, "x </ </ </a>!") and whole(machine, "</a>!") and whole(machine, "<</a>!")
    assert not whole(machine, "</a>") and not whole(machine, "</a></a>!") and not whole(machine, "<b</a>!")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="<ab/>\n", max_size=14))
def test_a_word_is_found_where_it_first_ends(text: str) -> None:
    grammar = Grammar()
    machine = Automaton(grammar, grammar.until("\n</a>", ["</a>", "<b"]))
    first = text.find("\n</a>")
    before = text[: first + 5] if first >= 0 else text
    alone = first >= 0 and first + 5 == len(text) and "</a>" not in before[:-4] and "<b" not in before
    assert whole(machine, text) is alone


# Token 0 opens, 1 closes, 2 is a comma, 3 ends, all others are names of their own.
OPEN, CLOSE, COMMA, END = 0, 1, 2, 3


def nested_lists() -> Form:
    """Lists of names in lists, each in brackets, as the whole answer."""
    grammar = Grammar()
    each = grammar.rule()
    items = grammar.rule((each, grammar.repeated(*grammar.word(","), each)), ())
    lists = grammar.rule((*grammar.word("("), items, *grammar.word(")")))
    grammar.rules[each] = [(lists,), *(grammar.word(f"<{name}>") for name in range(4, 64))]
    texts = {OPEN: b"(", CLOSE: b")", COMMA: b",", END: b""}
    return Form(Automaton(grammar, lists), lambda token: texts.get(token, f"<{token}>".encode()), frozenset((END,)))


def is_nested_list(tokens: list[int]) -> bool:
    """Whether tokens are a list from its bracket to the end, as far as they go."""
    constraint = Constraint(nested_lists())
    for token in tokens:
        if not constraint.fits_after(())(token):
            return False
        constraint.add([token])
    return True


SAMPLINGS = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.4, "seed": 8, "top_k": 3, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.8, "seed": 2, "repetition_penalty": 1.3, "logit_bias": ((1, 4.0), (2, 2.0))},
]


@pytest.mark.parametrize("wishes", SAMPLINGS, ids=str)
@pytest.mark.parametrize("page_size", [1, 7])
def test_under_a_form_tree_chain_and_plain_answers_are_the_same(
    tiny: Callable[..., Runtime], page_size: int, wishes: dict[str, Any]
) -> None:
    runtime, kept, ended = tiny(page_size=page_size), 0, 0
    for prompt in ([9, 33, 2, 58, 17, 41], [30, 31, 32], [5]):
        sampling = Sampling(form=nested_lists(), **wishes)
        plain = generate(runtime, prompt, sampling, Speculation("off"), max_tokens=40, stop_ids={END})
        free = generate(runtime, prompt, Sampling(**wishes), Speculation("off"), max_tokens=40)
        assert plain.token_ids[0] == OPEN and is_nested_list(plain.token_ids) and not is_nested_list(free.token_ids)
        ended += plain.finish_reason == "stop"
        for speculation in (
            Speculation("dflash"),
            Speculation("ddtree", 13),
            Speculation("ddtree", 64),
            Speculation("ddtree", 16, "auto"),
        ):
            again = Sampling(form=nested_lists(), **wishes)
            answer = generate(runtime, prompt, again, speculation, max_tokens=40, stop_ids={END})
            assert (answer.token_ids, answer.finish_reason) == (plain.token_ids, plain.finish_reason)
            kept += sum(answer.commit_lengths) - answer.steps
    assert kept > 0, "drafts are kept under a form as well"


def test_the_device_round_leaves_answers_with_a_form_to_the_hosts_rounds(tiny: Callable[..., Runtime]) -> None:
    runtime = tiny()
    for form, why in ((nested_lists(), "requests whose answer has a form"), (None, None)):
        generation = begin(runtime, [9], Sampling(form=form), Speculation("ddtree", 4))
        assert not_covered(runtime, generation) == why
        release(runtime, generation)


def test_where_no_token_goes_on_the_request_fails_and_says_so(tiny: Callable[..., Runtime]) -> None:
    grammar = Grammar()
    form = Form(Automaton(grammar, grammar.rule(grammar.word("(?)"))), nested_lists().bytes_of, frozenset((END,)))
    runtime = tiny()
    generation = prefill(runtime, [9, 33], Sampling(form=form), Speculation("ddtree", 4))
    assert generation.token_ids == [OPEN]
    (step,) = decode_round(runtime, [generation])
    assert isinstance(step.failure, NothingFitsError) and generation.token_ids == [OPEN]
    release(runtime, generation, sound=False)
    assert runtime.pages_used == 0
