"""The values that cross from the box to the rest of the console: link, command result, journal record, service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

LinkName = Literal["CONNECTING", "LIVE", "DEGRADED", "LOST", "RETRY", "CLOSED"]


@dataclass(frozen=True)
class LinkState:
    """The SSH link as one value. Times are seconds of the console's monotonic clock."""

    name: LinkName
    since_s: float
    latency_ms: float | None = None
    retry_at_s: float | None = None  # only in RETRY
    reason: str | None = None


@dataclass(frozen=True)
class Completed:
    """A finished remote command. `exit_status is None` means *outcome unknown* (signal or lost link), never success."""

    argv: tuple[str, ...]
    exit_status: int | None
    stdout: bytes
    stderr: bytes
    signal: str | None = None


@dataclass(frozen=True)
class Record:
    """One journal record. `message` is untrusted text: control codes are still in it and must be shown, not sent."""

    cursor: str
    realtime_us: int
    message: str
    priority: int = 6
    identifier: str | None = None
    pid: int | None = None
    boot_id: str | None = None
    monotonic_us: int | None = None
    invocation: str | None = None
    marker: Literal["gap", "reboot", "suppressed"] | None = None  # set on records the follower itself puts in
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def time(self) -> str:
        """`realtime_us` in ISO 8601, UTC, to the millisecond."""
        return datetime.fromtimestamp(self.realtime_us / 1e6, UTC).isoformat(timespec="milliseconds")


ServiceName = Literal[
    "serving",
    "starting",
    "stopping",
    "stopped",
    "failed",
    "start-limit-hit",
    "restarting",
    "start-timeout",
    "stuck-in-stop",
    "not-installed",
    "unknown",
]


@dataclass(frozen=True)
class ServiceState:
    """What the service manager says of the engine's unit. A run's identity is `invocation`."""

    state: ServiceName
    unit: str
    scope: Literal["system", "user", "supervisor"]
    since: str | None = None  # ISO 8601
    invocation: str | None = None
    status_text: str | None = None  # the unit's STATUS=, only while activating or active
    result: str | None = None
    main_pid: int | None = None
    exit_status: int | None = None
    restarts: int | None = None
    memory_bytes: int | None = None
