"""The OpenAI endpoints that take a prompt: completions, chat completions, and /tokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.chat_template import ChatTemplateError
from engine.server.admission import check_model
from engine.server.body import read_body
from engine.server.errors import ApiError
from engine.server.generation import generate
from engine.server.schema import ChatBody, CompletionBody, Message, TokenizeBody
from engine.server.service import Service
from engine.tokenizer import Tokenizer

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A prompt of a million tokens is some 5 MB of text; beyond this nothing sensible comes."""


async def completions(service: Service, request: Request) -> Response:
    """POST /v1/completions: a text or token ids."""
    body = read_body(CompletionBody, await _read(request))
    tokenizer = service.serving().tokenizer
    if isinstance(body.prompt, list):
        prompt_ids = body.prompt
    elif tokenizer is None:
        raise ApiError(
            400, "prompt: this model has no tokenizer; give token ids", code="unsupported_parameter", param="prompt"
        )
    else:
        prompt_ids = await asyncio.to_thread(tokenizer.encode, body.prompt)
    return await generate(service, request, body, prompt_ids, "completion")


async def chat_completions(service: Service, request: Request) -> Response:
    """POST /v1/chat/completions: messages, put through the model's template."""
    body = read_body(ChatBody, await _read(request))
    tokenizer = _tokenizer(service, "messages")
    arguments = {**body.chat_template_kwargs, **({"tools": body.offered} if body.offered else {})}
    prompt_ids = await _chat_ids(tokenizer, body.messages, arguments)
    return await generate(service, request, body, prompt_ids, "chat")


async def tokenize(service: Service, request: Request) -> Response:
    """POST /tokenize: `{"tokens", "count", "max_model_len"}` of a prompt or of messages."""
    body = read_body(TokenizeBody, await _read(request))
    engine = service.serving()
    check_model(engine, body.model)
    tokenizer = _tokenizer(service, "prompt")
    if body.messages is not None:
        tokens = await _chat_ids(tokenizer, body.messages, body.chat_template_kwargs)
    else:
        tokens = await asyncio.to_thread(
            tokenizer.encode, body.prompt or "", add_special_tokens=body.add_special_tokens
        )
    return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": engine.runtime.max_context})


def _tokenizer(service: Service, param: str) -> Tokenizer:
    tokenizer = service.serving().tokenizer
    if tokenizer is None:
        raise ApiError(
            400,
            f"{param}: this model has no tokenizer; send token ids to /v1/completions",
            code="unsupported_parameter",
            param=param,
        )
    return tokenizer


async def _chat_ids(tokenizer: Tokenizer, messages: list[Message], arguments: dict[str, Any]) -> list[int]:
    written = [message.for_template() for message in messages]
    try:
        return await asyncio.to_thread(tokenizer.encode_chat, written, arguments=arguments)
    except ChatTemplateError as refusal:
        raise ApiError(
            400, f"messages: the chat template refuses them: {refusal}", code="chat_template", param="messages"
        ) from refusal


async def _read(request: Request) -> bytes:
    """The whole body, as far as it may go; one that says it is longer is not waited for."""
    if encoding := request.headers.get("content-encoding", "identity").lower().replace("identity", ""):
        raise ApiError(415, f"the body is {encoding}; send it as it is", code="unsupported_encoding")
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
        raise ApiError(413, f"the body is over {MAX_BODY_BYTES:,} bytes", code="body_too_large")
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is over {MAX_BODY_BYTES:,} bytes", code="body_too_large")
    return bytes(read)
