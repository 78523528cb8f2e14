#!/usr/bin/env python3
"""Keep one service running on a machine that has no systemd. Standard library only; runnable by hand.

    supervise.py --folder F start | stop | restart | reset-failed      act on the service (add --wait to see it through)
    supervise.py --folder F status [--json]                            its state, in the property names of `systemctl show`
    supervise.py --folder F logs [--follow] [--cursor C] [--lines N]   its journal, in the field names of `journalctl -o json`
    supervise.py --folder F run                                        the supervisor itself, in the foreground

F/service.json says what to run: {"name", "argv", "env", "cwd", "identifier"} and, with defaults, "before_start": a
command that runs before each start and whose failure stops nothing, "start_timeout_s",
"stop_timeout_s", "watchdog_s", "restart_delay_s", "restart_limit" starts in "restart_window_s", "no_restart_on" exit
statuses, "journal_file_bytes", "journal_files", and "bound_to": a process id with whose end the service ends.

The service is told NOTIFY_SOCKET, WATCHDOG_USEC and INVOCATION_ID as systemd would tell it. The supervisor lives as long
as the service is wanted; what remains afterwards is status.json and the journal.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import secrets
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Iterator

DEFAULTS: dict[str, Any] = {
    "name": "service",
    "env": {},
    "cwd": None,
    "identifier": None,
    "before_start": [],
    "start_timeout_s": 600.0,
    "stop_timeout_s": 30.0,
    "watchdog_s": 0.0,
    "restart_delay_s": 2.0,
    "restart_limit": 5,
    "restart_window_s": 300.0,
    "no_restart_on": [2, 78],
    "journal_file_bytes": 8 << 20,
    "journal_files": 8,
    "bound_to": None,
}
NEVER_STARTED = {
    "LoadState": "loaded",
    "ActiveState": "inactive",
    "SubState": "dead",
    "Result": "success",
    "StatusText": "",
    "MainPID": "0",
    "ExecMainCode": "0",
    "ExecMainStatus": "0",
    "NRestarts": "0",
    "InvocationID": "",
    "ActiveEnterTimestamp": "",
    "StateChangeTimestamp": "",
}
BEFORE_START_S = 30.0
LINE_MAX = 48 * 1024  # as journald splits
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DEAD, START, RUNNING, TERM, KILL, AUTO_RESTART, FAILED = (
    ("inactive", "dead"),
    ("activating", "start"),
    ("active", "running"),
    ("deactivating", "stop-sigterm"),
    ("deactivating", "stop-sigkill"),
    ("activating", "auto-restart"),
    ("failed", "failed"),
)


# --- the journal: files of JSON lines named after their first sequence number, rotated by size -------------------------


def segments(folder: Path) -> list[tuple[int, Path]]:
    """The journal's files as (first sequence number, path), oldest first."""
    return sorted((int(path.stem), path) for path in (folder / "journal").glob("*.jsonl"))


def cursor_of(journal_id: str, seq: int) -> str:
    return f"s={journal_id};i={seq:x}"


def seq_of(cursor: str) -> int:
    """The sequence number in a cursor; ValueError for anything else."""
    fields = dict(part.partition("=")[::2] for part in cursor.split(";"))
    if set(fields) != {"s", "i"}:
        raise ValueError(f"no cursor: {cursor!r}")
    return int(fields["i"], 16)


def seq_to_begin(folder: Path, cursor: str) -> int:
    """Where to go on from a cursor: its number, or the beginning where it is of a journal that is no more."""
    id_file = folder / "journal" / "id"
    if id_file.exists() and cursor_of(id_file.read_text(), seq_of(cursor)) == cursor:
        return seq_of(cursor)
    return 0


def seq_in(line: bytes) -> int:
    return seq_of(json.loads(line)["__CURSOR"])


class Journal:
    """Appends records. A torn last line, left by a power cut, is cut off when the journal is opened again."""

    def __init__(self, folder: Path, file_bytes: int, files: int) -> None:
        self.folder, self.file_bytes, self.files = folder, file_bytes, files
        (folder / "journal").mkdir(mode=0o700, exist_ok=True)
        id_file = folder / "journal" / "id"
        if not id_file.exists():
            write_atomically(id_file, secrets.token_hex(16))
        self.journal_id = id_file.read_text()
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        self.seq = 0
        present = segments(folder)
        if present:
            self.seq = present[-1][0] - 1
            path = present[-1][1]
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(path, len(whole))
            if whole:
                self.seq = seq_in(whole.splitlines()[-1])
        self._open(present[-1][1] if present else self._segment(1))

    def _segment(self, seq: int) -> Path:
        return self.folder / "journal" / f"{seq:020d}.jsonl"

    def _open(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self.fd).st_size

    def append(self, message: bytes, priority: int, identifier: str, **fields: str) -> None:
        self.seq += 1
        try:
            text: Any = message.decode()
        except UnicodeDecodeError:
            text = list(message)  # as journald writes what is not UTF-8
        record = {
            "__CURSOR": cursor_of(self.journal_id, self.seq),
            "__REALTIME_TIMESTAMP": str(time.time_ns() // 1000),
            "__MONOTONIC_TIMESTAMP": str(time.monotonic_ns() // 1000),
            "_BOOT_ID": self.boot_id,
            "PRIORITY": str(priority),
            "SYSLOG_IDENTIFIER": identifier,
            "MESSAGE": text,
            **fields,
        }
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if self.size and self.size + len(line) > self.file_bytes:
            os.close(self.fd)
            self._open(self._segment(self.seq))
            for _, path in segments(self.folder)[: -self.files]:
                path.unlink()
        os.write(self.fd, line)
        self.size += len(line)


def read_journal(folder: Path, first_seq: int) -> Iterator[bytes | None]:
    """Complete lines from sequence number `first_seq` on, over rotations; None whenever there is no more for now."""
    while not segments(folder):
        yield None
    present = segments(folder)
    number, path = next((s for s in reversed(present) if s[0] <= first_seq), present[0])
    while True:
        with path.open("rb") as file:
            rest = b""
            while True:
                newer = next(
                    (s for s in segments(folder) if s[0] > number), None
                )  # asked before reading: no line is missed
                chunk = file.read(1 << 16)
                if chunk:
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (line + b"\n" for line in lines if seq_in(line) >= first_seq)
                elif newer:
                    break
                else:
                    yield None
            number, path = newer


def last_lines(folder: Path, count: int, since_us: int) -> tuple[list[bytes], int]:
    """The newest `count` lines not older than `since_us`, oldest first, and the sequence number after them."""
    out: list[bytes] = []
    following = 1
    for number, path in reversed(segments(folder)):
        content = path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        following = max(following, number, *(seq_in(line) + 1 for line in lines[-1:]))
        fresh = (
            [line for line in lines if int(json.loads(line)["__REALTIME_TIMESTAMP"]) >= since_us] if since_us else lines
        )
        out = fresh + out
        if len(out) >= count or len(fresh) < len(lines):
            break
    return (out[-count:] if count else []), following


# --- small things -----------------------------------------------------------------------------------------------------


def write_atomically(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def started_at(pid: int) -> str | None:
    """A process's start time in clock ticks since boot, which with its number is its identity; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


def children() -> list[int]:
    """Every child of this process, adopted ones included, dead ones not."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(entry.name))
    return found


def load_service(folder: Path) -> dict[str, Any]:
    return {**DEFAULTS, **json.loads((folder / "service.json").read_text())}


# --- the supervisor ---------------------------------------------------------------------------------------------------


class Supervisor:
    """One service, from start to the moment it is no longer wanted. Single-threaded: one selector, one clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = load_service(folder)
        self.journal = Journal(folder, self.spec["journal_file_bytes"], self.spec["journal_files"])
        self.selector = selectors.DefaultSelector()
        self.state, self.result, self.status_text = DEAD, "success", ""
        self.pid, self.exit_code, self.exit_status = 0, 0, 0
        self.invocation = ""
        self.restarts = 0
        self.starts: list[float] = []
        self.active_since, self.changed = 0.0, time.time()
        self.deadline: float | None = None  # of the state we are in, monotonic
        self.watchdog: float | None = None
        self.wanted, self.again = True, False
        self.failure = ""  # why the running stop is under way, when it is not the operator's wish
        self.owner: int = self.spec["bound_to"] or 0
        self.owner_started = started_at(self.owner) if self.owner else None
        self.streams: list[Stream] = []
        self.done = False

    # the world outside

    def run(self) -> int:
        """Start the service and stay until it is no longer wanted; the exit status says whether it failed."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.umask(0o077)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop())
        self.selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        control = self._listen()
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        notify.bind(f"\0ddtree-{secrets.token_hex(8)}")  # abstract: no limit on the folder's length, nothing to remove
        self.notify_name = "@" + notify.getsockname()[1:].decode()
        self.selector.register(notify, selectors.EVENT_READ, lambda: self._notified(notify))
        self.start()
        while not self.done:
            for key, _ in self.selector.select(self._patience()):
                key.data()
            self._reap()
            self._check_clocks()
        control.close()
        Path("control").unlink()
        return 1 if self.state == FAILED else 0

    def _listen(self) -> socket.socket:
        os.chdir(self.folder)  # a socket's path is limited to 107 bytes: bind by its bare name
        Path("control").unlink(missing_ok=True)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        old = os.umask(0o177)
        control.bind("control")
        os.umask(old)
        control.listen(8)
        self.selector.register(control, selectors.EVENT_READ, lambda: self._asked(control))
        return control

    def _asked(self, control: socket.socket) -> None:
        """One verb a connection; answered when it is accepted, not when it is done."""
        connection, _ = control.accept()
        with connection:
            connection.settimeout(1.0)
            try:
                verb = connection.recv(64).decode().strip()
                actions: dict[str, Callable[[], None]] = {
                    "stop": self.stop,
                    "start": self.start_wanted,
                    "restart": self.restart,
                }
                actions.get(verb, lambda: None)()
                connection.sendall(b"ok\n" if verb in actions else b"unknown verb\n")
            except OSError as error:
                self.say(f"a command was lost: {error}", 4)

    def _notified(self, notify: socket.socket) -> None:
        data, ancillary, _, _ = notify.recvmsg(8192, socket.CMSG_SPACE(12))
        sender = next((struct.unpack("iII", c[2])[0] for c in ancillary if c[1] == socket.SCM_CREDENTIALS), 0)
        if sender != self.pid:
            return  # NotifyAccess=main
        fields = dict(line.partition("=")[::2] for line in data.decode("utf-8", "replace").splitlines())
        self.status_text = fields.get("STATUS", self.status_text)
        if "EXTEND_TIMEOUT_USEC" in fields and self.deadline is not None:
            self.deadline = max(self.deadline, time.monotonic() + int(fields["EXTEND_TIMEOUT_USEC"]) / 1e6)
        if fields.get("READY") == "1" and self.state == START:
            self.active_since = time.time()
            self._enter(RUNNING)
            self.say("Started.")
        if self.state == RUNNING and self.spec["watchdog_s"] and ("WATCHDOG" in fields or "READY" in fields):
            self.watchdog = time.monotonic() + self.spec["watchdog_s"]
        self._publish()

    def _patience(self) -> float:
        clocks = [clock - time.monotonic() for clock in (self.deadline, self.watchdog) if clock is not None]
        return max(0.0, min([*clocks, 1.0]))

    # the service's life

    def start(self) -> None:
        self.spec = load_service(self.folder)
        now = time.monotonic()
        self.starts = [moment for moment in self.starts if moment > now - self.spec["restart_window_s"]] + [now]
        self.invocation, self.status_text, self.failure = uuid.uuid4().hex, "", ""
        self.result, self.exit_code, self.exit_status = "success", 0, 0
        self.say("Starting.")
        session = ("SSH_", "XDG_SESSION")  # of whoever said start
        environment = {name: value for name, value in os.environ.items() if not name.startswith(session)}
        environment.update(self.spec["env"], NOTIFY_SOCKET=self.notify_name, INVOCATION_ID=self.invocation)
        if self.spec["watchdog_s"]:
            environment["WATCHDOG_USEC"] = str(int(self.spec["watchdog_s"] * 1e6))
        self._before_start(environment)
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        try:
            child = subprocess.Popen(
                self.spec["argv"],
                cwd=self.spec["cwd"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out[1],
                stderr=err[1],
                start_new_session=True,
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # safe: there are no threads here
            )
        except OSError as error:
            for fd in (*out, *err):
                os.close(fd)
            self.say(f"Failed to execute {self.spec['argv'][0]}: {error.strerror}", 3)
            self.pid, self.exit_code, self.exit_status, self.result = 0, 1, 203, "exit-code"
            self._ended()
            return
        child.returncode = 0  # reaped by `_reap`, which also reaps what the service left behind
        self.pid = child.pid
        for read_end, write_end in (out, err):
            os.close(write_end)
            self.streams.append(Stream(self, read_end))
        self.deadline = now + self.spec["start_timeout_s"] if self.spec["start_timeout_s"] else None
        self._enter(START)

    def _before_start(self, environment: dict[str, str]) -> None:
        """As ExecStartPre=- of a unit: what it says is said here, and whatever comes of it, the service starts."""
        argv = self.spec["before_start"]
        if not argv:
            return
        try:
            done = subprocess.run(
                argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=BEFORE_START_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self.say(f"Before the start: {error}.", 4)
            return
        lines = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
        if lines:
            self.say(f"Before the start: {lines[-1]}.", 6 if done.returncode == 0 else 4)

    def stop(self, failure: str = "", sig: int = signal.SIGTERM) -> None:
        """End the service: as the operator wishes, or because of a failure."""
        if not failure:
            self.wanted = self.again = False
        if self.state in (START, RUNNING):
            self.failure, self.watchdog = failure, None
            self.say("Stopping." if not failure else f"Ending it: {failure}.", 6 if not failure else 4)
            self.deadline = time.monotonic() + self.spec["stop_timeout_s"]
            self._enter(TERM)
            self._signal(sig)
        elif self.state == AUTO_RESTART:
            self.result = "success"
            self._settle()

    def start_wanted(self) -> None:
        self.wanted = True
        if self.state in (TERM, KILL):
            self.again = True
        elif self.state in (DEAD, FAILED):  # it had just settled
            self.done = False
            self.start()

    def restart(self) -> None:
        self.stop()
        self.start_wanted()

    def _signal(self, sig: int) -> None:
        for pid in {self.pid, *children()} - {0}:
            for send in (os.killpg, os.kill):  # its process group where it leads one, and itself in any case
                try:
                    send(pid, sig)
                except ProcessLookupError:
                    continue

    def _reap(self) -> None:
        reaped = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            reaped = True
            if pid == self.pid:
                self._main_exited(status)
        if reaped and self.state in (TERM, KILL):  # whom the dead one left behind is ours now, and goes too
            self._signal(signal.SIGTERM if self.state == TERM else signal.SIGKILL)
        if self.pid == 0 and self.state in (TERM, KILL) and not children():
            self._ended()

    def _main_exited(self, status: int) -> None:
        self.pid = 0
        for stream in tuple(self.streams):
            stream.read()  # its last words come before what is said about its end
        killed = os.WIFSIGNALED(status)
        self.exit_code, self.exit_status = (2, os.WTERMSIG(status)) if killed else (1, os.WEXITSTATUS(status))
        wished = self.state in (TERM, KILL) and not self.failure
        if self.failure:
            self.result = self.failure
        elif self.exit_status == 0 or (wished and self.exit_code == 2 and self.exit_status == signal.SIGTERM):
            self.result = "success"
        else:
            self.result = "timeout" if self.state == KILL else "signal" if killed else "exit-code"
        if self.result != "success":
            self.say(f"Main process exited, {'killed by signal' if killed else 'status'} {self.exit_status}.", 5)
        self.watchdog = None
        if self.state not in (TERM, KILL):  # it ended by itself
            self.deadline = time.monotonic() + self.spec["stop_timeout_s"]
            self.state = TERM

    def _ended(self) -> None:
        """Nothing of the service runs any more: stop, start anew at once, or start anew after the delay."""
        for stream in tuple(self.streams):
            stream.read()
            stream.close()
        if self.again:
            self.again = False
            self.restarts, self.starts = 0, []
            self.start()
        elif not self.wanted or self.result == "success":
            self._settle()
        elif self.exit_code == 1 and self.exit_status in self.spec["no_restart_on"]:
            self.say("Failed; this exit status asks for no restart.", 3)
            self._settle()
        elif len(self.starts) >= self.spec["restart_limit"]:
            self.result = "start-limit-hit"
            self.say("Start request repeated too quickly; giving up.", 3)
            self._settle()
        else:
            self.restarts += 1
            self.deadline = time.monotonic() + self.spec["restart_delay_s"]
            self._enter(AUTO_RESTART)

    def _settle(self) -> None:
        self.done = True
        self.deadline = None
        self._enter(DEAD if self.result == "success" else FAILED)
        self.say(
            "Stopped." if self.result == "success" else f"Failed with result '{self.result}'.",
            6 if self.result == "success" else 3,
        )

    def _check_clocks(self) -> None:
        now = time.monotonic()
        if self.owner and (self.owner_started is None or started_at(self.owner) != self.owner_started):
            self.say(f"Process {self.owner}, which it is bound to, has ended.")
            self.owner = 0
            self.stop()
        if self.watchdog is not None and now >= self.watchdog:
            self.watchdog = None
            self.stop("watchdog", signal.SIGABRT)
        if self.deadline is None or now < self.deadline:
            return
        self.deadline = None
        if self.state == START:
            self.stop("timeout")
        elif self.state == TERM:
            self.say("It does not end; killing it.", 4)
            self._enter(KILL)
            self._signal(signal.SIGKILL)
            self.deadline = now + 1.0
        elif self.state == KILL:  # stuck in the kernel, or a child that turned up late
            self._signal(signal.SIGKILL)
            self.deadline = now + 1.0
        elif self.state == AUTO_RESTART:
            self.start()

    # what others see

    def _enter(self, state: tuple[str, str]) -> None:
        self.state, self.changed = state, time.time()
        self._publish()

    def _publish(self) -> None:
        properties = dict(
            NEVER_STARTED,
            Id=self.spec["name"],
            ActiveState=self.state[0],
            SubState=self.state[1],
            Result=self.result,
            StatusText=self.status_text,
            MainPID=str(self.pid),
            ExecMainCode=str(self.exit_code),
            ExecMainStatus=str(self.exit_status),
            NRestarts=str(self.restarts),
            InvocationID=self.invocation,
            ActiveEnterTimestamp=f"@{self.active_since:.6f}" if self.active_since else "",
            StateChangeTimestamp=f"@{self.changed:.6f}",
        )
        write_atomically(self.folder / "status.json", json.dumps(properties))

    def say(self, text: str, priority: int = 6) -> None:
        """A line of the supervisor's own in the service's journal."""
        self.journal.append(text.encode(), priority, "supervise", UNIT=self.spec["name"], INVOCATION_ID=self.invocation)


class Stream:
    """One of the service's output pipes, cut into lines, each a record of the run that opened the pipe."""

    def __init__(self, supervisor: Supervisor, fd: int) -> None:
        self.supervisor, self.fd, self.rest = supervisor, fd, b""
        self.priority, self.cut = 6, False  # of the line being recorded; whether its beginning is
        spec = supervisor.spec
        self.identifier = spec["identifier"] or spec["name"]
        self.fields = {
            "_PID": str(supervisor.pid),
            "_SYSTEMD_INVOCATION_ID": supervisor.invocation,
            "_SYSTEMD_UNIT": spec["name"],
        }
        os.set_blocking(fd, False)
        supervisor.selector.register(fd, selectors.EVENT_READ, self.read)

    def read(self) -> None:
        """Take what is there; at the end of the pipe, close it."""
        while self.fd >= 0:
            try:
                chunk = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            *lines, self.rest = (self.rest + chunk).split(b"\n")
            for line in lines:
                self._record(self._pieces(line))
            self.rest = self._pieces(self.rest)
            if not chunk:
                self.close()

    def close(self) -> None:
        if self.fd >= 0:
            self._record(self.rest)
            self.supervisor.selector.unregister(self.fd)
            self.supervisor.streams.remove(self)
            os.close(self.fd)
            self.fd = -1

    def _pieces(self, line: bytes) -> bytes:
        """Record what is more than a record holds, each piece marked as one; the rest of the line is left over."""
        while len(line) > LINE_MAX:
            self._record(line[:LINE_MAX], _LINE_BREAK="line-max")
            line = line[LINE_MAX:]
        return line

    def _record(self, line: bytes, **more: str) -> None:
        """`<3>` in front is the line's priority, blanks at its end go, an empty line is none: as journald has it."""
        if not self.cut and line[:1] == b"<" and line[2:3] == b">" and line[1:2] in b"01234567":
            self.priority, line = int(line[1:2]), line[3:]
        elif not self.cut:
            self.priority = 6
        self.cut = bool(more)
        line = line if more else line.rstrip()
        if line:
            self.supervisor.journal.append(line, self.priority, self.identifier, **self.fields, **more)


# --- the commands -----------------------------------------------------------------------------------------------------


def lock(folder: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """The lock that a supervisor holds for life, as an open file; None while another one has it.

    Who only asks whether there is a supervisor takes LOCK_SH, so that two who ask do not see each other.
    """
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def ask(folder: Path, verb: str) -> bool:
    """Hand a verb to the running supervisor; False when there is none to hear it."""
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(5.0)
        try:
            control.connect("control")
            control.sendall(verb.encode())
            return control.recv(64) == b"ok\n"
        except (FileNotFoundError, ConnectionError):
            return False


def detach(folder: Path, held: int) -> None:
    """Become a daemon that supervises; returns in the caller, at once. The lock goes along with the daemon."""
    if os.fork():
        os.close(held)
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    trouble = os.open(folder / "supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for fd, copy in ((null, 0), (null, 1), (trouble, 2)):
        os.dup2(fd, copy)
    os._exit(Supervisor(folder).run())


def status(folder: Path) -> dict[str, str]:
    """The service's properties, in the names and values of `systemctl show`."""
    if not (folder / "service.json").exists():
        return {"Id": folder.name, **NEVER_STARTED, "LoadState": "not-found"}
    properties = {"Id": load_service(folder)["name"], **NEVER_STARTED}
    if (folder / "status.json").exists():
        properties.update(json.loads((folder / "status.json").read_text()))
    held = lock(folder, fcntl.LOCK_SH)
    if held is not None:
        os.close(held)
        if properties["ActiveState"] not in ("inactive", "failed"):  # nobody is there to say otherwise
            properties.update(ActiveState="failed", SubState="failed", Result="supervisor-died", MainPID="0")
    if properties.get("MainPID", "0") != "0":
        properties["MemoryCurrent"] = str(resident_bytes(int(properties["MainPID"])))
    return properties


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def act(folder: Path, verb: str) -> None:
    """start, stop or restart. Retries while a supervisor is just going or just coming."""
    for _ in range(100):
        if ask(folder, verb):
            return
        held = lock(folder)
        if held is not None and verb == "stop":
            os.close(held)
            return  # nobody supervises: there is nothing to stop
        if held is not None:
            write_atomically(folder / "status.json", json.dumps({"ActiveState": "activating", "SubState": "start"}))
            detach(folder, held)
            return
        time.sleep(0.1)
    raise TimeoutError("another supervisor holds the lock and does not answer")


def wait_for(folder: Path, verb: str, timeout_s: float) -> dict[str, str]:
    settled = ("inactive", "failed") if verb == "stop" else ("active", "failed", "inactive")
    deadline = time.monotonic() + timeout_s
    while True:
        now = status(folder)
        if now["ActiveState"] in settled or time.monotonic() > deadline:
            return now
        time.sleep(0.05)


def logs(folder: Path, args: argparse.Namespace) -> int:
    """Print the journal. With --follow it ends when its reader goes, even while the service is silent."""
    out = sys.stdout.buffer
    gone = select.poll()
    gone.register(out.fileno(), select.POLLERR | select.POLLHUP)
    if args.cursor or args.after_cursor:
        lines: list[bytes] = []
        following = seq_to_begin(folder, args.cursor or args.after_cursor) + (1 if args.after_cursor else 0)
    else:
        since_us = int(float(args.since.lstrip("@")) * 1e6) if args.since else 0
        lines, following = last_lines(folder, args.lines if args.lines is not None else sys.maxsize, since_us)
    try:
        out.writelines(lines)
        out.flush()
        if args.follow or args.cursor or args.after_cursor:
            for line in read_journal(folder, following):
                if line is not None:
                    out.write(line)
                    continue
                out.flush()
                if not args.follow or gone.poll(100):
                    break
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # so that Python's own flush at exit is quiet
    return 0


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where service.json, the status and the journal are")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("start", "stop", "restart"):
        one = verbs.add_parser(verb)
        one.add_argument("--wait", type=float, metavar="SECONDS", help="until it runs, has stopped, or has failed")
    verbs.add_parser("reset-failed")
    verbs.add_parser("run")
    verbs.add_parser("status").add_argument("--json", action="store_true")
    reader = verbs.add_parser("logs")
    reader.add_argument("--follow", action="store_true")
    where = reader.add_mutually_exclusive_group()
    where.add_argument("--cursor", help="begin with this record, or with the oldest one kept if it is gone")
    where.add_argument("--after-cursor", help="begin behind this record")
    reader.add_argument("--since", help="@SECONDS since the epoch")
    reader.add_argument("--lines", type=int, help="only the newest N to begin with")
    return parser.parse_args(argv)


def main() -> int:
    args = parse_arguments()
    folder = args.folder.resolve()
    if args.verb == "status":
        now = status(folder)
        print(json.dumps(now) if args.json else "\n".join(f"{key}={value}" for key, value in now.items()))
        return 0
    if not (folder / "service.json").exists():
        print(f"{folder}: no service.json; there is no service here", file=sys.stderr)
        return 5
    if args.verb == "logs":
        return logs(folder, args)
    if args.verb == "run":
        held = lock(folder)
        if held is None:
            print(f"{folder}: another supervisor runs here", file=sys.stderr)
            return 75
        return Supervisor(folder).run()
    if args.verb == "reset-failed":
        held = lock(folder)
        if held is not None:
            (folder / "status.json").unlink(missing_ok=True)
            os.close(held)
        return 0
    act(folder, args.verb)
    if args.wait is None:
        return 0
    now = wait_for(folder, args.verb, args.wait)
    print(" ".join(now[key] for key in ("ActiveState", "SubState", "Result")))
    return 0 if now["ActiveState"] == ("inactive" if args.verb == "stop" else "active") else 1


if __name__ == "__main__":
    sys.exit(main())
