"""The values of a settings change: what would change, what it costs, how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from console.deployment.settings import SETTINGS, Setting, Value


@dataclass(frozen=True)
class Difference:
    """One setting's old and new value."""

    name: str
    old: Any
    new: Any


@dataclass(frozen=True)
class ChangePlan:
    """A validated change, ready to be staged: diff, capacity arithmetic in words, warnings, and what it stops."""

    host: str
    base_sha: str  # of the settings file this plan starts from: compare-and-swap
    differences: tuple[Difference, ...]
    text: str  # the whole new settings file
    capacity: tuple[str, ...] = ()  # lines of arithmetic for the operator
    warnings: tuple[str, ...] = ()
    restarts: bool = True
    requests_in_flight: int | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    """Every setting's value under the new file, leaf name -> value."""
    table: tuple[Setting, ...] = SETTINGS
    """The settings this engine knows."""


PhaseName = Literal[
    "staged", "armed", "checking", "clearing", "draining", "stopping", "loading", "ready", "probe", "soak", "waiting", "confirmed",
    "rolling_back", "rolled_back", "rollback_failed", "base_changed", "busy", "rejected",
]  # fmt: skip


InFlight = Literal["abort", "wait"]
"""What becomes of requests that run: a restart ends them, or the change waits until they have ended."""


@dataclass(frozen=True)
class Stray:
    """A process on the box that is in the way of a change and belongs to no service. `started` is its identity."""

    pid: int
    started: str | None
    command: str
    memory_bytes: int
    gpu_bytes: int
    port: int | None = None
    """The engine's port, where it is this process that listens on it."""


@dataclass(frozen=True)
class Choices:
    """What the operator decided about one change."""

    on_in_flight: InFlight = "abort"
    confirm_s: float | None = None
    """The change holds only if the operator says "confirm" within so many seconds after it proved itself; None: it holds then."""
    end: Sequence[Stray] = ()
    """Strays that may be ended."""


@dataclass(frozen=True)
class Phase:
    """One step of an apply as the box reports it; `elapsed_s` counts from the moment it was armed."""

    name: PhaseName
    elapsed_s: float
    text: str = ""
    left_s: float | None = None
    """Of a change that waits for a word: the seconds that the box still gives it, when this was read there."""


@dataclass(frozen=True)
class UnderWay:
    """The change that a box works on now, whoever asked for it."""

    request_id: str
    who: str
    waits: bool  # for the operator's word


@dataclass(frozen=True)
class Outcome:
    """How an apply ended. `reason` carries the engine's own line when it failed."""

    status: Literal["confirmed", "rejected", "base_changed", "busy", "rolled_back", "rollback_failed", "unknown"]
    request_id: str
    reason: str | None = None
    generation: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # in force afterwards
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True)
class Generation:
    """One numbered settings file on the box."""

    number: int
    sha: str
    when: str  # ISO 8601
    who: str
    outcome: str
    request_id: str | None = None
    differences: tuple[Difference, ...] = ()
