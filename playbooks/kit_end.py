"""How a run ends: the exit statuses of the event protocol, and the exception that ends one early."""

from __future__ import annotations

EXIT = {
    "done": 0,
    "exception": 1,
    "bad_params": 2,
    "failed_check": 3,
    "missing": 4,
    "engine": 5,
    "inconclusive": 6,
    "void": 7,
    "busy": 75,
    "deadline": 124,
    "cancelled": 130,
    "terminated": 143,
}


class Stop(Exception):
    """The run ends early; `status` is a key of EXIT and the message says why."""

    def __init__(self, status: str, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or status
