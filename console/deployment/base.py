"""What serves on the box, behind one interface: its settings, its command, its log, its endpoint, what fits.

Everything here is a value or a function of values; the transaction (`reconfigure.py`) and the faces are the same for
every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from console.deployment.capacity import Capacity, KvShape
from console.deployment.settings import Setting, Value
from console.telemetry.reader import LogReader
from console.telemetry.sample import Sample


@dataclass(frozen=True)
class Endpoint:
    """Where the engine answers HTTP on the box. `api_key_file` is a file there with the key it asks for, `api_key` the key
    itself where it stands among the engine's arguments; "" for none."""

    host: str
    port: int
    api_key_file: str = ""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True)
class ModelFacts:
    """What the folders on the box say: KV shapes of the target and, where there is one, of the drafter."""

    target: KvShape
    drafter: KvShape | None = None
    block_size: int = 0  # tokens the drafter proposes at once, the seed included
    weight_bytes: int | None = None  # of the target's shards together


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

    @property
    def suffix(self) -> str:
        """Of its settings file and the file's generations: `.toml`, `.env`."""
        ...

    @property
    def info_paths(self) -> tuple[str, ...]:
        """HTTP paths whose answers together tell what `server_info` tells."""
        ...

    def reader(self) -> LogReader:
        """Reads its log lines into Samples."""
        ...

    def values(self, text: str) -> dict[str, Value]:
        """Every setting's value under a settings file, leaf name -> value. Raises UsageError for a broken file."""
        ...

    def environment(self, text: str) -> Mapping[str, str]:
        """Environment variables that the settings file gives the engine beside its settings; none where it cannot."""
        ...

    def edit(self, text: str, changes: Mapping[str, Value]) -> str:
        """The settings file with `changes` made and all else as it was. Raises UsageError."""
        ...

    def read_back(self, text: str) -> dict[str, Value]:
        """What the running engine must show under a settings file: what is not left to it."""
        ...

    def from_start(self, sample: Sample) -> dict[str, Value]:
        """Settings in force that the engine tells in its log alone: out of a `ready` Sample."""
        ...

    def endpoint(self, text: str) -> Endpoint:
        """Where it answers under a settings file."""
        ...

    def gate(self) -> dict[str, Any]:
        """What agent/apply.py needs to know to ask such an engine (its class Engine says what that is)."""
        ...

    def check_argv(self, python: str) -> list[str]:
        """The engine's own check of a settings file, whose path comes last; [] where it has none."""
        ...

    def inspect(self, text: str, model: ModelFacts | None) -> tuple[str, ...]:
        """Warnings about a settings file. Raises UsageError for what cannot work, before a restart, with both numbers."""
        ...

    def capacity(self, values: Mapping[str, Value], model: ModelFacts, memory_bytes: int | None) -> Capacity | None:
        """The KV pool these settings make, where that can be told beforehand. `memory_bytes` is what the engine may take
        its share of, where known."""
        ...

    def server_info(self, answers: Mapping[str, bytes]) -> Mapping[str, Any] | None:
        """The answers of `info_paths` as one object in the shape of the bundled engine's `/server_info` (contracts.md
        section 4); None when they are none. A path that gave no answer is not in `answers`."""
        ...
