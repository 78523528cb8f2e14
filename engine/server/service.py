"""What the HTTP side knows of the engine: loading, serving or draining, and what it serves."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass, field
from typing import Literal

from engine.config import EngineConfig
from engine.runtime import Runtime
from engine.scheduler import Scheduler
from engine.server.errors import ApiError
from engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Serving:
    """A loaded engine that has generated a real token. `end_ids` are the model's own ends of text.

    `model_sha` and `drafter_sha` are one word each for the weights; None without a drafter.
    """

    runtime: Runtime
    tokenizer: Tokenizer | None
    scheduler: Scheduler
    model_name: str
    end_ids: frozenset[int]
    model_sha: str
    drafter_sha: str | None
    drafter_positions: int | None  # tokens of context that the drafter says it was made for


@dataclass
class Service:
    """State shared by the engine's thread, which moves it on, and the HTTP side, which reads it."""

    asked: EngineConfig  # as the file says; `Runtime.config` has the values in force
    state: Literal["loading", "serving", "draining"] = "loading"
    phase: str = "starting"
    engine: Serving | None = None
    started_s: float = field(default_factory=time.time)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def begin_phase(self, phase: str) -> None:
        """Loading goes on with `phase`."""
        self.phase = phase

    def begin_serving(self, engine: Serving) -> None:
        """A real token was generated: requests are welcome, unless a stop came first."""
        self.engine = engine
        if self.state == "loading":
            self.state, self.phase = "serving", "serving"

    def begin_draining(self) -> None:
        """No new work from here on."""
        self.state, self.phase = "draining", "shutting down"

    def serving(self) -> Serving:
        """The engine, for new work. Raises ApiError 503 while it loads or drains."""
        if self.state == "serving" and self.engine is not None:
            return self.engine
        if self.state == "draining":
            raise ApiError(503, "the engine is shutting down", code="shutting_down", retry_after_s=10)
        raise ApiError(503, f"the engine is loading: {self.phase}", code="loading", retry_after_s=5)

    def next_request_id(self) -> str:
        """`r1`, `r2`, …: the `req` of the log lines."""
        return f"r{next(self._ids)}"

    def public_id(self, prefix: str, request_id: str) -> str:
        """`cmpl-3f2a91c0-r17`: unlike any of another start of the engine, and still to be found in the log."""
        return f"{prefix}-{self._run}-{request_id}"
