"""Everything known of one host, as one value: what comes in makes the next value, and a Snapshot is a function of it.

The last of everything is kept when the link is lost, with its age; what a stopped engine said of itself is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from console.box.values import LinkState, Record, ServiceState
from console.engine_report import EngineReport
from console.snapshot import GpuFigures, HostFigures, Snapshot, TreeFigures
from console.telemetry.alarms import Facts, alarms_of
from console.telemetry.sample import Sample
from console.telemetry.series import Series

KEPT_WINDOWS = 900
"""Decode windows for the charts: a quarter of an hour at one a second."""
KEPT_RECORDS = 200
KEPT_QUEUE = 10
"""Polls over which a queue is seen to grow."""
_UP = ("serving", "stopping", "unknown")


@dataclass(frozen=True)
class Known:
    """What is known of one host. Times are seconds of the console's monotonic clock."""

    host: str
    link: LinkState
    tag: str | None = None
    colour: str | None = None
    service: ServiceState | None = None
    report: EngineReport | None = None
    machine: HostFigures | None = None
    gpus: tuple[GpuFigures, ...] = ()
    series: Series = field(default_factory=lambda: Series(KEPT_WINDOWS))
    records: tuple[Record, ...] = ()
    tree: TreeFigures | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    started: Mapping[str, Any] = field(default_factory=dict)  # settings that the engine told in its log when it started
    queue: tuple[int, ...] = ()
    token_s: float | None = None  # when the last sign of a token came
    running_s: float | None = None  # since when requests are seen to run
    data_s: float | None = None  # when the newest figure came

    def with_link(self, link: LinkState) -> Known:
        """After the link changed."""
        return replace(self, link=link)

    def with_service(self, service: ServiceState, now_s: float) -> Known:
        """After the service manager told its state. An engine that is down, or not up yet, says nothing of itself."""
        known = replace(self, service=service, data_s=now_s)
        return known if service.state in _UP else replace(known, report=None, tree=None, queue=(), running_s=None)

    def with_report(self, report: EngineReport, now_s: float) -> Known:
        """After the engine answered `/server_info`."""
        restarted = self.report is not None and self.report.invocation != report.invocation
        running_s = self.running_s if self.running_s is not None and not restarted else now_s
        return replace(
            self,
            report=report,
            machine=report.machine,
            gpus=report.gpus,
            tree=None if restarted else self.tree,
            queue=(*(() if restarted else self.queue), report.queued or 0)[-KEPT_QUEUE:],
            running_s=running_s if report.running else None,
            data_s=now_s,
        )

    def with_machine(self, machine: HostFigures | None, gpus: tuple[GpuFigures, ...], now_s: float) -> Known:
        """After the box was read without its engine."""
        return replace(self, machine=machine, gpus=gpus, data_s=now_s)

    def with_records(self, records: Sequence[Record], samples: Sequence[Sample], now_s: float, *, live: bool) -> Known:
        """After journal lines came, and the Samples in them. Lines read back from before (`live` false) are no news."""
        token = live and any(sample.kind in ("decode", "prefill", "request") for sample in samples)
        return replace(
            self,
            series=self.series.extended(samples),
            records=(*self.records, *records)[-KEPT_RECORDS:],
            token_s=now_s if token else self.token_s,
            data_s=now_s if samples and live else self.data_s,
        )

    def with_tree(self, tree: TreeFigures) -> Known:
        """After the engine showed a draft tree."""
        return replace(self, tree=tree)

    def with_asked(self, asked: Mapping[str, Any]) -> Known:
        """After the settings file was read: what must read back from the engine."""
        return replace(self, asked=asked)

    def with_started(self, started: Mapping[str, Any]) -> Known:
        """After the engine told settings in its log, as it does when it starts."""
        return replace(self, started=started)

    def snapshot(self, now_s: float) -> Snapshot:
        """This moment, for the faces."""
        report = self.report
        return Snapshot(
            host=self.host,
            taken_s=now_s,
            link=self.link,
            tag=self.tag,
            colour=self.colour,
            service=self.service,
            engine=report.engine if report else None,
            settings={**self.started, **report.settings} if report else {},
            samples=self.series.samples,
            kv=report.kv if report else None,
            gpus=self.gpus,
            machine=self.machine,
            process=report.process if report else None,
            running=report.running if report else None,
            queued=report.queued if report else None,
            tree=self.tree,
            spine_hit_rate=report.spine_hit_rate if report else None,
            branch_gain=report.branch_gain if report else None,
            lookup_share=report.lookup_share if report else None,
            alarms=alarms_of(self._facts(now_s)),
            records=self.records,
            data_s=self.data_s,
        )

    def _facts(self, now_s: float) -> Facts:
        # Over a lost link no news is no fact: time stands still where the link broke.
        at_s = now_s if self.link.name in ("LIVE", "DEGRADED") else self.link.since_s
        report = self.report
        kv = report.kv if report else None
        return Facts(
            service=self.service.state if self.service else None,
            reason=self.service.result if self.service else None,
            samples=self.series.samples,
            running=report.running if report else None,
            quiet_s=None if self.running_s is None else max(0.0, at_s - max(self.token_s or 0.0, self.running_s)),
            queue=self.queue,
            kv_fraction=kv.pages_used / kv.pages_total if kv and kv.pages_total else None,
            graphs_expected=bool(self.gpus),
            throttles={gpu.index: gpu.throttle for gpu in self.gpus if gpu.throttle},
            settings=report.settings if report else {},
            asked=self.asked,
        )
