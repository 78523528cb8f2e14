"""Snapshot: everything known of one host at one moment, frozen. Widgets and `ddtree status` are functions of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from console.box.values import LinkState, Record, ServiceState
from console.telemetry.alarms import Alarm as Alarm
from console.telemetry.sample import Sample


@dataclass(frozen=True)
class EngineInfo:
    """Which engine answers on the box, from its own `/server_info`."""

    kind: str
    version: str | None = None
    port: int | None = None
    model: str | None = None
    drafter: str | None = None
    max_context: int | None = None  # tokens the model's config supports
    block_size: int | None = None


@dataclass(frozen=True)
class KvFigures:
    """The KV pool, in pages and tokens."""

    pages_used: int
    pages_total: int
    page_size: int
    bytes_per_token: int | None = None


@dataclass(frozen=True)
class GpuFigures:
    """One GPU as NVML sees it; a figure the driver does not give is None."""

    index: int
    name: str
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: str | None = None


@dataclass(frozen=True)
class HostFigures:
    """The box itself, from psutil there."""

    cpu_percent: float | None = None
    cpu_count: int | None = None
    load_1m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class ProcessFigures:
    """The engine's process on the box, from psutil there."""

    pid: int
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class TreeNode:
    """A node of a sampled draft tree; node 0 is the root (the seed token) with parent -1."""

    parent: int
    depth: int
    text: str
    probability: float | None  # of the prefix that ends here, under the drafter
    accepted: bool
    lookup: bool = False  # proposed by the text's own repetition alone


@dataclass(frozen=True)
class TreeFigures:
    """One sampled draft tree with the path that verification accepted."""

    nodes: tuple[TreeNode, ...]
    budget: int
    commit_length: int


@dataclass(frozen=True)
class Snapshot:
    """One host at one moment. `taken_s` is the console's monotonic clock, so that every figure has an age."""

    host: str
    taken_s: float
    link: LinkState
    tag: str | None = None
    colour: str | None = None  # as hosts.toml gives it
    service: ServiceState | None = None
    engine: EngineInfo | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # leaf name -> value in force
    samples: tuple[Sample, ...] = ()  # decode windows, oldest first
    kv: KvFigures | None = None
    gpus: tuple[GpuFigures, ...] = ()
    machine: HostFigures | None = None
    process: ProcessFigures | None = None
    running: int | None = None
    queued: int | None = None
    tree: TreeFigures | None = None
    spine_hit_rate: float | None = None  # 0..1
    branch_gain: float | None = None  # tokens a step
    lookup_share: float | None = None  # 0..1 of the tokens kept
    alarms: tuple[Alarm, ...] = ()
    records: tuple[Record, ...] = ()  # last journal lines, oldest first
    data_s: float | None = None  # monotonic time of the newest figure; None before the first

    @property
    def sample(self) -> Sample | None:
        """The newest decode window, or None."""
        return self.samples[-1] if self.samples else None
