"""One answer over HTTP, whole or streamed, and the end of it when its client has gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.config import settings_sha
from engine.requests import Broken, Delta, Ended, GenerationRequest, Job, Output
from engine.scheduler import DrainingError, QueueFullError
from engine.server.admission import admit
from engine.server.answers import Answer
from engine.server.errors import ApiError
from engine.server.schema import GenerationBody
from engine.server.service import Service, Serving
from engine.server.streaming import DONE, EventStream, event

GONE = 499
"""Status for a client that left; nobody reads it."""


async def generate(
    service: Service,
    request: Request,
    body: GenerationBody,
    prompt_ids: Sequence[int],
    kind: Literal["completion", "chat"],
) -> Response:
    """Admit, queue and answer. Raises ApiError for all that is refused before the engine begins."""
    engine = service.serving()
    asked = admit(engine, body, prompt_ids, service.next_request_id())
    answer = Answer(
        kind=kind,
        id=service.public_id("cmpl" if kind == "completion" else "chatcmpl", asked.request_id),
        created=int(time.time()),
        model=engine.model_name,
        fingerprint=f"ddtree-{settings_sha(service.asked)}",
        token_ids=body.return_token_ids or engine.tokenizer is None,
    )
    outputs: asyncio.Queue[Output] = asyncio.Queue()
    job = _submit(engine, asked, outputs)
    if not body.stream:
        return await _whole(request, engine, job, outputs, answer)
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    return EventStream(_events(outputs, answer, include_usage), on_close=lambda: engine.scheduler.cancel(job))


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
    request: Request, engine: Serving, job: Job, outputs: asyncio.Queue[Output], answer: Answer
) -> Response:
    """The answer in one object, unless the client goes first."""
    collecting = asyncio.create_task(_collect(outputs, answer))
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return collecting.result() if collecting.done() else Response(status_code=GONE)
    finally:
        engine.scheduler.cancel(job)
        collecting.cancel()
        leaving.cancel()


async def _collect(outputs: asyncio.Queue[Output], answer: Answer) -> Response:
    texts: list[str] = []
    token_ids: list[int] = []
    while True:
        output = await outputs.get()
        match output:
            case Delta():
                texts.append(output.text)
                token_ids.extend(output.token_ids)
            case Ended():
                return JSONResponse(answer.whole("".join(texts), token_ids, output))
            case Broken():
                return _as_error(output).response()


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection; the body has been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _events(outputs: asyncio.Queue[Output], answer: Answer, include_usage: bool) -> AsyncIterator[str]:
    opening = answer.opening()
    if opening is not None:
        yield event(opening)
    while True:
        output = await outputs.get()
        match output:
            case Delta():
                if output.text or answer.token_ids:  # nothing to say yet where the text is held back
                    yield event(answer.more(output.text, list(output.token_ids)))
                continue
            case Ended():
                yield event(answer.closing(output))
                if include_usage:
                    yield event(answer.usage_chunk(output))
            case Broken():
                yield event(_as_error(output).body())
        yield DONE
        return


def _as_error(broken: Broken) -> ApiError:
    return ApiError(broken.status, broken.message, code=broken.code)
