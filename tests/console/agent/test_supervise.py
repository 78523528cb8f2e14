"""agent/supervise.py with real children: states, readiness, limits, the journal, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from console.agent import supervise

ROOT = Path(__file__).parents[3]
SUPERVISE = ROOT / "console" / "agent" / "supervise.py"
CHILD = Path(__file__).with_name("child.py")
READY = "notify:READY=1\nSTATUS=serving"


def wait_until(true: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Service:
    """A service folder under test and the command line on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def does(self, *acts: str, **spec: Any) -> None:
        quick = {"restart_delay_s": 0.05, "stop_timeout_s": 5.0}
        argv = [sys.executable, "-S", str(CHILD), *acts]
        self.folder.joinpath("service.json").write_text(
            json.dumps({"name": "t.service", "argv": argv, **quick, **spec})
        )

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(SUPERVISE), "--folder", str(self.folder), *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30)

    def status(self) -> dict[str, str]:
        return supervise.status(self.folder)

    def journal(self, *args: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("logs", *args).stdout.splitlines()]

    def said(self) -> list[str]:
        return [record["MESSAGE"] for record in self.journal() if record["SYSLOG_IDENTIFIER"] == "t.service"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made("stop", "--wait", "20")
    assert (tmp_path / "supervisor.err").read_text() == "" if (tmp_path / "supervisor.err").exists() else True


def test_it_can_be_run_by_hand() -> None:
    shown = subprocess.run([sys.executable, str(SUPERVISE), "--help"], capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0
    assert "NOTIFY_SOCKET" in shown.stdout


def test_a_service_runs_when_it_says_ready_and_not_before(service: Service) -> None:
    service.does("notify:STATUS=loading weights", "say:loading", "wait")
    service("start")
    wait_until(lambda: service.status()["StatusText"] == "loading weights")
    assert service.status()["ActiveState"] == "activating"
    service.does(READY)
    assert service("restart", "--wait", "10").stdout == "active running success\n"
    status = service.status()
    assert (status["StatusText"], status["SubState"], status["LoadState"]) == ("serving", "running", "loaded")
    assert int(status["MemoryCurrent"]) > 1_000_000


def test_every_run_has_its_own_invocation_which_the_service_is_told(service: Service) -> None:
    service.does("environment:INVOCATION_ID", READY)
    service("start", "--wait", "10")
    first = service.status()["InvocationID"]
    service("restart", "--wait", "10")
    wait_until(lambda: service.status()["InvocationID"] not in ("", first))
    second = service.status()["InvocationID"]
    wait_until(lambda: len(service.said()) == 2)
    assert service.said() == [f"INVOCATION_ID={first}", f"INVOCATION_ID={second}"]


def test_stopping_ends_everything_the_service_started(service: Service) -> None:
    service.does("leave-behind:6543", READY)
    service("start", "--wait", "10")
    main = int(service.status()["MainPID"])
    kids = [int(pid) for pid in Path(f"/proc/{main}/task/{main}/children").read_text().split()]
    assert len(kids) == 1
    assert service("stop", "--wait", "10").stdout == "inactive dead success\n"
    assert not any(alive(pid) for pid in (main, *kids))


def test_a_service_that_ignores_sigterm_is_killed_and_that_is_said(service: Service) -> None:
    service.does("ignore-term", READY, stop_timeout_s=0.2)
    service("start", "--wait", "10")
    assert service("stop", "--wait", "10").stdout == "failed failed timeout\n"
    assert any("killing it" in record["MESSAGE"] for record in service.journal())


def test_a_failing_service_is_started_again_up_to_the_limit(service: Service) -> None:
    service.does("say:try", "exit:1", restart_limit=3)
    service("start")
    wait_until(lambda: service.status()["ActiveState"] == "failed")
    status = service.status()
    assert (status["Result"], status["ExecMainStatus"], status["NRestarts"]) == ("start-limit-hit", "1", "2")
    assert service.said() == ["try"] * 3
    service.does(READY)
    assert service("start", "--wait", "10").stdout == "active running success\n"  # a start by hand begins afresh


def test_an_exit_status_of_bad_input_is_not_tried_again(service: Service) -> None:
    service.does("complain:engine.toml: no model is named", "exit:2")
    service("start")
    wait_until(lambda: service.status()["ActiveState"] == "failed")
    assert (service.status()["Result"], service.status()["NRestarts"]) == ("exit-code", "0")
    assert service.said() == ["engine.toml: no model is named"]


def test_a_crash_after_ready_is_mended_by_a_restart(service: Service, tmp_path: Path) -> None:
    service.does(READY, f"once:{tmp_path}/mark", "exit:1")
    service("start")
    wait_until(lambda: service.status()["NRestarts"] == "1" and service.status()["ActiveState"] == "active")


def test_a_start_that_takes_too_long_fails_unless_it_asks_for_more_time(service: Service) -> None:
    service.does("wait", start_timeout_s=0.3, restart_limit=1)
    service("start")
    wait_until(lambda: service.status()["ActiveState"] == "failed")
    assert any(record["MESSAGE"] == "Ending it: timeout." for record in service.journal())
    service.does("notify:EXTEND_TIMEOUT_USEC=9000000", "wait", start_timeout_s=0.3)
    service("start")
    wait_until(lambda: service.status()["MainPID"] != "0")
    started = time.monotonic()
    wait_until(lambda: time.monotonic() > started + 0.6)
    assert service.status()["ActiveState"] == "activating"


def test_a_service_whose_watchdog_stays_silent_is_ended(service: Service) -> None:
    service.does(READY, "wait", watchdog_s=0.3, restart_limit=1)
    service("start")
    wait_until(lambda: service.status()["ActiveState"] == "failed")
    assert any(record["MESSAGE"] == "Ending it: watchdog." for record in service.journal())
    assert int(service.status()["ExecMainStatus"]) == signal.SIGABRT


def test_a_program_that_is_not_there_fails_as_under_systemd(service: Service, tmp_path: Path) -> None:
    service.does(argv=[str(tmp_path / "missing")], restart_limit=1)
    service("start")
    wait_until(lambda: service.status()["ActiveState"] == "failed")
    assert service.status()["ExecMainStatus"] == "203"


def test_lines_keep_priority_and_order_and_odd_bytes_survive(service: Service) -> None:
    service.does("say:<3>error what=x", "say:  indented  ", "raw:ff0a", "raw:0a", "raw:1b5b316d0a", "say:last", READY)
    service("start", "--wait", "10")
    wait_until(lambda: "last" in service.said())
    records = [record for record in service.journal() if record["SYSLOG_IDENTIFIER"] == "t.service"]
    said = [(record["MESSAGE"], record["PRIORITY"]) for record in records]
    assert said == [("error what=x", "3"), ("  indented", "6"), ([255], "6"), ("\x1b[1m", "6"), ("last", "6")]
    assert {record["_SYSTEMD_INVOCATION_ID"] for record in records} == {service.status()["InvocationID"]}
    assert {record["_PID"] for record in records} == {service.status()["MainPID"]}


def test_a_line_longer_than_48_kib_comes_in_pieces_with_nothing_lost(service: Service) -> None:
    service.does("raw:" + "61" * 60_000, "raw:0a", READY)
    service("start", "--wait", "10")
    wait_until(lambda: len(service.said()) == 2)
    assert [len(text) for text in service.said()] == [49152, 60_000 - 49152]
    breaks = [record.get("_LINE_BREAK") for record in service.journal() if record["SYSLOG_IDENTIFIER"] == "t.service"]
    assert breaks == ["line-max", None]


def test_a_long_line_keeps_the_priority_at_its_head_and_what_looks_like_one_inside(service: Service) -> None:
    pieces = ["<3>" + "a" * (49152 - 3), "<7>" + "b" * 49149, "c"]
    service.does(*("raw:" + piece.encode().hex() for piece in pieces), "raw:0a", "say:next", READY)
    service("start", "--wait", "10")
    wait_until(lambda: "next" in service.said())
    own = [record for record in service.journal() if record["SYSLOG_IDENTIFIER"] == "t.service"]
    assert "".join(record["MESSAGE"] for record in own[:3]) == "".join(pieces)[3:]
    assert [record["PRIORITY"] for record in own] == ["3", "3", "3", "6"]


def test_following_over_rotations_gives_every_line_once(service: Service) -> None:
    service.does(READY, "count:3000", journal_file_bytes=200_000, journal_files=50)
    argv = [sys.executable, str(SUPERVISE), "--folder", str(service.folder), "logs", "--follow"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as follower:
        service("start", "--wait", "10")
        numbers: list[int] = []
        assert follower.stdout is not None
        for line in follower.stdout:
            message = json.loads(line)["MESSAGE"]
            if message.startswith("n="):
                numbers.append(int(message[2:]))
            if len(numbers) == 3000:
                break
        follower.kill()
    assert numbers == list(range(3000))
    assert len(list((service.folder / "journal").glob("*.jsonl"))) > 2


def test_reading_on_from_a_cursor_neither_repeats_nor_skips(service: Service) -> None:
    service.does(READY, "count:20")
    service("start", "--wait", "10")
    wait_until(lambda: "n=19" in service.said())
    records = service.journal()
    assert service.journal("--lines", "3") == records[-3:]
    for at in (0, 7, len(records) - 1):
        assert service.journal("--after-cursor", records[at]["__CURSOR"]) == records[at + 1 :]
        assert service.journal("--cursor", records[at]["__CURSOR"]) == records[at:]


def test_old_records_go_and_a_lost_cursor_gives_the_oldest_kept(service: Service) -> None:
    service.does(READY, "count:2000", journal_file_bytes=50_000, journal_files=2)
    service("start", "--wait", "10")
    wait_until(lambda: "n=1999" in service.said())
    kept = service.journal()
    assert len(kept) < 500
    first = kept[0]["__CURSOR"].split(";")[0]
    assert service.journal("--cursor", f"{first};i=3")[0] == kept[0]


def test_a_follower_of_a_silent_service_ends_with_its_reader(service: Service) -> None:
    service.does(READY)
    service("start", "--wait", "10")
    argv = [sys.executable, str(SUPERVISE), "--folder", str(service.folder), "logs", "--follow", "--lines", "0"]
    follower = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert follower.stdout is not None
    follower.stdout.close()
    assert follower.wait(timeout=10) == 0


def test_a_torn_last_line_is_cut_off_and_numbering_goes_on(service: Service) -> None:
    service.does("say:one", READY)
    service("start", "--wait", "10")
    wait_until(lambda: service.said() == ["one"])
    service("stop", "--wait", "10")
    before = service.journal()
    newest = max((service.folder / "journal").glob("*.jsonl"))
    with newest.open("ab") as file:
        file.write(b'{"__CURSOR":"s=')
    service("start", "--wait", "10")
    wait_until(lambda: service.said() == ["one", "one"])
    after = service.journal()
    assert after[: len(before)] == before
    assert [int(r["__CURSOR"].split("i=")[1], 16) for r in after] == list(range(1, len(after) + 1))


def test_a_supervisor_that_is_killed_takes_the_service_along_and_status_says_so(service: Service) -> None:
    service.does(READY)
    service("start", "--wait", "10")
    main = int(service.status()["MainPID"])
    supervisor = int(Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not alive(main))
    wait_until(lambda: service.status()["Result"] == "supervisor-died")
    assert service("start", "--wait", "10").stdout == "active running success\n"


def test_a_service_bound_to_a_process_ends_with_it(service: Service) -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        service.does(READY, bound_to=owner.pid)
        service("start", "--wait", "10")
        main = int(service.status()["MainPID"])
        owner.kill()
    wait_until(lambda: service.status()["ActiveState"] == "inactive")
    assert not alive(main)


def test_a_second_start_is_harmless_and_a_second_supervisor_is_refused(service: Service) -> None:
    service.does(READY)
    service("start", "--wait", "10")
    before = service.status()["InvocationID"]
    service("start", "--wait", "10")
    assert service.status()["InvocationID"] == before
    assert service("run").returncode == 75


def test_a_folder_without_a_service_says_not_found(service: Service) -> None:
    assert json.loads(service("status", "--json").stdout)["LoadState"] == "not-found"
    assert "LoadState=not-found" in service("status").stdout.splitlines()
    assert service("start").returncode == 5
