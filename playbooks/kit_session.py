"""Session: one execution of a playbook, from `hello` to `end`, with whatever happens in between."""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from kit_end import EXIT, Stop
from kit_engine import Engine
from kit_events import Events
from kit_params import check_params
from kit_probe import environment, max_context, probe, vocabulary
from kit_prompts import Prompts
from kit_run import Run

HEARTBEAT_S = 5.0
POLL_S = 0.25  # how often cancel, deadline and silence are looked at

Plan = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Measure = Callable[[Run], Mapping[str, Any]]


class Session:
    """One execution: hello first, end last, and in between whatever happens."""

    def __init__(self, header: Mapping[str, Any], plan: Plan, measure: Measure, base_url: str) -> None:
        self.header = header
        self.plan = plan
        self.measure = measure
        self.base_url = base_url
        self.events = Events()
        self.stop: Stop | None = None
        self.over = threading.Event()
        self._engine: Engine | None = None
        self._run: Run | None = None

    def run(self, given: Mapping[str, Any]) -> int:
        """Everything; returns the exit status, and has written `end` unless the process was killed."""
        for number, status in ((signal.SIGTERM, "terminated"), (signal.SIGINT, "cancelled")):
            signal.signal(number, lambda *_, status=status: self._halt(Stop(status, "told to stop by a signal")))
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        status = "done"
        try:
            self._work(given)
        except Stop as stop:
            status = stop.status
            if status not in ("cancelled", "terminated"):
                self.events.emit(
                    "error", code=stop.code, msg=str(stop), where=self.base_url, retryable=status in ("busy", "engine")
                )
            sys.stderr.write(f"{self.header['id']}: {stop}\n")
        except Exception as error:  # noqa: BLE001 the last edge: whatever it is, the run ends with its reason
            status = "exception"
            traceback.print_exc()
            self.events.emit(
                "error",
                code="exception",
                msg=f"{type(error).__name__}: {error}"[:2000],
                where=_place(error),
                retryable=False,
            )
        finally:
            self.over.set()
            watcher.join()
        self.events.emit("end", status=status, exit=EXIT[status], rows=self.events.rows, seq_total=self.events.seq + 1)
        return EXIT[status]

    def _work(self, given: Mapping[str, Any]) -> None:
        try:
            params = check_params(self.header.get("params", {}), given)
            engine = Engine(self.base_url, os.environ.get("DDT_MODEL") or None, _read_key())
            self._engine = engine
            info, caps = probe(engine)
        except Stop:
            self._hello(given, {}, ())
            raise
        self._hello(params, self.plan(params), caps)
        missing = sorted(set(self.header.get("needs", ())) - set(caps))
        if missing:
            raise Stop("missing", f"the engine at {self.base_url} lacks {', '.join(missing)}", "capability_missing")
        if self.header.get("exclusive", True):
            info = self._idle(engine, info)
        self.events.emit("env", phase="start", **environment(info))
        engine.prove_ready()
        seed = int(os.environ.get("DDT_SEED") or 1)
        salt = os.environ.get("DDT_RUN_ID") or secrets.token_hex(6)
        prompts = Prompts(engine, str(seed), salt, vocabulary(info))
        golden = _read_golden()
        if golden is not None:
            self.events.emit("reference", **golden)
        run = Run(params, engine, prompts, self.events, info, seed, max_context(engine, info), golden)
        run.stop = self.stop
        self._run = run
        stats = dict(self.measure(run))
        run.check()
        self._compare(info, probe(engine)[0])
        self.events.emit("summary", stats={**stats, "prompts_sha": prompts.sha, "elapsed_s": round(run.elapsed_s, 3)})

    def _idle(self, engine: Engine, info: dict[str, Any]) -> dict[str, Any]:
        """The engine's report once nothing runs on it: requests on their way get DDT_IDLE_WAIT_S seconds to end."""
        until_s = time.monotonic() + float(os.environ.get("DDT_IDLE_WAIT_S") or 0.0)
        told = False
        while busy := _at_work(info):
            if self.stop is not None:
                raise self.stop
            if time.monotonic() >= until_s:
                raise Stop("busy", f"{busy} request(s) run or wait on the engine; this playbook needs it to itself")
            if not told:
                self.events.emit("log", level="info", msg=f"waiting for {busy} request(s) on the engine to end")
                told = True
            time.sleep(POLL_S)
            info = probe(engine)[0]
        return info

    def _hello(self, params: Mapping[str, Any], plan: Mapping[str, Any], caps: Sequence[str]) -> None:
        wanted = (*self.header.get("needs", ()), *self.header.get("wants", ()))
        secret = {name for name, spec in self.header.get("params", {}).items() if spec["type"] == "secret"}
        self.events.emit(
            "hello",
            playbook=self.header["id"],
            version=self.header["version"],
            params={name: value for name, value in params.items() if name not in secret},
            plan=dict(plan),
            caps_used=[name for name in wanted if name in caps],
            caps_missing=[name for name in wanted if name not in caps],
        )

    def _compare(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """The engine at the end must be the one of the start, or the figures belong to no one."""
        self.events.emit("env", phase="end", **environment(after))
        restarts = "DDT_RESTARTS" in os.environ  # of those the settings must come back
        for name in ("settings_sha",) if restarts else ("invocation", "pid", "settings_sha"):
            if before.get(name) != after.get(name):
                message = f"{name} changed during the run: {before.get(name)} -> {after.get(name)}"
                raise Stop("void", message, "engine_restarted" if name != "settings_sha" else "settings_changed")

    def _halt(self, stop: Stop) -> None:
        """Make the run end: `check` raises from now on, and the request under way is broken off."""
        self.stop = self.stop or stop
        if self._run is not None:
            self._run.stop = self.stop
            for helper in self._run.helpers:
                helper.abort(self.stop)
        if self._engine is not None:
            self._engine.abort(self.stop)

    def _watch(self) -> None:
        folder = os.environ.get("DDT_RUN_DIR")
        cancel = Path(folder) / "cancel" if folder else None
        deadline = float(os.environ.get("DDT_DEADLINE") or math.inf)
        while not self.over.wait(POLL_S):
            if self.stop is not None:
                self._halt(self.stop)  # once more: a request may have been about to open its connection
            elif cancel is not None and cancel.exists():
                self._halt(Stop("cancelled", "cancelled by the operator"))
            elif time.time() > deadline:
                self._halt(Stop("deadline", "out of time"))
            if time.monotonic() - self.events.last_s > HEARTBEAT_S:
                self.events.emit("heartbeat")


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _at_work(info: Mapping[str, Any]) -> int:
    requests = info.get("requests") or {}
    return int(requests.get("running") or 0) + int(requests.get("queued") or 0)


def _read_golden() -> Mapping[str, Any] | None:
    path = os.environ.get("DDT_GOLDEN")
    found: Mapping[str, Any] | None = json.loads(Path(path).read_text(encoding="utf-8")) if path else None
    return found


def _read_key() -> str | None:
    path = os.environ.get("DDT_API_KEY_FILE")
    return Path(path).read_text(encoding="utf-8").strip() if path else None
