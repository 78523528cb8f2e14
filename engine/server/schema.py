"""What the endpoints take. What the engine does not know or cannot do is refused by name, never dropped."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from engine.server.body import UNSUPPORTED, is_neutral

Mode = Literal["off", "dflash", "ddtree"]
LookupChoice = Literal["off", "on", "auto"]


class Strict(BaseModel):
    """No coercion, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(Strict):
    """`include_usage`: one more chunk at the end, with no choices and the usage."""

    include_usage: bool = False


class SpeculationChoice(Strict):
    """A request's own speculation, over the service's. `tree_budget` counts drafted nodes and belongs to ddtree, `lookup` to both
    modes that draft.
    """

    mode: Mode | None = None
    tree_budget: Annotated[int, Field(ge=1, le=1024)] | None = None
    lookup: LookupChoice | None = None


def _token_ids(value: dict[str, float]) -> dict[str, float]:
    strange = next((name for name in value if not name.isascii() or not name.isdigit() or len(name) > 9), None)
    if strange is not None:
        raise ValueError("its keys are token ids")
    return value


def _stop_strings(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class GenerationBody(Strict):
    """What both completion endpoints take."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100.0)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]], AfterValidator(_token_ids)] = {}
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(max_length=16), BeforeValidator(_stop_strings)
    ] = []
    stop_token_ids: Annotated[list[int], Field(max_length=64)] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    speculation: SpeculationChoice = SpeculationChoice()

    @model_validator(mode="before")
    @classmethod
    def leave_out_what_asks_for_nothing(cls, data: Any) -> Any:
        """null means absent, and a neutral value of an unsupported parameter changes nothing."""
        if not isinstance(data, dict):
            return data
        known = cls.model_fields.keys() | UNSUPPORTED.keys()
        return {
            name: value
            for name, value in data.items()
            if not (value is None and name in known) and (name in cls.model_fields or not is_neutral(name, value))
        }

    @model_validator(mode="after")
    def check_together(self) -> GenerationBody:
        """Rules over more than one field."""
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise ValueError(f"max_tokens {both[0]} and max_completion_tokens {both[1]} contradict each other")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if self.limit is not None and self.min_tokens > self.limit:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.limit}")
        return self

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to tell of with each token's log-probability; None where none are wanted."""
        return None

    @property
    def limit(self) -> int | None:
        """The most tokens asked for, by either name; None: as many as the context holds."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens


def _one_prompt(value: Any) -> Any:
    """A text, or token ids; a list around exactly one of them is taken off."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        raise ValueError("one prompt a request: a text or a list of token ids")
    return value


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[str | list[int], BeforeValidator(_one_prompt)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def alternatives(self) -> int | None:
        """See the class above."""
        return self.logprobs


def _text(value: Any) -> Any:
    """Content as a text: given in parts, they are joined."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text" for part in value):
        raise ValueError('a text, or parts {"type": "text", "text": …}; no other kind is supported')
    if not all(isinstance(part["text"], str) for part in value):
        raise ValueError("the text of a part is not a text")
    return "".join(part["text"] for part in value)


class Function(Strict):
    """A function that was called; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(Strict):
    """A call in an earlier answer of the conversation."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_text)] = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def has_something_to_say(self) -> Message:
        """Only an assistant that called tools may have no content."""
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it: arguments of calls as objects, where they are objects."""
        written = self.model_dump(exclude_none=True)
        for call in written.get("tool_calls", ()):
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                continue  # cut short by a length: the template gets it as the text it is
            if isinstance(arguments, dict):
                call["function"]["arguments"] = arguments
        return written


class ToolFunction(Strict):
    """A function the model may call."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool of the request."""

    type: Literal["function"]
    function: ToolFunction


def _tool_choice(value: Any) -> Any:
    match value:
        case "auto" | "none" | "required":
            return value
        case {"type": "function", "function": {"name": str(), **other}, **others} if not other and not others:
            return value
    raise ValueError('auto, none, required, or {"type": "function", "function": {"name": …}}')


class JsonSchema(Strict):
    """A schema for the answer, and what it is called. It is enforced, whether `strict` or not."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def a_schema_where_there_is_to_be_one(self) -> ResponseFormat:
        """And none elsewhere."""
        if (self.json_schema is None) is (self.type == "json_schema"):
            raise ValueError("json_schema belongs to type json_schema, and to no other")
        return self


def _own_switches(value: dict[str, Any]) -> dict[str, Any]:
    """What the server itself hands to the template may not come by this way: it would be overridden, or override."""
    taken = [name for name in ("messages", "tools", "add_generation_prompt") if name in value]
    if taken:
        raise ValueError(f"{taken[0]} is none of the template's own switches")
    return value


Switches = Annotated[dict[str, Any], AfterValidator(_own_switches)]


class ChatBody(GenerationBody):
    """POST /v1/chat/completions. `chat_template_kwargs` are the template's own switches."""

    messages: Annotated[list[Message], Field(min_length=1)]
    chat_template_kwargs: Switches = {}
    tools: list[Tool] = []
    tool_choice: Annotated[Any, AfterValidator(_tool_choice)] = "auto"
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0

    @model_validator(mode="after")
    def alternatives_need_probabilities(self) -> ChatBody:
        """top_logprobs alone asks for nothing that can be told."""
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def alternatives(self) -> int | None:
        """See the class above."""
        return self.top_logprobs if self.logprobs else None

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools the model is told of."""
        return [] if self.tool_choice == "none" else [tool.model_dump(exclude_none=True) for tool in self.tools]

    @property
    def must_call(self) -> bool:
        """Whether the answer has to call a tool."""
        return self.tool_choice not in ("auto", "none")

    @property
    def named_function(self) -> str | None:
        """The one function that is to be called."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The schema that the answer must hold under, empty for any object; None where it may be any text."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        return {} if wanted.json_schema is None else wanted.json_schema.schema_

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Each function's parameters by name, as JSON schemas."""
        found = {tool.function.name: (tool.function.parameters or {}).get("properties") for tool in self.tools}
        return {name: properties for name, properties in found.items() if isinstance(properties, dict)}


class TokenizeBody(Strict):
    """POST /tokenize: a prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    chat_template_kwargs: Switches = {}

    @model_validator(mode="after")
    def one_of_two(self) -> TokenizeBody:
        """Exactly one thing to tokenize."""
        if (self.prompt is None) is (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self
