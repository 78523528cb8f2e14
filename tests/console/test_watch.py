"""Watching a host: its sources report at the same time, and none may undo what another has added."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from console.box.values import LinkState, Record, ServiceState
from console.deployment.bundled import BUNDLED
from console.deployment.site import Site
from console.watch import Watch

LINE = (
    "decode seq=1 req=r1 ctx=64 steps=10 tokens=20 wall_ms=1000 draft_ms=100 build_ms=1 verify_ms=880 walk_ms=5 "
    "commit_ms=5 host_ms=9 nodes=160 hist=2,6,2 running=1 queued=0 kv_used=4 kv_total=64 page=16 budget=16 graph=0"
)


@dataclass
class BusyManager:
    """Stands in for a service manager on a box: while it answers, the journal brings a line."""

    watch: list[Watch] = field(default_factory=list)

    async def state(self) -> ServiceState:
        """Serving; and in the meantime a decode window has come."""
        self.watch[0]._take_records([Record("c1", 1, LINE)], live=True)
        return ServiceState("serving", "ddtree-engine.service", "user")


async def test_journal_lines_that_come_while_the_service_manager_is_asked_are_kept() -> None:
    manager = BusyManager()
    link = SimpleNamespace(target=SimpleNamespace(name="gpu-01"), state=LinkState("LIVE", 0.0))
    watch = Watch(cast(Site, SimpleNamespace(connection=link, manager=manager, deployment=BUNDLED)))
    manager.watch.append(watch)
    await watch._ask_service()
    known = watch.known.snapshot(1.0)
    assert known.service is not None and known.service.state == "serving"
    assert [sample.tokens for sample in known.samples] == [20]
    assert len(known.records) == 1
