"""A recorded host: data and answers made up for tests, played through the same `Operations` that a real host has.

Nothing in the product imports this. `python -m tests.tui.recorded` opens the console on it, to look at the screens.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from console.box.doctor import Check
from console.box.empty_log import EmptyLog
from console.box.values import LinkState, Record, ServiceState
from console.deployment.change import ChangePlan, Choices, Difference, Generation, Outcome, Phase, Stray, UnderWay
from console.deployment.settings import parse_changes
from console.deployment.settings_file import complete, differences, edit_toml, first_settings, settings_file_sha
from console.experiments.playbook import Playbook, read_playbook
from console.snapshot import (
    Alarm,
    EngineInfo,
    GpuFigures,
    HostFigures,
    KvFigures,
    ProcessFigures,
    Snapshot,
    TreeFigures,
    TreeNode,
)
from console.telemetry.sample import Sample

WALL_S = 1_790_000_000.0
"""The recording's last moment, seconds since the epoch."""
INVOCATION = "5f2a9c1be0d84c3d8b1f6a7e90c2d411"

SETTINGS_TEXT = first_settings(
    {"path": "/srv/models/smollm2-135m-instruct", "drafter": "/srv/drafters/smollm2", "context_length": 8192}
)


def iso(wall_s: float) -> str:
    """A moment as the engine writes it."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat()


def decode_sample(index: int, wall_s: float, *, spike: bool = False) -> Sample:
    """One recorded window of about a second; the same index gives the same window."""
    chance = random.Random(index)
    steps = 11
    context = 2701 + index * 31 % 1500
    hist = [0] * 16
    for _ in range(steps):
        kept = min(16, 1 + int(chance.expovariate(0.55 + 0.1 * (context > 3200))))
        hist[kept - 1] += 1
    tokens = sum((kept + 1) * count for kept, count in enumerate(hist))
    step_ms = 62.0 + context / 90 + chance.random() * 6 + (240 if spike else 0)
    verify = step_ms - 4.1 - 0.3 - 0.1 - 0.5 - 0.7
    return Sample(
        "decode",
        "bundled",
        iso(wall_s),
        tokens=tokens,
        steps=steps,
        commit_length=tokens / steps,
        step_ms=step_ms,
        tok_s=1000 * tokens / (step_ms * steps),
        context=context,
        running=1,
        queued=0,
        stages_ms={"draft": 4.1, "build": 0.3, "verify": verify, "walk": 0.1, "commit": 0.5, "host": 0.7},
        hist=tuple(hist),
        extra={"budget": 16, "seq": index},
    )


def decode_record(sample: Sample, index: int) -> Record:
    """The journal line that the sample was read from."""
    hist = ",".join(str(count) for count in sample.hist or ())
    wall = (sample.step_ms or 0) * (sample.steps or 0)
    message = (
        f"decode seq={index} req=r{index // 40} ctx={sample.context} steps={sample.steps} tokens={sample.tokens} "
        f"wall_ms={wall:.1f} hist={hist} running=1 queued=0 kv_used=231 kv_total=512 page=16 budget=16 graph=0"
    )
    moment = datetime.fromisoformat(sample.time or iso(WALL_S)).timestamp()
    return record(message, index, moment)


def record(message: str, index: int, wall_s: float = WALL_S, *, priority: int = 6) -> Record:
    """A journal record of the recorded engine."""
    return Record(
        cursor=f"s=rec;i={index:x}",
        realtime_us=int(wall_s * 1e6),
        message=message,
        priority=priority,
        identifier="ddtree-engine",
        pid=4711,
        invocation=INVOCATION,
    )


TREE = TreeFigures(
    (
        TreeNode(-1, 0, " the", None, True),
        TreeNode(0, 1, " light", 0.61, True),
        TreeNode(0, 1, " sea", 0.18, False),
        TreeNode(0, 1, " old", 0.09, False),
        TreeNode(1, 2, "house", 0.48, True),
        TreeNode(1, 2, " of", 0.07, False),
        TreeNode(2, 2, " was", 0.08, False),
        TreeNode(4, 3, " keeper", 0.22, False),
        TreeNode(4, 3, " stood", 0.14, True),
        TreeNode(5, 3, " the", 0.05, False),
        TreeNode(8, 4, " on", 0.09, False),
        TreeNode(8, 4, " above", 0.04, False),
        TreeNode(10, 5, " the", 0.07, False),
    ),
    budget=16,
    commit_length=4,
)


def snapshot(now_s: float, *, wall_s: float = WALL_S, windows: int = 90, **changes: Any) -> Snapshot:
    """The recorded host serving one request, `windows` decode windows old; `changes` replace fields."""
    samples = tuple(decode_sample(i, wall_s - windows + 1 + i, spike=i == windows - 30) for i in range(windows))
    base = Snapshot(
        host="gpu-01",
        taken_s=now_s,
        link=LinkState("LIVE", now_s - 3600, latency_ms=41.0),
        tag="LAB",
        service=ServiceState(
            "serving",
            "ddtree-engine.service",
            "user",
            since=iso(wall_s - 2 * 86400 - 3 * 3600),
            invocation=INVOCATION,
            main_pid=4711,
        ),
        engine=EngineInfo("bundled", "0.1.0", 8765, "smollm2-135m-instruct", "smollm2", 8192, 16),
        settings={**complete(SETTINGS_TEXT), "block_size": 16, "dtype": "float32"},
        samples=samples,
        kv=KvFigures(231, 512, 16, 23040),
        machine=HostFigures(12.0, 8, 1.42, 13_300_000_000, 33_600_000_000),
        process=ProcessFigures(4711, 396.0, 1_210_000_000, 14),
        running=1,
        queued=0,
        tree=TREE,
        spine_hit_rate=0.61,
        branch_gain=0.42,
        records=tuple(decode_record(sample, index) for index, sample in enumerate(samples))[-20:],
        data_s=now_s,
    )
    return replace(base, **changes)


GPUS = tuple(
    GpuFigures(i, "RTX PRO 6000", 97.0 - i, 88_000_000_000, 102_600_000_000, 1980 - i, 540.0 + i, 71.0, "none")
    for i in range(8)
)

ALARM = Alarm("commit_collapsed", "Commit length is 1.02: speculation buys nothing.", "1")

HISTORY = (
    Generation(3, "c1", iso(WALL_S - 7200), "ops@laptop", "confirmed", "r3", (Difference("page_size", 64, 16),)),
    Generation(
        2, "b7", iso(WALL_S - 9000), "ops@laptop", "rolled_back", "r2", (Difference("context_length", 8192, 65536),)
    ),
    Generation(1, "a9", iso(WALL_S - 90000), "ops@laptop", "confirmed", "r1", (Difference("tree_budget", 32, 16),)),
    Generation(0, "00", iso(WALL_S - 180000), "ops@laptop", "installed"),
)

PHASES = (
    Phase("staged", 0.0),
    Phase("armed", 0.2),
    Phase("stopping", 0.3),
    Phase("loading", 1.1, "loading weights"),
    Phase("ready", 6.4),
    Phase("probe", 6.9),
    Phase("soak", 8.0),
    Phase("confirmed", 13.0),
)

VERDICT = {
    "class": "explained",
    "headline": "153.7 -> 32.7 tok/s over context 113 -> 3451: slowdown 4.70x; context 2.86x, acceptance 1.72x, residual 0.95x [0.84, 1.09]",
    "factors": {
        "total": 4.70,
        "context": 2.86,
        "acceptance": 1.72,
        "kernel": 1.0,
        "residual": 0.954,
        "residual_ci": [0.837, 1.094],
    },
    "fit": {"a_ms": 33.74, "b_ms_per_token": 0.02, "q": 0.0},
    "levels": [
        {"level": x, "commit_length": 5.0 - x / 3000, "step_ms": 34 + x * 0.02, "tok_s": 150 - x / 40, "tok_s_ci": [140 - x / 40, 160 - x / 40]}
        for x in (50, 1000, 3000, 6000)
    ],
    "warnings": [{"code": "few_levels", "msg": "4 context levels cannot show curvature"}],
    "next": "nothing to mend: the change is context and acceptance",
}  # fmt: skip


def run_events(levels: Sequence[int] = (50, 1000, 3000, 6000)) -> list[dict[str, Any]]:
    """The events of a recorded context sweep, its result last."""
    columns = [
        {"name": "context", "unit": "tokens"},
        {"name": "commit"},
        {"name": "step", "unit": "ms"},
        {"name": "tok_s"},
    ]
    events: list[dict[str, Any]] = [
        {"type": "hello", "playbook": "context_curve", "version": "1.0.0", "params": {}, "run_id": "rec-1"},
        {"type": "table", "name": "levels", "columns": columns},
        {"type": "log", "level": "info", "msg": "engine bundled 0.1.0, 1 request at a time"},
    ]
    for place, level in enumerate(levels):
        left = 9.0 * (len(levels) - place)
        progress = {"done": place, "total": len(levels), "label": f"context {level}", "eta_s": left}
        events.append({"type": "progress", **progress})
        data = {"context": level, "commit": 5.0 - level / 3000, "step": 34 + level * 0.02, "tok_s": 150 - level / 40}
        events.append({"type": "row", "table": "levels", "id": place, "data": data})
        point = {"x": [level], "y": [34 + level * 0.02], "unit_x": "context tokens", "unit_y": "ms"}
        events.append({"type": "series", "name": "step", **point})
    events.append({"type": "progress", "done": len(levels), "total": len(levels), "label": "done", "eta_s": 0.0})
    events.append({"type": "result", "run_id": "rec-1", "status": "done", "exit": 0, "verdict": VERDICT})
    return events


EMPTY = EmptyLog(
    "not in the group", "ops is in no group that may read the journal", "on HOST: sudo usermod -aG systemd-journal ops"
)
CHECKS = (
    Check("link", "ssh", "pass", "connected, 41 ms a round trip"),
    Check("service", "manager", "pass", "systemd 252, user unit"),
    Check(
        "service",
        "linger",
        "fail",
        "the service would end with the last login",
        "loginctl enable-linger ops",
        (("loginctl", "enable-linger", "ops"),),
    ),
    Check("journal", "storage", "warn", "a reboot loses it", "sudo mkdir -p /var/log/journal"),
    Check("service", "state", "warn", "the engine is not installed", "ddtree install HOST"),
)

_HEADER = """# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "{id}"
# title = "{title}"
# key = "{key}"
# summary = "{summary}"
# version = "1.0.0"
# kind = "sweep"
# engines = ["bundled"]
# needs = ["openai.completions"]
# wants = []
# effects = {effects}
# exclusive = true
# est_seconds = "levels*9"
# max_seconds = 600
# verdicts = ["explained", "inconclusive"]
# [tool.ddtree.playbook.params.levels]
# type = "int_list"
# default = [50, 1000, 3000, 6000]
# min = 16
# max = 8000
# help = "prompt tokens of each level"
# ///
"""


def write_playbooks(folder: Path) -> tuple[Playbook, ...]:
    """Script files for the catalogue: a sound one, one that restarts the service, and one with a broken f-string."""
    sound = _HEADER.format(
        id="context_curve",
        title="Context curve",
        key="c",
        summary="Step time and commit against context length",
        effects='["load"]',
    )
    restarts = _HEADER.format(
        id="page_size_ab",
        title="Page size A/B",
        key="g",
        summary="Is a larger page faster",
        effects='["load", "restarts_service"]',
    )
    broken = _HEADER.format(
        id="output_sweep", title="Output sweep", key="o", summary="Rate against output length", effects='["load"]'
    )
    texts = {
        "context_curve": sound + "print('a recorded script')\n",
        "page_size_ab": restarts + "UNIT = 'systemctl'\n",
        "output_sweep": broken + 'name = "x"\nprint(f"level {name!r:>{")\n',
    }
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for stem, text in texts.items():
        path = folder / f"{stem}.py"
        path.write_text(text, encoding="utf-8")
        out.append(read_playbook(path))
    return tuple(out)


@dataclass
class RecordedHost:
    """Operations over recorded data. `calls` holds what was asked of the box, in order."""

    name: str = "gpu-01"
    read_only: bool = False
    production: bool = False
    catalogue: tuple[Playbook, ...] = ()
    phases: Sequence[Phase] = PHASES
    outcome: Outcome = field(default_factory=lambda: Outcome("confirmed", "r4", generation=4, phases=PHASES))
    events: Sequence[dict[str, Any]] = field(default_factory=run_events)
    pause_s: float = 0.0
    text: str = SETTINGS_TEXT
    checks: Sequence[Check] = CHECKS
    empty: EmptyLog = EMPTY
    strays: Sequence[Stray] = ()
    under_way: UnderWay | None = None
    choices: Choices | None = None  # of the last apply
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    snapshot_queue: asyncio.Queue[Snapshot] = field(default_factory=asyncio.Queue)
    record_queue: asyncio.Queue[Sequence[Record]] = field(default_factory=asyncio.Queue)
    gate: asyncio.Event = field(default_factory=asyncio.Event)  # runs and applies wait here before their last item

    def push(self, value: Snapshot) -> None:
        """Let the console see this Snapshot next."""
        self.snapshot_queue.put_nowait(value)

    def log(self, records: Sequence[Record]) -> None:
        """Let the console see these records next."""
        self.record_queue.put_nowait(records)

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """What was pushed, as it is pushed."""
        while True:
            yield await self.snapshot_queue.get()

    async def snapshot(self) -> Snapshot:
        """One recorded moment."""
        return snapshot(time.monotonic())

    async def records(self, *, since: str | None, follow: bool) -> AsyncIterator[Sequence[Record]]:
        """What was logged, as it is logged."""
        while True:
            yield await self.record_queue.get()

    async def why_empty(self) -> EmptyLog:
        """The recorded reason."""
        self.calls.append(("why_empty",))
        return self.empty

    async def plan(self, changes: Mapping[str, str]) -> ChangePlan:
        """A real plan over the recorded settings file: the product's own validation and diff."""
        new = edit_toml(self.text, parse_changes(changes))
        found = differences(self.text, new)
        length = complete(new)["context_length"]
        capacity = (f"{length:,} tokens × 23,040 B = {int(length) * 23040 / 1e6:,.0f} MB of 1.2 GB free → fits",)
        return ChangePlan(self.name, settings_file_sha(self.text), found, new, capacity, (), True, 1)

    async def find_strays(self, plan: ChangePlan) -> Sequence[Stray]:
        """The recorded processes."""
        return self.strays

    async def apply(self, plan: ChangePlan, choices: Choices | None = None) -> AsyncIterator[Phase | Outcome]:
        """The recorded phases, then the recorded outcome."""
        self.calls.append(("apply", tuple((one.name, one.new) for one in plan.differences)))
        self.choices = choices
        async for item in self.follow_change("r4"):
            yield item
        if self.outcome.status == "confirmed":
            self.text = plan.text

    async def change_under_way(self) -> UnderWay | None:
        """What was recorded."""
        return self.under_way

    async def follow_change(self, request_id: str) -> AsyncIterator[Phase | Outcome]:
        """The recorded phases, then the recorded outcome."""
        for phase in self.phases:
            yield phase
            await asyncio.sleep(self.pause_s)
        await self.gate.wait()
        self.under_way = None
        yield self.outcome

    async def say(self, word: Literal["confirm", "revert"]) -> AsyncIterator[Phase | Outcome]:
        """The word ends the change."""
        self.calls.append(("say", word))
        if word == "revert":
            self.outcome = replace(self.outcome, status="rolled_back", reason="the operator took it back")
        self.gate.set()
        yield self.outcome

    async def history(self) -> Sequence[Generation]:
        """The recorded generations."""
        return HISTORY

    async def service(self, verb: str) -> ServiceState:
        """Any verb works at once."""
        self.calls.append(("service", verb))
        state = "stopped" if verb == "stop" else "serving"
        return ServiceState(state, "ddtree-engine.service", "user")  # type: ignore[arg-type]

    async def examine(self) -> Sequence[Check]:
        """The recorded findings; what has been mended passes."""
        self.calls.append(("examine",))
        mended = {argv for call in self.calls if call[0] == "mend" for argv in call[1]}
        return tuple(
            replace(check, verdict="pass", mend=None, commands=()) if mended & set(check.commands) else check
            for check in self.checks
        )

    async def mend(self, commands: Sequence[Sequence[str]]) -> None:
        """Whatever it is, it works."""
        self.calls.append(("mend", tuple(tuple(argv) for argv in commands)))

    def playbooks(self) -> Sequence[Playbook]:
        """The catalogue given."""
        return self.catalogue

    async def run(self, playbook: Playbook, params: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The recorded events."""
        self.calls.append(("run", playbook.id, dict(params)))
        for event in self.events[:-1]:
            yield event
            await asyncio.sleep(self.pause_s)
        await self.gate.wait()
        yield self.events[-1]

    async def attach(self, run_id: str) -> AsyncIterator[dict[str, Any]]:
        """The recorded events again."""
        for event in self.events:
            yield event

    async def cancel(self, run_id: str) -> None:
        """The run ends."""
        self.calls.append(("cancel", run_id))
        self.gate.set()

    def reconnect(self) -> None:
        """Noted."""
        self.calls.append(("reconnect",))

    async def close(self) -> None:
        """Nothing is open."""


async def play(host: RecordedHost) -> None:
    """Push a Snapshot a second, as a live host would."""
    start_s = time.time()
    index = 0
    while True:
        now = time.time()
        one = snapshot(time.monotonic(), wall_s=now, windows=90 + index)
        host.push(one)
        host.log(
            [*one.records, record("\x1b]0;owned\x07 \x1b[31mnot red", 10_000, now)] if index == 0 else one.records[-1:]
        )
        index += 1
        await asyncio.sleep(max(0.0, start_s + index - time.time()))


async def main() -> None:
    """Open the console on the recording."""
    import sys
    import tempfile

    from console.tui.app import run_console

    with tempfile.TemporaryDirectory() as folder:
        host = RecordedHost(catalogue=write_playbooks(Path(folder)), pause_s=0.7)
        host.gate.set()
        playing = asyncio.create_task(play(host))
        await run_console(host, ascii_only="--ascii" in sys.argv, read_only="--read-only" in sys.argv)
        playing.cancel()


if __name__ == "__main__":
    asyncio.run(main())
