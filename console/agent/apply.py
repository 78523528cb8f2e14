#!/usr/bin/env python3
"""Change an engine's settings on this machine, and go back by itself if they do not hold. Standard library only.

    apply.py --state S run ID [--detach]     the transaction in S/applies/ID.request.json; the exit status is its outcome
    apply.py --state S show ID               how it stands, as one JSON object: S/applies/ID.json
    apply.py --state S history               every settings generation with its text and outcome, as one JSON array

The transaction: lock, is the base unchanged, stage the new generation, stop, swap the file by rename, start, gate: a new
invocation is ready, /server_info shows the settings asked for, a real completion gives its tokens, and nothing restarts
for a while. If the gate fails the old file comes back, is started, and passes the same gate; the reason is the engine's
own last line. Whoever asked may vanish at any moment: this program decides, and goes back too where it was itself killed.

A request id is done once: asking again gives the outcome it had. Exit status: 0 confirmed, 2 refused before anything
happened, 20 rolled back, 21 rollback failed, 22 the base had changed, 23 under way, 75 another change is under way.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Iterator

EXITS = {
    "confirmed": 0,
    "rejected": 2,
    "rolled_back": 20,
    "rollback_failed": 21,
    "base_changed": 22,
    "running": 23,
    "busy": 75,
}
POLL_S = 0.2
HTTP_S = 10.0
CANARY_S = 120.0
PORT_FREE_S = 10.0


class GateFailed(Exception):
    """The service is not what it should be; the text is the reason the operator reads."""


# --- files: whole or not at all, and on the disk before anything relies on them


def write_atomically(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def append_line(path: Path, record: dict[str, Any]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def now_iso() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# --- the service, through the argument lists in the request


class Service:
    """The unit, by the commands its manager gave; both managers print their state as `Key=Value` lines."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.commands: dict[str, list[str]] = request["commands"]
        self.limits: dict[str, float] = request["limits"]
        self.identifier: str = request["identifier"]  # of the engine's own lines in the journal

    def _run(self, name: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(self.commands[name], capture_output=True, text=True, errors="replace", timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GateFailed(f"the service manager does not answer: {error}") from error

    def ask(self, verb: str) -> None:
        done = self._run(verb)
        if done.returncode != 0:
            raise GateFailed(f"the service manager would not {verb}: {last_line(done.stderr) or done.returncode}")

    def state(self) -> dict[str, str]:
        shown = self._run("state").stdout
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def stop(self) -> None:
        """Ask for a stop and see it through: nothing of the old run may hold memory or the port."""
        self.ask("stop")
        deadline = time.monotonic() + self.limits["stop_s"]
        while self.state().get("ActiveState") not in ("inactive", "failed"):
            if time.monotonic() > deadline:
                raise GateFailed(f"it did not stop within {self.limits['stop_s']:g} s")
            time.sleep(POLL_S)

    def start(self, before: str, on_status: Any) -> str:
        """Ask for a start; returns the new run's InvocationID when it says ready. `before` is the last run's."""
        if self.state().get("ActiveState") == "failed":
            self.ask("reset-failed")
        began_us = time.time_ns() // 1000
        self.ask("start")
        deadline = time.monotonic() + self.limits["start_s"]
        while True:
            now = self.state()
            invocation = now.get("InvocationID", "")
            if invocation not in ("", before):
                if now["ActiveState"] == "active":
                    return invocation
                if now["ActiveState"] == "failed" or now.get("SubState", "").startswith("auto-restart"):
                    raise GateFailed(self.reason(now, began_us))
                on_status(now.get("StatusText", ""))
            if time.monotonic() > deadline:
                raise GateFailed(
                    f"not ready within {self.limits['start_s']:g} s; {now.get('StatusText', '')}".rstrip("; ")
                )
            time.sleep(POLL_S)

    def reason(self, state: dict[str, str], since_us: int) -> str:
        """Why a run ended: the engine's own last line where there is one, else what the manager says."""
        by_manager = (
            f"the engine ended with {state.get('Result', 'no result')}, status {state.get('ExecMainStatus', '?')}"
        )
        if state.get("Result") in ("watchdog", "timeout"):
            return by_manager
        for _ in range(5):  # the journal may be a moment behind the exit
            said = [line for line in map(error_in, self._own_lines(since_us)) if line]
            if said:
                return said[-1]
            time.sleep(POLL_S)
        return by_manager

    def _own_lines(self, since_us: int) -> list[str]:
        records = [json.loads(line) for line in self._run("journal").stdout.splitlines()]
        own = [
            r
            for r in records
            if r.get("SYSLOG_IDENTIFIER") == self.identifier and int(r["__REALTIME_TIMESTAMP"]) >= since_us
        ]
        return [record["MESSAGE"] for record in own if isinstance(record.get("MESSAGE"), str)]


def error_in(message: str) -> str:
    """What a journal line says went wrong: the text of an `error …` record, or a line that is no record at all."""
    if re.match(r"(decode|prefill|request|ready|refused) seq=", message):
        return ""
    found = re.match(r'error seq=.*?\berror=("(?:[^"\\]|\\.)*"|\S+)', message)
    if found is None:
        return message.strip()
    return json.loads(found[1]) if found[1].startswith('"') else found[1]


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


# --- the engine, over HTTP


class Engine:
    """The endpoint that one settings file makes: {"host", "port", "api_key_file", "expect", "canary_tokens"}."""

    def __init__(self, endpoint: dict[str, Any]) -> None:
        self.endpoint = endpoint
        host = endpoint["host"]
        self.host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = HTTP_S) -> dict[str, Any]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        request = urllib.request.Request(f"http://{host}:{self.endpoint['port']}{path}")
        if self.endpoint["api_key_file"]:
            key = Path(self.endpoint["api_key_file"]).read_text().strip()
            request.add_header("Authorization", f"Bearer {key}")
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with self.opener.open(request, data, timeout=timeout_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise GateFailed(f"{path} answered {error.code}: {error.read(500).decode('utf-8', 'replace')}") from error
        except (OSError, ValueError) as error:
            raise GateFailed(f"{path} gave no answer: {error}") from error

    def wait_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.call("/ready")
                return
            except GateFailed:
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_S)

    def read_back(self, invocation: str) -> dict[str, Any]:
        """The settings in force; GateFailed for the first that is not as asked, or when another run answers."""
        info = self.call("/server_info")
        if info.get("invocation") not in (None, invocation):
            raise GateFailed(f"another run of the engine answers (invocation {info['invocation']}, not {invocation})")
        settings: dict[str, Any] = info["settings"]
        for name, wanted in self.endpoint["expect"].items():
            if settings.get(name) != wanted:
                raise GateFailed(f"{name} is {settings.get(name)!r}, not {wanted!r} as asked")
        return settings

    def complete(self) -> str:
        """A real completion must give exactly the tokens asked for."""
        wanted = self.endpoint["canary_tokens"]
        body = {"prompt": [1], "max_tokens": wanted, "temperature": 0, "seed": 0, "ignore_eos": True}
        answer = self.call("/v1/completions", body, CANARY_S)
        got = answer["usage"]["completion_tokens"]
        if got != wanted:
            raise GateFailed(f"a completion of {wanted} tokens gave {got}")
        steps = answer.get("speculation", {}).get("steps")
        return f"{got} tokens in {steps} steps" if steps is not None else f"{got} tokens"

    def port_is_free(self) -> bool:
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.host, self.endpoint["port"])) != 0


# --- the transaction


class Transaction:
    """One request, from lock to outcome. Everything it learns is in its report file before it goes on."""

    def __init__(self, state: Path, request_id: str) -> None:
        self.state, self.applies = state, state / "applies"
        self.request: dict[str, Any] = json.loads((self.applies / f"{request_id}.request.json").read_text())
        self.settings, self.generations = Path(self.request["settings"]), Path(self.request["generations"])
        self.service = Service(self.request)
        self.began = time.monotonic()
        self.own_file = self.applies / f"{request_id}.json"
        self.base_file = self.applies / f"{request_id}.base.toml"
        self.report: dict[str, Any] = {
            "request_id": request_id,
            "who": self.request["who"],
            "when": now_iso(),
            "status": "running",
            "reason": None,
            "generation": None,
            "was_active": False,
            "settings": {},
            "phases": [],
        }

    def run(self) -> str:
        """The outcome's name. The lock is held by an open file, so that it ends with this process whatever happens."""
        with locked(self.state) as mine:
            if self.own_file.exists():
                self.report = json.loads(self.own_file.read_text())
                return self._recover() if mine and self.report["status"] == "running" else self.report["status"]
            if not mine:
                return self._end("busy", f"another change is under way{self._whose()}")
            if self._last().get("status") == "running":  # its program was killed, and so was the one that watched it
                Transaction(self.state, self._last()["request_id"]).take_over()
            base = self.settings.read_text()
            if sha256(base) != self.request["base_sha"]:
                return self._end("base_changed", "the settings were changed by somebody else in the meantime")
            return self._change(base)

    def take_over(self) -> str:
        """Go back from a change that was interrupted on this machine. The caller holds the lock."""
        self.report = json.loads(self.own_file.read_text())
        return self._recover()

    def _recover(self) -> str:
        self.began -= max((phase["elapsed_s"] for phase in self.report["phases"]), default=0.0)
        return self._roll_back(self.base_file.read_text(), "the change was interrupted on the box")

    def _last(self) -> dict[str, Any]:
        """The report of the change that holds the lock, or held it last."""
        path = self.state / "apply.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def _whose(self) -> str:
        last = self._last()
        return f", by {last['who']} since {last['when']}" if last.get("status") == "running" else ""

    def _change(self, base: str) -> str:
        number = 1 + max((int(path.stem) for path in self.generations.glob("*.toml")), default=0)
        self.report["generation"] = number
        staged = self.generations / f"{number:04d}.toml"
        write_atomically(self.base_file, base)
        write_atomically(staged, self.request["text"])
        was = self.service.state()
        self.report["was_active"] = was.get("ActiveState") in ("active", "activating")
        self._audit("armed", base_sha=self.request["base_sha"], file=str(staged), in_flight=self.request["in_flight"])
        self._phase("staged", staged.name)
        try:
            self._switch(self.request["text"], self.request["old"])
            self.report["settings"] = self._gate(self.request["new"], was.get("InvocationID", ""))
        except GateFailed as failure:
            return self._roll_back(base, str(failure))
        return self._end("confirmed", None)

    def _roll_back(self, base: str, reason: str) -> str:
        self.report["reason"] = reason
        self._phase("rolling_back", reason)
        try:
            before = self.service.state().get("InvocationID", "")
            self._switch(base, self.request["new"])
            if self.report["was_active"]:
                self.report["settings"] = self._gate(self.request["old"], before)
        except GateFailed as failure:
            try:
                self.service.stop()  # no third attempt, and no restart loop
            except GateFailed as stuck:
                failure = GateFailed(f"{failure}; and {stuck}")
            return self._end("rollback_failed", f"{reason}; then the old settings failed too: {failure}")
        return self._end("rolled_back", reason)

    def _switch(self, text: str, leaving: dict[str, Any]) -> None:
        """Stop what runs, wait until its port is free, and put the file in place."""
        self._phase("stopping")
        self.service.stop()
        deadline = time.monotonic() + PORT_FREE_S
        while not Engine(leaving).port_is_free():
            if time.monotonic() > deadline:
                raise GateFailed(f"port {leaving['port']} is still in use although the service has stopped")
            time.sleep(POLL_S)
        write_atomically(self.settings, text)

    def _gate(self, endpoint: dict[str, Any], before: str) -> dict[str, Any]:
        """Start, and let nothing pass that is not proven. Returns the settings in force."""
        try:
            return self._pass_gate(Engine(endpoint), before)
        except (KeyError, TypeError, AttributeError) as error:
            raise GateFailed(f"the engine's answer is not understood: {error!r}") from error

    def _pass_gate(self, engine: Engine, before: str) -> dict[str, Any]:
        limits = self.request["limits"]
        self._phase("loading")
        invocation = self.service.start(before, lambda text: self._phase("loading", text))
        engine.wait_ready(limits["ready_s"])
        settings = engine.read_back(invocation)
        self._phase("ready", f"{len(engine.endpoint['expect'])} settings read back")
        self._phase("probe", engine.complete())
        self._phase("soak", f"{limits['soak_s']:g} s")
        deadline = time.monotonic() + limits["soak_s"]
        while True:
            now = self.service.state()
            if now.get("InvocationID") != invocation or now.get("ActiveState") != "active":
                raise GateFailed(f"it did not stay up: {now.get('ActiveState')}, {now.get('Result')}")
            if time.monotonic() > deadline:
                return settings
            time.sleep(POLL_S)

    # what is told

    def _phase(self, name: str, text: str = "") -> None:
        phases = self.report["phases"]
        if phases and (phases[-1]["name"], phases[-1]["text"]) == (name, text):
            return
        if phases and phases[-1]["name"] == name and not text:
            return
        phases.append({"name": name, "elapsed_s": round(time.monotonic() - self.began, 3), "text": text})
        self._publish()

    def _publish(self) -> None:
        write_atomically(self.own_file, json.dumps(self.report))
        if self.report["generation"] is not None:  # it holds the lock: this is what the others may see
            write_atomically(self.state / "apply.json", json.dumps(self.report))

    def _audit(self, event: str, **more: Any) -> None:
        known = {"event": event, "request_id": self.report["request_id"], "generation": self.report["generation"]}
        append_line(self.state / "audit.jsonl", {**known, "who": self.request["who"], "when": now_iso(), **more})

    def _end(self, status: str, reason: str | None) -> str:
        self.report.update(status=status, reason=reason)
        self._audit(status, reason=reason)
        self._phase(status, reason or "")
        return status


@contextmanager
def locked(state: Path) -> Iterator[bool]:
    """The lock of all changes here; False while another process has it."""
    fd = os.open(state / "apply.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        yield mine
    finally:
        os.close(fd)


def watched_run(state: Path, request_id: str) -> int:
    """Do the transaction in a child and, should that be killed half-way, go back from here."""
    child = os.fork()
    if child == 0:
        os._exit(EXITS[Transaction(state, request_id).run()])
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in EXITS.values():
        return os.WEXITSTATUS(status)
    return EXITS[Transaction(state, request_id).run()]  # finds its own unfinished report, and goes back


def history(state: Path) -> list[dict[str, Any]]:
    """Every generation, oldest first: {"number", "sha", "when", "who", "outcome", "reason", "request_id", "text"}."""
    found: dict[int, dict[str, Any]] = {}
    for line in (state / "audit.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["generation"] is None:
            continue  # refused before it became a generation
        entry = found.setdefault(record["generation"], {**record, "outcome": "unknown", "reason": None})
        if record["event"] != "armed":
            entry.update(outcome=record["event"], reason=record.get("reason"))
    out = []
    for number, entry in sorted(found.items()):
        text = Path(entry["file"]).read_text()
        kept = {key: entry.get(key) for key in ("when", "who", "outcome", "reason", "request_id")}
        out.append({"number": number, "sha": sha256(text), **kept, "text": text})
    return out


def detach() -> None:
    """Go on as a process of no session and no terminal."""
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="the installation's state folder")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("id")
    run.add_argument("--detach", action="store_true", help="return at once; `show` tells how it goes")
    verbs.add_parser("show").add_argument("id")
    verbs.add_parser("history")
    args = parser.parse_args()
    if args.verb == "history":
        print(json.dumps(history(args.state)))
        return 0
    if args.verb == "show":
        print((args.state / "applies" / f"{args.id}.json").read_text())
        return 0
    if args.detach:
        detach()
    return watched_run(args.state, args.id)


if __name__ == "__main__":
    sys.exit(main())
