"""One answer over HTTP, whole or streamed, and the end of it when its client has gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.config import settings_sha
from engine.requests import Broken, Delta, Ended, GenerationRequest, Job, Output
from engine.scheduler import DrainingError, QueueFullError
from engine.server.admission import admit
from engine.server.answers import Answer
from engine.server.errors import GONE, ApiError
from engine.server.forms import form_of
from engine.server.logprobs import LogprobWriter
from engine.server.message import THINK, THOUGHT, Format, MessageParser
from engine.server.schema import ChatBody, GenerationBody
from engine.server.service import Service, Serving
from engine.server.streaming import DONE, EventStream, event
from engine.server.telling import Telling

_FORMATS: Mapping[str, Format] = {"hermes": "json", "qwen3": "json", "qwen3_coder": "xml", "kimi_k2": "kimi", "": ""}
"""The setting `tool_parser` and how such models write their calls."""


async def generate(
    service: Service,
    request: Request,
    body: GenerationBody,
    prompt_ids: Sequence[int],
    kind: Literal["completion", "chat"],
) -> Response:
    """Admit, queue and answer. Raises ApiError for all that is refused before the engine begins."""
    engine = service.serving()
    request_id = service.next_request_id()
    parser, form = None, None
    if isinstance(body, ChatBody):
        parser = _parser(engine, body, prompt_ids, request_id)
        form = await asyncio.to_thread(form_of, engine, body, parser)
        if parser is not None:
            parser.thinks_first = body.json_schema is not None  # a text inside the JSON may hold any tag
    asked = admit(engine, body, prompt_ids, request_id, parses=parser is not None, form=form)
    answer = Answer(
        kind=kind,
        id=service.public_id("cmpl" if kind == "completion" else "chatcmpl", request_id),
        created=int(time.time()),
        model=engine.model_name,
        fingerprint=f"ddtree-{settings_sha(service.asked)}",
        token_ids=body.return_token_ids or engine.tokenizer is None,
    )
    telling = Telling(answer, LogprobWriter(engine.tokenizer, kind == "chat"), parser)
    outputs: asyncio.Queue[Output] = asyncio.Queue()
    job = _submit(engine, asked, outputs)
    if not body.stream:
        return await _whole(request, engine, job, outputs, telling)
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    return EventStream(_events(outputs, telling, include_usage), on_close=lambda: engine.scheduler.cancel(job))


def _parser(engine: Serving, body: ChatBody, prompt_ids: Sequence[int], request_id: str) -> MessageParser | None:
    """What takes the answer apart, by the service's settings; None where nothing does."""
    settings, tokenizer = engine.runtime.config.server, engine.tokenizer
    if body.offered and not settings.tool_parser:
        raise ApiError(400, "tools: this service has no tool_parser set", code="unsupported_parameter", param="tools")
    tools: Format = _FORMATS[settings.tool_parser] if body.offered else ""
    if not settings.reasoning_parser and not tools:
        return None
    tail = tokenizer.decode(prompt_ids[-16:], skip_special_tokens=False).rstrip() if tokenizer is not None else ""
    opened = tail.endswith(THINK)
    if settings.reasoning_parser == "deepseek_r1":  # these begin to reason without saying so
        opened = not tail.endswith(THOUGHT)
    return MessageParser(
        bool(settings.reasoning_parser), tools, opened, lambda index: f"call_{request_id}_{index}", body.schemas
    )


def _submit(engine: Serving, asked: GenerationRequest, outputs: asyncio.Queue[Output]) -> Job:
    loop = asyncio.get_running_loop()

    def deliver(output: Output) -> None:  # called on the engine's thread
        loop.call_soon_threadsafe(outputs.put_nowait, output)

    try:
        return engine.scheduler.submit(asked, deliver)
    except QueueFullError as refusal:
        waiting = engine.scheduler.load().queued
        raise ApiError(
            429, f"{waiting} requests wait already, and no more may", code="queue_full", retry_after_s=5
        ) from refusal
    except DrainingError as refusal:
        raise ApiError(503, "the engine is shutting down", code="shutting_down", retry_after_s=10) from refusal


async def _whole(
    request: Request, engine: Serving, job: Job, outputs: asyncio.Queue[Output], telling: Telling
) -> Response:
    """The answer in one object, unless the client goes first."""
    collecting = asyncio.create_task(_collect(outputs, telling))
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return collecting.result() if collecting.done() else Response(status_code=GONE)
    finally:
        engine.scheduler.cancel(job)
        collecting.cancel()
        leaving.cancel()


async def _collect(outputs: asyncio.Queue[Output], telling: Telling) -> Response:
    deltas: list[Delta] = []
    while True:
        output = await outputs.get()
        match output:
            case Delta():
                deltas.append(output)
            case Ended():
                return JSONResponse(telling.whole(deltas, output))
            case Broken():
                return _as_error(output).response()


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection; the body has been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _events(outputs: asyncio.Queue[Output], telling: Telling, include_usage: bool) -> AsyncIterator[str]:
    opening = telling.answer.opening()
    if opening is not None:
        yield event(opening)
    while True:
        output = await outputs.get()
        match output:
            case Delta():
                for chunk in telling.chunks(output):
                    yield event(chunk)
                continue
            case Ended():
                for chunk in telling.last_chunks(output):
                    yield event(chunk)
                if include_usage:
                    yield event(telling.answer.usage_chunk(output))
            case Broken():
                yield event(_as_error(output).body())
        yield DONE
        return


def _as_error(broken: Broken) -> ApiError:
    return ApiError(broken.status, broken.message, code=broken.code)
