"""The golden run as a playbook is given it: the figures it is held against, small enough for one event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from console.experiments.playbook import Playbook
from console.experiments.reading import environment_of, sample_rows
from console.experiments.store import Store

MAX_BYTES = 30 * 1024
"""An event holds 32 KiB; beyond that the golden run's last requests are left out."""
FIELDS = (
    "kind", "level", "arm", "pair", "probe", "out_sha", "P", "N", "N_usage", "steps", "decode_s", "client_decode_s", "queue_s",
    "chunks", "cached", "distinct2", "top1", "loop", "clock_mhz", "throttle", "graph", "others", "stages_ms", "cpu_wait_s",
)  # fmt: skip


def golden_for(store: Store, playbook: Playbook, host: str) -> dict[str, Any] | None:
    """`{"run_id", "started", "conditions", "host", "rows"}` for a playbook that diagnoses; None for others, and without a pin."""
    if playbook.kind != "diagnose":
        return None
    run = store.golden(playbook.id, host)
    if run is None:
        return None
    rows = [_small(row) for row in sample_rows(run.events) if not row.get("client_s")]
    golden: dict[str, Any] = {
        "run_id": run.record.id,
        "started": run.record.started,
        "conditions": dict(run.conditions.hard),
        "host": environment_of(run.events).get("host"),
        "rows": rows,
    }
    while len(json.dumps(golden, default=str)) > MAX_BYTES and rows:
        rows.pop()
    return golden


def _small(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: row[name] for name in FIELDS if row.get(name) is not None}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in known.items()}
