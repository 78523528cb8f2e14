"""The starlette app: which path leads where, and how errors leave it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.events import Event, Failed, Refused
from engine.server import endpoints, info
from engine.server.auth import RequireKey
from engine.server.errors import GONE, ApiError
from engine.server.info import Instruments
from engine.server.service import Service
from engine.server.trees import TreeFeed

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")


def create_app(
    service: Service,
    instruments: Instruments,
    trees: TreeFeed,
    tell: Callable[[Event], None],
    api_key: bytes | None = None,
) -> Starlette:
    """The app over one service. `tell` hears of refusals and failures on the HTTP side."""

    def refused(refusal: ApiError) -> None:
        # A parameter's name is the client's text: told only where it looks like a name.
        param = refusal.param if refusal.param and _PLAIN_NAME.fullmatch(refusal.param) else None
        tell(Refused(refusal.status, refusal.code, param))

    async def on_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)  # starlette finds handlers by type but types them by Exception
        refused(error)
        return error.response()

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        meant = get_close_matches(request.url.path, paths, n=1, cutoff=0.5) if error.status_code == 404 else []
        nearest = f"; the nearest path here is {meant[0]}" if meant else ""
        told = f"{request.method} {request.url.path}: {error.detail}{nearest}"
        answer = ApiError(error.status_code, told, code=code).response()
        answer.headers.update(error.headers or {})  # a 405 says which methods there are
        return answer

    async def on_leaving(request: Request, error: Exception) -> Response:
        return Response(status_code=GONE)  # in the middle of its own request: nobody is there to be answered

    async def on_failure(request: Request, error: Exception) -> Response:
        tell(Failed(where="http", error=type(error).__name__))  # its text may hold what the client sent
        return ApiError(500, f"the server failed: {type(error).__name__}", code="server_error").response()

    async def tree_stream(request: Request) -> Response:
        return trees.stream()

    def get(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, handler, methods=["GET"])

    def post(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, handler, methods=["POST"])

    routes = [
        post("/v1/completions", partial(endpoints.completions, service)),
        post("/v1/chat/completions", partial(endpoints.chat_completions, service)),
        post("/tokenize", partial(endpoints.tokenize, service)),
        get("/v1/models", partial(info.models, service)),
        get("/health", partial(info.health, service)),
        get("/ready", partial(info.ready, service)),
        get("/metrics", partial(info.metrics, service, instruments)),
        get("/server_info", partial(info.server_info, service, instruments)),
        get("/trees", tree_stream),
    ]
    paths = [route.path for route in routes]
    return Starlette(
        routes=routes,
        middleware=[] if api_key is None else [Middleware(RequireKey, key=api_key, on_refusal=refused)],
        exception_handlers={
            ApiError: on_refusal,
            HTTPException: on_http_error,
            ClientDisconnect: on_leaving,
            Exception: on_failure,
        },
    )
