"""A key for the endpoints that take prompts or show text; health and figures stay open for probes and the console."""

from __future__ import annotations

import hmac
import ipaddress
import os
import stat
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import EngineError
from engine.server.errors import ApiError
from engine.server.listen import UNIX

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/server_info"})


def read_api_key(path: str) -> bytes | None:
    """The key in a file that its owner alone may read; None where no file is named. Raises EngineError."""
    if not path:
        return None
    where = f"api_key_file {path}"
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read().strip()
    except OSError as error:
        raise EngineError(f"cannot be read ({error.strerror})", where=where) from error
    if mode & 0o077:
        raise EngineError(f"others may read it (mode {mode:04o})", where=where, mend=f"chmod 600 {path}")
    if not key:
        raise EngineError("it is empty", where=where, mend="put the key on its first line")
    return key


def require_key_off_loopback(host: str, key: bytes | None) -> None:
    """Raise EngineError for an address that other machines reach while no key is set."""
    if key is not None or host == "localhost" or host.startswith(UNIX):
        return
    try:
        private = ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = False
    if not private:
        mend = 'set api_key_file, or host = "127.0.0.1"'
        raise EngineError(f'host = "{host}" is open to other machines, and no key is set', where="[server]", mend=mend)


class RequireKey:
    """ASGI middleware: `Authorization: Bearer KEY`, compared in constant time; 401 otherwise."""

    def __init__(self, app: ASGIApp, key: bytes, on_refusal: Callable[[ApiError], None]) -> None:
        self._app = app
        self._key = key
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key):
            return await self._app(scope, receive, send)
        refusal = ApiError(401, "a valid API key is needed: Authorization: Bearer …", code="invalid_api_key")
        self._on_refusal(refusal)
        return await refusal.response()(scope, receive, send)
