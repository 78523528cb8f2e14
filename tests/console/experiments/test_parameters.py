"""Parameters are strict, and header expressions are arithmetic and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.experiments.params import Param, resolve_params
from console.experiments.script.expression import ExpressionError, parse_expression

PARAMS = (
    Param("levels", "int_list", default=[50, 1000, 12000], min=16, max="engine.max_context-tokens"),
    Param("tokens", "int", default=128, min=16, max=4096),
    Param("rate", "float", default=0.5, min=0.0, max=1.0),
    Param("natural", "bool", default=False),
    Param("kind", "choice", default="prose", choices=("prose", "code")),
    Param("name", "str", default="abc", pattern="[a-z]+"),
    Param("pause", "duration", default="5s", min=1, max="tokens"),
    Param("key", "secret", default=""),
)
ENGINE = {"engine.max_context": 8192}


def resolved(**given: Any) -> dict[str, Any]:
    return resolve_params(PARAMS, given, ENGINE, where="sound")


def test_defaults_are_kept_within_what_this_engine_holds() -> None:
    assert resolved()["levels"] == [50, 1000, 8064]
    assert resolved(tokens=4096)["levels"] == [50, 1000, 4096]
    assert resolve_params(PARAMS, {}, {}, where="sound")["levels"] == [50, 1000, 12000]


def test_texts_of_a_command_line_become_typed_values() -> None:
    values = resolved(levels="[64, 128]", tokens="256", rate="1", natural="true", pause="90s")
    assert values["levels"] == [64, 128]
    assert values["tokens"] == 256
    assert isinstance(values["rate"], float)
    assert values["natural"] is True
    assert resolved(levels="64,128")["levels"] == [64, 128]


REFUSED = [
    ({"token": 5}, "no parameter 'token' (did you mean 'tokens'?)"),
    ({"tokens": 5}, "5 is below the min 16"),
    ({"tokens": 5000}, "5000 is above the max 4096"),
    ({"tokens": "many"}, "'many' is not an integer"),
    ({"tokens": True}, "true is not an integer"),
    ({"tokens": 16.0}, "16.0 is not an integer"),
    ({"rate": math.nan}, "is not a number"),
    ({"rate": "inf"}, "is not a number"),
    ({"natural": "yes"}, "'yes' is not true or false"),
    ({"natural": 1}, "1 is not true or false"),
    ({"kind": "cod"}, "did you mean 'code'"),
    ({"name": "ABC"}, "does not match the pattern"),
    ({"pause": "5"}, "is not a duration"),
    ({"pause": "100ms"}, "0.1 is below the min 1"),
    ({"pause": "1h"}, "3600 is above the max 128"),
    ({"levels": [64, 8065]}, "8065 is above the max 8064 = engine.max_context-tokens"),
    ({"levels": 64}, "64 is not a list of integers"),
    ({"levels": "64;128"}, "not a list of integers"),
    ({"key": 5}, "its value is not a string"),
]


@pytest.mark.parametrize(("given_values", "says"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_by_name(given_values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolved(**given_values)
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


VALUES = [
    ("6", 6),
    ("levels*reps*(6+tokens/40)", 3 * 2 * (6 + 80 / 40)),
    ("-2--3", 1),
    ("max(min(tokens, 50), 10, 20)", 50),
    ("engine.max_context-tokens-64", 8048),
    ("1e3*.5", 500),
    (" ( 1 + 2 ) * 3 ", 9),
    ("10/4*2", 5),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_expressions_are_ordinary_arithmetic(text: str, value: float) -> None:
    names = {"levels": 3, "reps": 2, "tokens": 80, "engine.max_context": 8192}
    assert parse_expression(text).value(names) == pytest.approx(value)


BROKEN = [
    "", "  ", "1+", "*2", "2**3", "7//2", "a.b()", "open(1)", "min(1)", "min()", "(1", "1)", "1 2", "a b", "__import__('os')",
    "'x'", "a[0]", "lambda: 1", "1 if a else 2", "a == b", "x=1", "é!", "1_000", "0x10", "a..b", ".5.", "-", "1;2", "(" * 60 + "1" + ")" * 60,
    "1+" * 400 + "1",
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_anything_else_is_no_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1/0", "divides by zero"),
        ("a/b", "unknown name"),
        ("1e308*1e308", "finite"),
        ("tokens/(tokens-tokens)", "zero"),
    ],
)
def test_an_expression_without_a_value_says_why(text: str, says: str) -> None:
    with pytest.raises(ExpressionError, match=says):
        parse_expression(text).value({"tokens": 8})


_NUMBERS = st.integers(0, 99).map(str)
_SUMS = st.recursive(
    _NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=12,
)


@given(_SUMS)
def test_expressions_agree_with_python(text: str) -> None:
    assert parse_expression(text).value({}) == eval(text, {"min": min, "max": max})


@given(st.text(max_size=40))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    try:
        parse_expression(text)
    except ExpressionError as error:
        assert 0 <= error.offset <= len(text)
