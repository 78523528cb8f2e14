#!/usr/bin/env python3
"""Run one playbook detached, and leave exit.json behind whatever happens to it. Standard library only; runnable by hand.

    runner.py RUN_DIR               run script.py of that folder here, to its end
    runner.py RUN_DIR --detach      the same in a session of its own; returns once it runs or has failed to
    runner.py RUN_DIR --status      {"run_id", "state": new | running | ended | lost, "pid", "exit"} as JSON
    runner.py RUN_DIR --restore     put back settings that the script changed; {"status"} as JSON
    runner.py RUN_DIR --cancel      ask it to stop, then make it; prints exit.json
    --term-after S, --kill-after S  how long a script that was asked to stop gets before SIGTERM and SIGKILL

RUN_DIR holds script.py, params.json and env.json (the script's environment: DDT_RUN_ID, DDT_BASE_URL, DDT_MAX_SECONDS
and the rest). Written here: events.jsonl and stderr.log (the script's own words), pid, and exit.json: {"code", "signal",
"reason", "ended", "seq_total"}, where a death by a signal has a signal and no code, and "reason" says what this program
did about it: cancelled, deadline, terminated, busy, or null. One run an engine: the lock is held while the script lives.
A script that changes settings leaves restore.json beforehand: the old settings come back however it ended.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any, Dict, List, Optional

BUSY = 75
CANCELLED = 130
DEADLINE = 124
TERM_AFTER_S = 3.0
KILL_AFTER_S = 10.0
POLL_S = 0.1
RETRY_S = 1.0
TAKEN_UP_S = 10.0  # a change that was asked for and that nobody has taken up by then never will be
RESTORE_S = 3800.0  # two starts of a large model
START_S = 10.0  # how long --detach waits for the first sign
# Isolated from the user's site packages and PYTHON* variables, yet with the script's own folder on the path: it holds
# nothing but what the console put there, kit.py among it. (-I would also take that folder away.)
PYTHON_FLAGS = ("-E", "-s", "-B", "-u")
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Job:
    """One run folder and what happens in it."""

    def __init__(self, folder: Path, term_after_s: float = TERM_AFTER_S, kill_after_s: float = KILL_AFTER_S) -> None:
        self.folder = folder.resolve()
        self.term_after_s = term_after_s
        self.kill_after_s = kill_after_s
        self.environment: Dict[str, str] = json.loads((self.folder / "env.json").read_text(encoding="utf-8"))
        self.run_id = self.environment["DDT_RUN_ID"]
        self.max_s = float(self.environment.get("DDT_MAX_SECONDS", "3600"))
        self.terminated = False
        self.restore_until = time.monotonic() + RESTORE_S

    def read(self, name: str) -> Optional[Dict[str, Any]]:
        """One of the JSON files of the folder, or None while it is not there."""
        try:
            found: Dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found

    # Running

    def run(self) -> int:
        """Run the script to its end; returns this program's own exit status."""
        os.umask(0o077)
        lock = self._take_lock()
        if lock is None:
            return BUSY
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            return self._run_locked()
        except Exception as error:
            self._write("exit.json", self._exit(None, None, f"the runner failed: {type(error).__name__}: {error}"))
            raise
        finally:
            (self.folder / "secrets.json").unlink(missing_ok=True)
            os.close(lock)

    def _run_locked(self) -> int:
        child = self._start()
        reason = self._watch(child)
        self._end_group(child.pid, signal.SIGKILL)  # whatever the script left behind in its session
        code = child.returncode
        name = signal.Signals(-code).name if code < 0 else None
        if reason is None and code == DEADLINE:
            reason = "deadline"
        elif reason is None and code == CANCELLED and (self.folder / "cancel").exists():
            reason = "cancelled"  # the script saw the wish before this program did
        self.restore()
        self._write("exit.json", self._exit(code if code >= 0 else None, name, reason))
        return code if code >= 0 else 128 - code

    def restore(self) -> str:
        """Put back the settings of before the script, by the transaction that changed them. What came of it: `nothing` was
        owed, somebody `changed` them since, or the transaction's own outcome. The promise is kept until it is fulfilled."""
        owed = self.read("restore.json")
        if owed is None:
            return "nothing"
        request, state = owed["request"], Path(owed["state"])
        while self._changing(state) and time.monotonic() < self.restore_until:  # the script's own change is on its way
            time.sleep(RETRY_S)
        current = hashlib.sha256(Path(request["settings"]).read_bytes()).hexdigest()
        if current == request["base_sha"]:
            status = "nothing"
        elif current not in owed["ours"]:
            status = "changed"
        else:
            status = self._restored({**request, "base_sha": current}, state)
        if status == "busy" and time.monotonic() < self.restore_until:  # somebody else's change came in between
            time.sleep(RETRY_S)
            return self.restore()
        if status in ("nothing", "changed", "confirmed"):
            (self.folder / "restore.json").unlink()
        return status

    def _changing(self, state: Path) -> bool:
        """Whether a change of the settings is under way, or one of the script's is about to be: what it leaves counts."""
        lock = os.open(state / "apply.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        asked = (state / "applies").glob(f"{self.run_id[:60]}-*.request.json")
        waiting = (one for one in asked if not one.with_name(one.name.replace(".request.json", ".json")).exists())
        return any(time.time() - one.stat().st_mtime < TAKEN_UP_S for one in waiting)

    def _restored(self, request: Dict[str, Any], state: Path) -> str:
        name = f"{self.run_id[:60]}-restore-{time.time_ns():x}"
        path = state / "applies" / f"{name}.request.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(request), encoding="utf-8")
        words = [sys.executable, str(self.folder / "apply.py"), "--state", str(state), "run", name]
        subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=RESTORE_S, start_new_session=True, check=False
        )
        report = json.loads((state / "applies" / f"{name}.json").read_text(encoding="utf-8"))
        return str(report["status"])

    def _take_lock(self) -> Optional[int]:
        """The engine's lock, as an open file; None after exit.json was written because somebody else holds it."""
        port = urllib.parse.urlsplit(self.environment.get("DDT_BASE_URL", "")).port or 0
        locks = self.folder.parent.parent / "locks"
        locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(locks / f"engine-{port}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode("utf-8", "replace").strip() or "another run"
            os.close(lock)
            self._write("exit.json", {**self._exit(BUSY, None, "busy"), "holder": holder})
            return None
        os.ftruncate(lock, 0)
        os.pwrite(lock, self.run_id.encode("utf-8"), 0)
        return lock

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "events.jsonl").open("ab") as events, (self.folder / "stderr.log").open("ab") as errors:
            child = subprocess.Popen(
                [sys.executable, *PYTHON_FLAGS, "script.py"],
                cwd=self.folder,
                env=self._child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.deadline = time.monotonic() + self.max_s
        own = {"pid": child.pid, "start": start_of(child.pid), "runner": os.getpid(), "run_id": self.run_id}
        self._write("pid", own)
        return child

    def _child_environment(self) -> Dict[str, str]:
        # Without the runtime folder a user's service manager cannot be reached, which restarting playbooks have to.
        names = ("PATH", "HOME", "USER", "TZ", "XDG_RUNTIME_DIR")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return {
            **kept,
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "no_proxy": "127.0.0.1,localhost",
            **self.environment,
            "DDT_RUN_DIR": str(self.folder),
            "DDT_DEADLINE": str(time.time() + self.max_s),
        }

    def _watch(self, child: subprocess.Popen[bytes]) -> Optional[str]:
        """Wait for the end; what was asked for in between, first thing first: cancelled, deadline, terminated."""
        asked: Optional[str] = None
        asked_s = 0.0
        sent: Optional[signal.Signals] = None
        while True:
            try:
                child.wait(POLL_S)
                return asked
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if asked is None:
                asked, asked_s = self._asked(now), now
            if asked is None:
                continue
            waited = now - asked_s
            wanted = signal.SIGKILL if waited > self.kill_after_s else signal.SIGTERM
            if wanted is not sent and (waited > self.term_after_s or asked == "terminated"):
                sent = wanted
                self._end_group(child.pid, wanted)

    def _asked(self, now: float) -> Optional[str]:
        if self.terminated:
            return "terminated"
        if (self.folder / "cancel").exists():
            return "cancelled"
        return "deadline" if now > self.deadline else None

    def _on_signal(self, *_: Any) -> None:
        self.terminated = True

    def _end_group(self, pid: int, number: signal.Signals) -> None:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return  # nobody is left in it

    def _exit(self, code: Optional[int], name: Optional[str], reason: Optional[str]) -> Dict[str, Any]:
        return {
            "run_id": self.run_id,
            "code": code,
            "signal": name,
            "reason": reason,
            "ended": time.time(),
            "seq_total": last_seq(self.folder / "events.jsonl") + 1,
        }

    def _write(self, name: str, data: Dict[str, Any]) -> None:
        """Atomically: a reader sees nothing or all of it."""
        part = self.folder / f".{name}.part"
        part.touch(mode=0o600)
        with part.open("w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.folder / name)

    # From outside

    def detach(self) -> int:
        """Run in a session of its own, with no tie to the login that started it; returns when it runs or has failed."""
        if os.fork() == 0:
            os.setsid()
            if os.fork() > 0:
                os._exit(0)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os._exit(self.run())
        os.wait()
        limit = time.monotonic() + START_S
        while time.monotonic() < limit:
            if self.read("pid") or self.read("exit.json"):
                print(json.dumps(self.status()))
                return 0
            time.sleep(POLL_S / 2)
        print(f"runner.py: no sign of life from {self.folder} within {START_S:.0f} s", file=sys.stderr)
        return 1

    def status(self) -> Dict[str, Any]:
        """`{"run_id", "state", "pid", "exit"}`; lost: it began, did not end, and no process of it is left."""
        ended, own = self.read("exit.json"), self.read("pid")
        # Behind a script that has ended its runner may still put settings back.
        alive = own is not None and (self.is_own(own) or _is_runner(own["runner"]))
        state = "ended" if ended else "running" if alive else "lost" if own else "new"
        if state == "lost":
            ended = self.read("exit.json")  # it may have been written between the two looks
            state = "ended" if ended else state
        return {"run_id": self.run_id, "state": state, "pid": own["pid"] if own else None, "exit": ended}

    def is_own(self, own: Dict[str, Any]) -> bool:
        """Whether the process recorded in `pid` lives and is really this run's: same start time, same run id."""
        try:
            environment = Path(f"/proc/{own['pid']}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return start_of(own["pid"]) == own["start"] and f"DDT_RUN_ID={self.run_id}".encode() in environment

    def cancel(self) -> int:
        """Ask, wait, and make sure; prints exit.json. The runner does the killing; if it is gone, this does."""
        (self.folder / "cancel").touch(mode=0o600)
        owed = RESTORE_S if self.read("restore.json") else 0.0
        limit = time.monotonic() + self.kill_after_s + START_S + owed
        while time.monotonic() < limit:
            if self.read("exit.json"):
                break
            own = self.read("pid")
            if own and not _is_alive(own["runner"]):
                if self.is_own(own):
                    self._end_group(own["pid"], signal.SIGKILL)
                if not self.read("exit.json"):
                    self._write("exit.json", self._exit(None, "SIGKILL", "cancelled"))
                break
            time.sleep(POLL_S)
        print(json.dumps(self.read("exit.json")))
        return 0


def _die_with_parent() -> None:
    """In the child, before it starts: no script outlives the runner that would have to write its exit.json."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_of(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot: with the pid, its identity."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _is_alive(pid: int) -> bool:
    return start_of(pid) is not None


def _is_runner(pid: int) -> bool:
    try:
        return b"runner.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def last_seq(path: Path) -> int:
    """The number of the last whole event in a file; -1 where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 128 * 1024, 0))
            lines: List[bytes] = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return -1
    for line in reversed(lines):
        try:
            return int(json.loads(line)["seq"])
        except (ValueError, KeyError, TypeError):
            continue  # a line of the script's own, no event
    return -1


def main(words: Optional[List[str]] = None) -> int:
    """The command line; see the module's first lines."""
    parser = argparse.ArgumentParser(prog="runner.py", description="Run one playbook detached.")
    parser.add_argument("folder", type=Path, metavar="RUN_DIR")
    verbs = parser.add_mutually_exclusive_group()
    for verb in ("detach", "status", "restore", "cancel"):
        verbs.add_argument(f"--{verb}", action="store_true")
    parser.add_argument("--term-after", type=float, default=TERM_AFTER_S, metavar="S")
    parser.add_argument("--kill-after", type=float, default=KILL_AFTER_S, metavar="S")
    asked = parser.parse_args(words)
    try:
        job = Job(asked.folder, asked.term_after, asked.kill_after)
    except (OSError, ValueError, KeyError) as error:
        print(f"runner.py: {asked.folder}: no run folder: {error}", file=sys.stderr)
        return 2
    if asked.status:
        print(json.dumps(job.status()))
        return 0
    if asked.restore:
        print(json.dumps({"status": job.restore()}))
        return 0
    if asked.cancel:
        return job.cancel()
    if (job.folder / "pid").exists() or (job.folder / "exit.json").exists():
        print(f"runner.py: {job.folder}: this run has been started before", file=sys.stderr)
        return 2
    return job.detach() if asked.detach else job.run()


if __name__ == "__main__":
    sys.exit(main())
