#!/usr/bin/env python3
"""Change an engine's settings on this machine, and go back by itself if they do not hold. Standard library only.

    apply.py --state S run ID [--detach]     the transaction in S/applies/ID.request.json; the exit status is its outcome
    apply.py --state S confirm ID | revert ID    the operator's word on a change that waits for one; exit 3: too late
    apply.py --state S show ID               how it stands, as one JSON object: S/applies/ID.json
    apply.py --state S undo                  before a start of the service: take back a change that nobody works on any more
    apply.py --state S history               every settings generation with its text and outcome, as one JSON array
    apply.py --state S strays ID             processes in the way of the request, as one JSON array

The transaction: lock, is the base unchanged, stage the new generation, have the engine check it, see that no stray
process is in the way, let requests end where that was asked for, stop, see that all of the old run is gone, swap the
file by rename, start, gate: a new invocation is ready, the engine shows the settings asked for, a real completion gives
its tokens, and nothing restarts for a while; where asked for, wait for the operator's word. If the gate fails the old
file comes back, is started, and passes the same gate; the reason is the engine's own last line. Whoever asked may vanish
at any moment: this program decides, and goes back too where it was itself killed.

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
import signal
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
RELEASE_S = 30.0
STRAY_END_S = 5.0
TELLS_WITHIN_S = 2.0  # from the lock to the first report
SILENT_S = 10.0  # a manager that is itself being restarted answers again well within this
CHECK_S = 300.0  # importing torch from a cold disk takes its time
SECRET = re.compile(r"key|token(?!izer|s\b)|secret|passw", re.IGNORECASE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SERVER_INFO = {"path": "/server_info", "at": ["settings"], "names": {}}
RUNNING = {"path": "/server_info", "at": ["requests", "running"]}


class Refused(Exception):
    """The change is not begun; the text is the reason."""


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


def now_iso(later_s: float = 0.0) -> str:
    return datetime.fromtimestamp(time.time() + later_s, timezone.utc).isoformat(timespec="seconds")


# --- processes


def started_at(pid: int) -> str | None:
    """A process's start time in clock ticks since boot, which with its number is its identity; None when it is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else fields[18]


def all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def members(main_pid: int, unit: str) -> dict[int, str]:
    """The processes of a running service, by its control group and by descent from `main_pid` -> their start times."""
    own: set[int] = set()
    group = group_of(main_pid)
    if unit not in Path(group).parts:
        group = ""
    parents: dict[int, int] = {}
    for pid in all_processes():
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        if group and (group_of(pid) + "/").startswith(group + "/"):
            own.add(pid)
    for pid in parents:
        ancestor = pid
        while ancestor > 0 and ancestor != main_pid:
            ancestor = parents.get(ancestor, 0)
        if main_pid > 0 and ancestor == main_pid:
            own.add(pid)
    started = {pid: started_at(pid) for pid in own}
    return {pid: start for pid, start in started.items() if start is not None}


def group_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("::")[2]
    except OSError:
        return ""


def command_of(pid: int) -> list[str]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in words if word]


def listeners(port: int) -> list[int]:
    """Processes that listen on a TCP port, as far as this user may see."""
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        try:
            if str(link.readlink()) in inodes:
                found.add(int(link.parts[2]))
        except OSError:
            continue  # not ours to see, or it has ended
    return sorted(found)


def gpu_bytes() -> dict[int, int]:
    """GPU memory by process, as nvidia-smi tells; empty where there is none."""
    argv = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    held: dict[int, int] = {}
    for line in shown.splitlines():
        pid, _, mebibytes = line.partition(", ")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():
            held[int(pid)] = held.get(int(pid), 0) + int(mebibytes) * 2**20
    return held


def shown(words: list[str]) -> str:
    """A command line for people's eyes and for the audit: what may be a secret is not in it."""
    out: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if out and SECRET.search(words[len(out) - 1]) and words[len(out) - 1].startswith("-") and "=" not in out[-1]:
            out.append("***")
        elif equals and SECRET.search(name):
            out.append(f"{name}=***")
        else:
            out.append(word)
    return " ".join(out)


def process_report(pid: int, gpu: dict[int, int], port: int | None = None) -> dict[str, Any]:
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resident = 0
    return {
        "pid": pid,
        "started": started_at(pid),
        "command": shown(command_of(pid)),
        "memory_bytes": resident,
        "gpu_bytes": gpu.get(pid, 0),
        "port": port,
    }


def in_words(process: dict[str, Any]) -> str:
    held = f"{process['memory_bytes'] / 1e9:.1f} GB of memory"
    if process["gpu_bytes"]:
        held += f" and {process['gpu_bytes'] / 1e9:.1f} GB of GPU memory"
    if process["port"] is not None:
        held = f"port {process['port']} and {held}"
    return f"process {process['pid']} ({process['command'][:120] or 'no command line'}) holds {held}"


def end_process(pid: int, started: str) -> None:
    """TERM, and KILL for one that stays. Only the very process that was named: a number may be used again."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if started_at(pid) != started:
            return
        try:
            os.kill(pid, number)
        except PermissionError as error:
            raise Refused(f"process {pid} is another user's and cannot be ended from here") from error
        except ProcessLookupError:
            return
        deadline = time.monotonic() + STRAY_END_S
        while started_at(pid) == started and time.monotonic() < deadline:
            time.sleep(POLL_S / 4)
    if started_at(pid) == started:
        raise Refused(f"process {pid} does not end, even when killed: it may need a reboot of this machine")


# --- the service, through the argument lists in the request


class Service:
    """The unit, by the commands its manager gave; both managers print their state as `Key=Value` lines."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.commands: dict[str, list[str]] = request["commands"]
        self.limits: dict[str, float] = request["limits"]
        self.identifier: str = request["identifier"]  # of the engine's own lines in the journal
        self.began_us = 0  # when the last start was asked for

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
        """The unit's properties. GateFailed for a manager that goes on not telling them: its silence is no state."""
        deadline = time.monotonic() + SILENT_S
        while True:
            done = self._run("state")
            found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
            if done.returncode == 0 and "ActiveState" in found:
                return found
            if time.monotonic() > deadline:
                said = last_line(done.stderr) or f"exit status {done.returncode}"
                raise GateFailed(f"the service manager does not tell the unit's state: {said}")
            time.sleep(POLL_S)

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
        self._run("reset-failed")  # the limit on starts counts these, too; a unit not loaded has nothing to forget
        self.began_us = time.time_ns() // 1000
        self.ask("start")
        deadline = time.monotonic() + self.limits["start_s"]
        while True:
            now = self.state()
            invocation = now.get("InvocationID", "")
            if invocation not in ("", before):
                if now["ActiveState"] == "active":
                    return invocation
                if now["ActiveState"] == "failed" or now.get("SubState", "").startswith("auto-restart"):
                    raise GateFailed(self.reason(now))
                on_status(now.get("StatusText", ""))
            if time.monotonic() > deadline:
                raise GateFailed(
                    f"not ready within {self.limits['start_s']:g} s; {now.get('StatusText', '')}".rstrip("; ")
                )
            time.sleep(POLL_S)

    def still(self, invocation: str) -> None:
        """GateFailed, with the reason, once that run is up no more."""
        now = self.state()
        if now.get("InvocationID") != invocation or now.get("ActiveState") != "active":
            raise GateFailed(f"it did not stay up: {self.reason(now)}")

    def reason(self, state: dict[str, str]) -> str:
        """Why a run ended: the engine's own last line where there is one, else what the manager says."""
        by_manager = (
            f"the engine ended with {state.get('Result', 'no result')}, status {state.get('ExecMainStatus', '?')}"
        )
        if state.get("Result") in ("watchdog", "timeout"):
            return by_manager
        for _ in range(5):  # the journal may be a moment behind the exit
            said = [line for line in map(error_in, self._own_lines(self.began_us)) if line]
            if said:
                return said[-1]
            time.sleep(POLL_S)
        return by_manager

    def _own_lines(self, since_us: int) -> list[str]:
        records = [json.loads(line) for line in self._run("journal").stdout.splitlines()]
        own = [r for r in records if self._is_own(r) and int(r["__REALTIME_TIMESTAMP"]) >= since_us]
        return [record["MESSAGE"] for record in own if isinstance(record.get("MESSAGE"), str)]

    def _is_own(self, record: dict[str, Any]) -> bool:
        """Said by the engine, and not by its manager about it."""
        if self.identifier:
            return record.get("SYSLOG_IDENTIFIER") == self.identifier
        return record.get("_TRANSPORT") == "stdout"


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
    """The endpoint that one settings file makes: {"host", "port", "api_key_file", "expect", "canary_tokens"} and, where the
    engine is not the bundled one, {"ready_path", "sources", "strict", "running", "names_model"}.

    "sources" are where settings are read back: {"path", "at": keys down to the object, "names": setting -> key there}, or
    {"path", "metric", "names": setting -> label}. What no source shows is a failure if "strict", else told as unproven.
    """

    def __init__(self, endpoint: dict[str, Any]) -> None:
        self.endpoint = endpoint
        host = endpoint["host"]
        self.host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = HTTP_S) -> Any:
        try:
            return json.loads(self.fetch(path, body, timeout_s))
        except ValueError as error:
            raise GateFailed(f"{path} answered something that is no JSON") from error

    def fetch(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = HTTP_S) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        request = urllib.request.Request(f"http://{host}:{self.endpoint['port']}{path}")
        key = self.endpoint.get("api_key", "")
        if self.endpoint["api_key_file"]:
            key = Path(self.endpoint["api_key_file"]).read_text().strip()
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with self.opener.open(request, data, timeout=timeout_s) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise GateFailed(f"{path} answered {error.code}: {error.read(500).decode('utf-8', 'replace')}") from error
        except (OSError, ValueError) as error:
            raise GateFailed(f"{path} gave no answer: {error}") from error

    def wait_ready(self, seconds: float, still_up: Any) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.fetch(self.endpoint.get("ready_path", "/ready"))
                return
            except GateFailed:
                still_up()
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_S)

    def read_back(self, invocation: str) -> dict[str, Any]:
        """The settings in force; GateFailed for the first that is not as asked, or when another run answers."""
        settings: dict[str, Any] = {}
        for source in self.endpoint.get("sources", [SERVER_INFO]):
            settings.update(self._shown(source, invocation))
        for name, wanted in self.endpoint["expect"].items():
            if name not in settings and not self.endpoint.get("strict", True):
                continue
            if not same(settings.get(name), wanted):
                raise GateFailed(f"{name} is {settings.get(name)!r}, not {wanted!r} as asked")
        return settings

    def unproven(self, settings: dict[str, Any]) -> list[str]:
        """Settings that were asked for and that the engine does not show."""
        return [name for name in self.endpoint["expect"] if name not in settings]

    def _shown(self, source: dict[str, Any], invocation: str) -> dict[str, Any]:
        names: dict[str, str] = source["names"]
        if "metric" in source:
            labels = labels_of(self.fetch(source["path"]).decode("utf-8", "replace"), source["metric"])
            return {name: labels[label] for name, label in names.items() if label in labels}
        info = self.call(source["path"])
        if isinstance(info, dict) and info.get("invocation") not in (None, invocation):
            raise GateFailed(f"another run of the engine answers (invocation {info['invocation']}, not {invocation})")
        found = down(info, source["at"])
        if not names:
            return dict(found)
        return {name: found[key] for name, key in names.items() if found.get(key) is not None}

    def running(self) -> int:
        """Requests in flight."""
        source = self.endpoint.get("running", RUNNING)
        if "metric" in source:
            return int(sum_of(self.fetch(source["path"]).decode("utf-8", "replace"), source["metric"]))
        return int(down(self.call(source["path"]), source["at"]))

    def complete(self) -> str:
        """A real completion must give exactly the tokens asked for."""
        wanted = self.endpoint["canary_tokens"]
        body: dict[str, Any] = {"prompt": [1], "max_tokens": wanted, "temperature": 0, "seed": 0, "ignore_eos": True}
        if self.endpoint.get("names_model"):
            body["model"] = self.call("/v1/models")["data"][0]["id"]
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


def down(value: Any, keys: list[Any]) -> Any:
    """What lies at `keys` in nested JSON."""
    for key in keys:
        value = value[key]
    return value


def same(shown: Any, wanted: Any) -> bool:
    """Equal, or the same figure in another type: labels of metrics and arguments of a command line are text."""
    if shown == wanted and type(shown) is type(wanted):
        return True
    if isinstance(shown, bool) or isinstance(wanted, bool):
        return str(shown).lower() == str(wanted).lower()
    try:
        return float(shown) == float(wanted)
    except (TypeError, ValueError):
        text, asked = str(shown), str(wanted)
        # SGLang writes DDTREE for ddtree; in a path every letter counts.
        return text == asked or ("/" not in text and text.lower() == asked.lower())


def labels_of(metrics: str, name: str) -> dict[str, str]:
    """The labels of the first sample of a Prometheus metric."""
    line = next((line for line in metrics.splitlines() if line.startswith(name + "{")), "")
    return dict(LABEL.findall(line))


def sum_of(metrics: str, name: str) -> float:
    """A Prometheus metric's value, summed over its labels."""
    lines = [line for line in metrics.splitlines() if re.match(re.escape(name) + r"[{ ]", line)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


# --- the operator's word


def decide(applies: Path, request_id: str, word: str) -> str:
    """The word that holds for a change that waits for one: `word` if it is the first, else the first one.

    A file that can be made only once decides between an operator's "confirm" and the deadline's "expired", so that the
    two can never both be told yes.
    """
    path = applies / f"{request_id}.word"
    part = applies / f".{request_id}.word.{os.getpid()}.{time.monotonic_ns()}"
    with part.open("w") as file:
        file.write(word)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(part, path)  # unlike a rename, this fails where the name is taken
    except FileExistsError:
        return path.read_text()
    finally:
        part.unlink()
    return word


# --- the transaction


class Transaction:
    """One request, from lock to outcome. Everything it learns is in its report file before it goes on."""

    def __init__(self, state: Path, request_id: str) -> None:
        self.state, self.applies = state, state / "applies"
        self.request: dict[str, Any] = json.loads((self.applies / f"{request_id}.request.json").read_text())
        self.settings, self.generations = Path(self.request["settings"]), Path(self.request["generations"])
        self.suffix: str = self.request.get("suffix", ".toml")
        self.unit: str = self.request.get("unit", "")
        self.service = Service(self.request)
        self.began = time.monotonic()
        self.own_file = self.applies / f"{request_id}.json"
        self.base_file = self.applies / f"{request_id}.base{self.suffix}"
        self.report: dict[str, Any] = {
            "request_id": request_id,
            "who": self.request["who"],
            "what": self.request.get("what", ""),
            "when": now_iso(),
            "until": now_iso(self.request["limits"].get("whole_s", 0.0) + (self.request.get("confirm_s") or 0.0)),
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
            if not os.access(self.settings.parent, os.W_OK):
                return self._end("rejected", f"{self.settings.parent} cannot be written by this user")
            base = self.settings.read_text()
            if sha256(base) != self.request["base_sha"]:
                return self._end("base_changed", "the settings were changed by somebody else in the meantime")
            return self._change(base)

    def take_over(self) -> str:
        """Go back from a change that was interrupted on this machine. The caller holds the lock."""
        self.report = json.loads(self.own_file.read_text())
        return self._recover()

    def undo(self) -> str:
        """Put the old settings back for a start that is under way, after the machine went down in the middle of a change.
        The caller holds the lock. No gate: whoever starts the service sees how it does."""
        self.report = json.loads(self.own_file.read_text())
        names = {phase["name"] for phase in self.report["phases"]}
        if "waiting" in names and decide(self.applies, self.report["request_id"], "interrupted") == "confirm":
            return self._end("confirmed", None)
        if self.base_file.exists() and {"stopping", "rolling_back"} & names:
            write_atomically(self.settings, self.base_file.read_text())
            return self._end("rolled_back", "the machine went down in the middle of the change")
        return self._end("rejected", "the machine went down before anything was touched")

    def strays(self) -> list[dict[str, Any]]:
        """Processes outside the service that hold one of its ports, or run on its settings file."""
        main_pid = int(self.service.state().get("MainPID") or 0)
        own, gpu = members(main_pid, self.unit), gpu_bytes()
        ports = {self.request["old"]["port"], self.request["new"]["port"]}
        found: dict[int, int | None] = {pid: port for port in sorted(ports) for pid in listeners(port)}
        for pid in all_processes():
            words = command_of(pid)
            if any(words[at : at + 2] == ["--config", str(self.settings)] for at in range(len(words))):
                found.setdefault(pid, None)
        return [
            process_report(pid, gpu, port)
            for pid, port in sorted(found.items())
            if pid not in own and pid != os.getpid()
        ]

    def _recover(self) -> str:
        self.began -= max((phase["elapsed_s"] for phase in self.report["phases"]), default=0.0)
        names = [phase["name"] for phase in self.report["phases"]]
        if "waiting" in names and decide(self.applies, self.report["request_id"], "interrupted") == "confirm":
            return self._end("confirmed", None)  # the operator was told so
        if not self.base_file.exists() or not {"stopping", "rolling_back"} & set(names):
            return self._end("rejected", "the change was interrupted on the box before anything was touched")
        return self._roll_back(self.base_file.read_text(), "the change was interrupted on the box")

    def _last(self) -> dict[str, Any]:
        """The report of the change that holds the lock, or held it last."""
        path = self.state / "apply.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def _whose(self) -> str:
        """Who holds the lock, since when, for what, how far it is, and until when at the latest."""
        deadline = time.monotonic() + TELLS_WITHIN_S
        while (last := self._last()).get("status") != "running":
            if time.monotonic() > deadline:
                return ""
            time.sleep(POLL_S / 4)  # it has the lock, and is about to say so
        what = f" ({last['what']})" if last.get("what") else ""
        step = f"{last['phases'][-1]['name'].replace('_', ' ')} {last['phases'][-1]['text']}".strip()
        until = last.get("until", "its end")
        return f", by {last['who']} since {last['when']}{what}, now at: {step}; until {until} at the latest"

    def _change(self, base: str) -> str:
        try:
            was = self.service.state()
        except GateFailed as silence:
            return self._end("rejected", str(silence))
        self._adopt(base)
        number = 1 + max(int(path.stem) for path in self.generations.glob(f"*{self.suffix}"))
        self.report["generation"] = number
        staged = self.generations / f"{number:04d}{self.suffix}"
        write_atomically(self.base_file, base)
        write_atomically(staged, self.request["text"])
        self.report["was_active"] = was.get("ActiveState") in ("active", "activating")
        choice = self.request.get("on_in_flight", "abort")
        self._audit(
            "armed",
            base_sha=self.request["base_sha"],
            file=str(staged),
            in_flight=self.request["in_flight"],
            on_in_flight=choice,
        )
        self._phase("staged", staged.name)
        try:
            self._dry_run(staged)
            self._clear_strays()
            if choice == "wait" and self.report["was_active"]:
                self._drain()
        except (Refused, GateFailed) as refusal:
            return self._end("rejected", str(refusal))
        try:
            self._switch(self.request["text"], self.request["old"])
            self.report["settings"] = self._gate(self.request["new"], was.get("InvocationID", ""))
            self._await_word()
        except GateFailed as failure:
            return self._roll_back(base, str(failure))
        return self._end("confirmed", None)

    def _adopt(self, base: str) -> None:
        """The first change ever to settings that no install laid down: they become generation 0, the way back."""
        self.generations.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self.generations.glob(f"*{self.suffix}")):
            return
        first = self.generations / f"0000{self.suffix}"
        write_atomically(first, base)
        found = {"event": "installed", "generation": 0, "request_id": None, "who": "found here", "when": now_iso()}
        append_line(self.state / "audit.jsonl", {**found, "file": str(first)})

    def _dry_run(self, staged: Path) -> None:
        """The engine's own opinion of the file, while the old one still serves."""
        check = self.service.commands.get("check")
        if not check:
            return
        self._phase("checking", "the engine reads the new settings")
        try:
            done = subprocess.run([*check, str(staged)], capture_output=True, text=True, timeout=CHECK_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(f"the settings could not be checked: {error}") from error
        if done.returncode != 0:
            raise Refused(last_line(done.stderr).replace(str(staged), str(self.settings)) or "the engine refuses them")

    def _clear_strays(self) -> None:
        """End those processes in the way that the operator agreed to; any other one stops the change."""
        agreed = {(one["pid"], one["started"]) for one in self.request.get("end", [])}
        for stray in self.strays():
            if (stray["pid"], stray["started"]) not in agreed:
                raise Refused(f"{in_words(stray)} and is not part of {self.unit}; it has to be ended first")
            self._phase("clearing", in_words(stray))
            end_process(stray["pid"], stray["started"])
            self._audit("ended_stray", pid=stray["pid"], command=stray["command"])
        new = Engine(self.request["new"])
        if self.request["new"]["port"] != self.request["old"]["port"] and not new.port_is_free():
            raise Refused(f"port {self.request['new']['port']} is in use by a process of another user")

    def _drain(self) -> None:
        """Let requests end; new ones may still come, so the wait has a limit, and then nothing has happened."""
        engine, limit_s = Engine(self.request["old"]), self.request["limits"].get("drain_s", 600.0)
        deadline = time.monotonic() + limit_s
        while True:
            try:
                running = engine.running()
            except (GateFailed, KeyError, TypeError, ValueError) as error:
                raise Refused(f"the engine does not tell how many requests run: {error}") from error
            if running == 0:
                return
            word = "1 request runs" if running == 1 else f"{running} requests run"
            if time.monotonic() > deadline:
                raise Refused(f"{word} still after {limit_s:g} s; nothing was changed")
            self._phase("draining", word)
            time.sleep(POLL_S)

    def _await_word(self) -> None:
        """Where that was asked for, the change holds only if the operator says so in time."""
        limit_s = self.request.get("confirm_s")
        if not limit_s:
            return
        request_id, invocation = self.report["request_id"], self.service.state().get("InvocationID", "")
        deadline = time.monotonic() + limit_s
        self.report["left_s"] = limit_s
        self._phase("waiting", f"{limit_s:g} s to confirm")
        while not (self.applies / f"{request_id}.word").exists() and (left_s := deadline - time.monotonic()) > 0:
            if left_s <= self.report["left_s"] - 1:  # for who begins to look now: a countdown needs no common clock
                self.report["left_s"] = round(left_s, 1)
                self._publish()
            try:
                self.service.still(invocation)
            except GateFailed:
                if decide(self.applies, request_id, "failed") != "confirm":
                    raise
                break  # it was confirmed in the same moment, and that was told
            time.sleep(POLL_S)
        word = decide(self.applies, request_id, "expired")  # the one last look, which is also what closes the door
        if word == "revert":
            raise GateFailed("the operator took it back")
        if word != "confirm":
            raise GateFailed(f"nobody confirmed it within {limit_s:g} s")

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
        """Stop what runs, wait until nothing of it is left, and put the file in place."""
        self._phase("stopping")
        old = members(int(self.service.state().get("MainPID") or 0), self.unit)
        self.service.stop()
        deadline = time.monotonic() + RELEASE_S
        while left := self._left(old, leaving):
            if time.monotonic() > deadline:
                raise GateFailed(f"{left} although the service has stopped")
            time.sleep(POLL_S)
        try:
            write_atomically(self.settings, text)
        except OSError as error:
            raise GateFailed(f"{self.settings} could not be written: {error}") from error

    def _left(self, old: dict[int, str], leaving: dict[str, Any]) -> str:
        """What the run that was stopped still holds, in words; "" for nothing: processes, GPU memory, its port."""
        gpu = gpu_bytes()
        alive = [pid for pid, started in old.items() if started_at(pid) == started or pid in gpu]
        if alive:
            return in_words(process_report(alive[0], gpu))
        if not Engine(leaving).port_is_free():
            holder = listeners(leaving["port"])
            who = f" by {in_words(process_report(holder[0], gpu))}" if holder else ""
            return f"port {leaving['port']} is still in use{who}"
        return ""

    def _gate(self, endpoint: dict[str, Any], before: str) -> dict[str, Any]:
        """Start, and let nothing pass that is not proven. Returns the settings in force."""
        try:
            return self._pass_gate(Engine(endpoint), before)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise GateFailed(f"the engine's answer is not understood: {error!r}") from error

    def _pass_gate(self, engine: Engine, before: str) -> dict[str, Any]:
        limits = self.request["limits"]
        self._phase("loading")
        invocation = self.service.start(before, lambda text: self._phase("loading", text))
        engine.wait_ready(limits["ready_s"], lambda: self.service.still(invocation))
        settings = engine.read_back(invocation)
        unproven = engine.unproven(settings)
        also = f"; not shown by the engine: {', '.join(unproven)}" if unproven else ""
        self._phase("ready", f"{len(engine.endpoint['expect']) - len(unproven)} settings read back{also}")
        self._phase("probe", engine.complete())
        self._phase("soak", f"{limits['soak_s']:g} s")
        deadline = time.monotonic() + limits["soak_s"]
        while True:
            self.service.still(invocation)
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
    audit = state / "audit.jsonl"
    for line in audit.read_text().splitlines() if audit.exists() else ():
        record = json.loads(line)
        if record["generation"] is None:
            continue  # refused before it became a generation
        entry = found.setdefault(record["generation"], {**record, "outcome": "unknown", "reason": None})
        if record["event"] not in ("armed", "ended_stray"):
            entry.update(outcome=record["event"], reason=record.get("reason"))
    out = []
    for number, entry in sorted(found.items()):
        text = Path(entry["file"]).read_text()
        kept = {key: entry.get(key) for key in ("when", "who", "outcome", "reason", "request_id")}
        out.append({"number": number, "sha": sha256(text), **kept, "text": text})
    return out


def undo(state: Path) -> str:
    """What became of a change that nobody works on any more; "" where there is none, or somebody does."""
    last = state / "apply.json"
    if not last.exists():
        return ""
    with locked(state) as mine:
        report = json.loads(last.read_text())
        if not mine or report.get("status") != "running":
            return ""
        return Transaction(state, report["request_id"]).undo()


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
    for verb in ("show", "confirm", "revert", "strays"):
        verbs.add_parser(verb).add_argument("id")
    verbs.add_parser("history")
    verbs.add_parser("undo")
    args = parser.parse_args()
    if args.verb == "history":
        print(json.dumps(history(args.state)))
        return 0
    if args.verb == "undo":
        print(undo(args.state) or "nothing to undo")
        return 0
    if args.verb == "show":
        print((args.state / "applies" / f"{args.id}.json").read_text())
        return 0
    if args.verb in ("confirm", "revert"):
        word = decide(args.state / "applies", args.id, args.verb)
        print(word)
        return 0 if word == args.verb else 3
    if args.verb == "strays":
        try:
            print(json.dumps(Transaction(args.state, args.id).strays()))
        except GateFailed as silence:
            print(silence, file=sys.stderr)
            return 1
        return 0
    if args.detach:
        detach()
    return watched_run(args.state, args.id)


if __name__ == "__main__":
    sys.exit(main())
