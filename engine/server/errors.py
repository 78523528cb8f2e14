"""Errors in OpenAI's JSON shape, with the status that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

GONE = 499
"""Status for a client that left; nobody reads it."""


class ApiError(Exception):
    """A request that cannot be served: raised where the cause is known, turned into a response at the app's edge."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        """`code` is a word for programs, `param` the parameter at fault, `retry_after_s` when to try again."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The HTTP answer."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
