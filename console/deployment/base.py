"""What serves on the box, behind one interface: its settings, its command, its log, its endpoint, what fits.

Everything here is a value or a function of values; the transaction (`reconfigure.py`) and the faces are the same for
every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from console.deployment.capacity import Capacity, KvShape
from console.deployment.settings import Setting, Value
from console.telemetry.reader import LogReader


@dataclass(frozen=True)
class Endpoint:
    """Where the engine answers HTTP on the box. `api_key_file` is a file there, "" for none."""

    host: str
    port: int
    api_key_file: str = ""


@dataclass(frozen=True)
class ModelFacts:
    """What the folders on the box say: KV shapes of the target and, where there is one, of the drafter."""

    target: KvShape
    drafter: KvShape | None = None
    block_size: int = 0  # tokens the drafter proposes at once, the seed included


class Deployment(Protocol):
    """One kind of engine."""

    @property
    def kind(self) -> str:
        """`bundled`, `sglang`, `vllm`."""
        ...

    @property
    def identifier(self) -> str:
        """SYSLOG_IDENTIFIER of its lines."""
        ...

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting it knows."""
        ...

    def reader(self) -> LogReader:
        """Reads its log lines into Samples."""
        ...

    def endpoint(self, values: Mapping[str, Value]) -> Endpoint:
        """Where it answers under these settings (complete, leaf name -> value)."""
        ...

    def check(self, values: Mapping[str, Value], model: ModelFacts | None) -> None:
        """Refuse what cannot work before a restart, with both numbers. Raises UsageError."""
        ...

    def capacity(self, values: Mapping[str, Value], model: ModelFacts, memory_bytes: int | None) -> Capacity:
        """The KV pool these settings make. `memory_bytes` is what the engine may take its share of, where known."""
        ...
