"""tool_choice, response_format and strict over real HTTP: a model that knows nothing of JSON, held to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from engine_process import Server
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.grammar.automaton import DEAD, Automaton, Grammar
from engine.grammar.json_form import JsonForm
from engine.server.forms import _reasoning
from engine.server.message import MessageParser

DATA = Path(__file__).parents[2] / "data" / "tiny-ddtree"
SPECIAL = ["<|start|>", "<|end|>"]
PIECES = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz0123456789", *'{}[]":,<>/_-.\\|=', "Ġ", "Ċ", *"ABCDEFGH"]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}:"
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"far": {"type": "boolean"}, "how": {"enum": ["up", "down"]}, "n": {"type": "integer"}},
            "required": ["far"],
        },
    },
}
WAIT: dict[str, Any] = {"type": "function", "function": {"name": "wait", "parameters": {"properties": {}}}}
WAIT["function"]["parameters"]["additionalProperties"] = False
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b c", None]}, "n": {"type": "integer"}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
MODES = [{"mode": "off"}, {"mode": "dflash"}, {"mode": "ddtree", "tree_budget": 13}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with the letters that JSON and calls are written in."""
    assert len(set(PIECES)) == 64
    target = tmp_path_factory.mktemp("models") / "lettered"
    shutil.copytree(DATA / "target", target)
    tokenizer = Tokenizer(models.BPE(vocab={piece: token for token, piece in enumerate(PIECES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    return target


@pytest.fixture(scope="module", params=["hermes", "qwen3_coder", "kimi_k2"])
def client(request: pytest.FixtureRequest, folder: Path, start_server: Callable[..., Server]) -> openai.OpenAI:
    tables = f'tool_parser = "{request.param}"\nmax_running_requests = 4\n[context]\ncontext_length = 512\n'
    return start_server(tables, model=folder).until_ready().client()


@pytest.fixture(scope="module")
def server(folder: Path, start_server: Callable[..., Server]) -> Server:
    return start_server('tool_parser = "hermes"\n[context]\ncontext_length = 512\n', model=folder).until_ready()


def ask(client: openai.OpenAI, **wishes: Any) -> Any:
    extra = {"speculation": wishes.pop("speculation", {"mode": "ddtree"})}
    wanted: Any = {"model": "lettered", "messages": [{"role": "user", "content": "go"}], "max_tokens": 300, **wishes}
    return client.chat.completions.create(**wanted, extra_body=extra)


def looks(arguments: dict[str, Any]) -> bool:
    return (
        set(arguments) <= {"far", "how", "n"}
        and type(arguments["far"]) is bool
        and arguments.get("how", "up") in ("up", "down")
        and type(arguments.get("n", 0)) is int
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_answer_that_must_call_calls_in_every_format_and_mode(client: openai.OpenAI, seed: int) -> None:
    answers = []
    for speculation in MODES:
        answer = ask(
            client,
            tools=[LOOK, WAIT],
            tool_choice="required",
            seed=seed,
            speculation=speculation,
            parallel_tool_calls=False,
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        (call,) = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert looks(arguments) if call.function.name == "look" else (call.function.name, arguments) == ("wait", {})
        answers.append((call.function.name, arguments, answer.usage.completion_tokens))
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    "parameters",
    [{}, {"required": True}, {"properties": 3}, {"properties": {"x": 3}}, {"type": "array"}, {"$ref": "#/x"}],
    ids=str,
)
def test_a_tool_whose_schema_is_none_is_called_with_some_object(client: openai.OpenAI, parameters: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    choice = ask(client, tools=[tool], tool_choice="required", max_tokens=20).choices[0]
    assert choice.finish_reason in ("length", "tool_calls")


def test_a_named_function_is_called_once_streamed_or_whole(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {"tools": [LOOK, WAIT], "tool_choice": {"type": "function", "function": {"name": "look"}}}
    (call,) = ask(client, **wanted, temperature=0).choices[0].message.tool_calls
    assert call.function.name == "look" and looks(json.loads(call.function.arguments))
    pieces = [
        piece
        for chunk in ask(client, **wanted, temperature=0, stream=True)
        for piece in (chunk.choices[0].delta.tool_calls or [] if chunk.choices else [])
    ]
    assert [piece.function.name for piece in pieces if piece.function.name] == ["look"]
    assert "".join(piece.function.arguments or "" for piece in pieces) == call.function.arguments


def test_where_no_function_is_named_calls_follow_one_another_until_the_limit_or_the_end(client: openai.OpenAI) -> None:
    # Where a further call may begin, its first letter is what this model says rather than the end.
    bias = {str(PIECES.index(letter)): 30 for letter in "_<Ċ"}
    answer = ask(client, tools=[WAIT], tool_choice="required", temperature=0, max_tokens=250, logit_bias=bias).choices[
        0
    ]
    *calls, last = answer.message.tool_calls
    assert calls and {call.function.name for call in calls} == {"wait"}
    assert len({call.id for call in (*calls, last)}) == len(calls) + 1
    assert all(json.loads(call.function.arguments) == {} for call in calls)
    assert answer.finish_reason == "length" or json.loads(last.function.arguments) == {}


@pytest.mark.parametrize(
    "wishes", [{"temperature": 0}, {"seed": 4}, {"seed": 5, "temperature": 1.5, "top_p": 0.8}], ids=str
)
def test_an_answer_under_a_schema_holds_under_it_in_every_mode(server: Server, wishes: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    answers = [
        ask(server.client(), response_format=form, speculation=speculation, **wishes).choices[0]
        for speculation in MODES
    ]
    value = json.loads(answers[0].message.content)
    assert answers[0].finish_reason == "stop"
    assert set(value) <= {"ok", "kind", "n"} and type(value["ok"]) is bool and type(value["n"]) is int
    assert value.get("kind") in ("a", "b c", None)
    assert [answer.message.content for answer in answers] == [answers[0].message.content] * 3


@pytest.mark.parametrize("seed", range(4))
def test_any_object_is_json_as_far_as_it_goes(server: Server, seed: int) -> None:
    answer = ask(server.client(), response_format={"type": "json_object"}, seed=seed, max_tokens=120)
    text, grammar = answer.choices[0].message.content, Grammar()
    machine = Automaton(grammar, JsonForm(grammar).any_object())
    state = machine.read(machine.start, text.encode())
    assert state != DEAD and machine.is_whole(state) is (answer.choices[0].finish_reason == "stop")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_what_asks_for_no_form_changes_nothing(server: Server) -> None:
    plain = ask(server.client(), temperature=0, max_tokens=20).choices[0].message.content
    for neutral in ({"response_format": {"type": "text"}}, {"tool_choice": "none", "tools": [LOOK]}):
        assert ask(server.client(), temperature=0, max_tokens=20, **neutral).choices[0].message.content == plain


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"tool_choice": "required"}, "tool_choice", "there are no tools to choose from"),
        ({"tool_choice": "any"}, "tool_choice", "auto, none, required, or"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "auto, none, required, or"),
        (
            {"tools": [LOOK, WAIT], "tool_choice": {"type": "function", "function": {"name": "lock"}}},
            "tool_choice",
            "no tool is called lock; the nearest is look",
        ),
        ({"tools": [LOOK], "parallel_tool_calls": False}, "parallel_tool_calls", "only where tool_choice is required"),
        (
            {"tools": [WAIT, {"type": "function", "function": {**LOOK["function"], "strict": True}}]},
            "tools.1.function.strict",
            "true is enforced only where tool_choice is required or names a function",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "strict": True, "parameters": {"properties": {"x": {"minimum": 1}}}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
            "parameters.properties.x.minimum is not supported (f, strict)",
        ),
        (
            {"tools": [LOOK], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "an answer that must call a tool has no other form",
        ),
        ({"tools": [LOOK], "response_format": {"type": "json_object"}}, "response_format", "with tools on offer"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "ends when it is whole"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 3}, "min_tokens", "ends when it is whole"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema belongs to type json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"pattern": "a"}}}},
            "response_format",
            "schema.pattern is not supported (json_schema)",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(server: Server, body: Any, param: str, says: str) -> None:
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "go"}], **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert says in error["message"]


@pytest.mark.parametrize(
    ("inside", "text", "fits"),
    [
        (True, "Hm {} </think>\n\n{}", True),
        (True, "{}", False),
        (True, "a</think>b</think>{}", False),
        (False, "{}", True),
        (False, "<think>Hm</think>{}", True),
        (False, "Hm</think>{}", False),
    ],
)
def test_a_model_that_reasons_does_so_first(inside: bool, text: str, fits: bool) -> None:
    grammar = Grammar()
    root = grammar.rule((*_reasoning(grammar, MessageParser(True, "", inside)), JsonForm(grammar).any_object()))
    machine = Automaton(grammar, root)
    assert machine.is_whole(machine.read(machine.start, text.encode())) is fits
