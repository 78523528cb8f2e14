"""What the operator decides about a change: requests in flight, processes in the way, and the word at the end."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from installation import Installation, wait_until

from console.agent import apply, survey

WAITS = {"stop_s": 10, "start_s": 10, "ready_s": 5, "soak_s": 0.1, "drain_s": 5}


def told(at: Installation, event: str) -> dict[str, object]:
    """The last line of the audit about `event`."""
    lines = [json.loads(line) for line in (at.state / "audit.jsonl").read_text().splitlines()]
    return next(line for line in reversed(lines) if line["event"] == event)


# The engine's own opinion


def test_what_the_engine_finds_wrong_in_the_file_is_refused_while_the_old_run_goes_on(at: Installation) -> None:
    before = at.service()["InvocationID"]
    base = at.settings.read_text()
    says = "import sys; sys.exit(f'{sys.argv[1]} [kv]: page_size = 64 is too much')"
    at.request("r1", at.text(page_size=64))
    at.order("r1", "check", [sys.executable, "-c", says])
    assert at.run("r1") == 2
    assert at.report("r1")["reason"] == f"{at.settings} [kv]: page_size = 64 is too much"
    assert (at.service()["InvocationID"], at.settings.read_text()) == (before, base)
    assert at.phases("r1") == ["staged", "checking", "rejected"]
    assert at.audit()[-2:] == [("armed", 1), ("rejected", 1)]


def test_a_file_the_engine_takes_goes_on_to_the_gate(at: Installation) -> None:
    at.request("r1", at.text(page_size=64))
    at.order("r1", "check", [sys.executable, "-c", "import sys; assert 'page_size = 64' in open(sys.argv[1]).read()"])
    assert at.run("r1") == 0


# Requests in flight


def test_waiting_lets_requests_end_and_is_recorded(at: Installation) -> None:
    running = at.folder / "running"
    running.write_text("2")
    at.request("r1", at.text(page_size=64), on_in_flight="wait", in_flight=2, limits=WAITS)
    before = at.service()["InvocationID"]
    with subprocess.Popen(at.argv("r1")) as worker:
        wait_until(lambda: (at.state / "apply.json").exists() and "draining" in at.phases("r1"))
        assert at.service()["InvocationID"] == before
        running.write_text("0")
        assert worker.wait(timeout=60) == 0
    assert [p["text"] for p in at.report("r1")["phases"] if p["name"] == "draining"] == ["2 requests run"]
    assert (told(at, "armed")["in_flight"], told(at, "armed")["on_in_flight"]) == (2, "wait")


def test_requests_that_do_not_end_leave_everything_as_it_was(at: Installation) -> None:
    (at.folder / "running").write_text("1")
    before = at.service()["InvocationID"]
    at.request("r1", at.text(page_size=64), on_in_flight="wait", limits={**WAITS, "drain_s": 0.3})
    assert at.run("r1") == 2
    assert at.report("r1")["reason"] == "1 request runs still after 0.3 s; nothing was changed"
    assert at.service()["InvocationID"] == before


def test_aborting_does_not_wait_and_is_recorded(at: Installation) -> None:
    (at.folder / "running").write_text("3")
    at.request("r1", at.text(page_size=64), on_in_flight="abort", in_flight=3, limits=WAITS)
    assert at.run("r1") == 0
    assert "draining" not in at.phases("r1")
    assert (told(at, "armed")["in_flight"], told(at, "armed")["on_in_flight"]) == (3, "abort")


# Processes in the way


@contextmanager
def stray(at: Installation) -> Iterator[subprocess.Popen[bytes]]:
    """An engine that somebody else started on the same settings file."""
    argv = [sys.executable, "-c", "import time; time.sleep(600)", "--config", str(at.settings)]
    with subprocess.Popen(argv) as process:
        try:
            wait_until(lambda: str(at.settings) in apply.command_of(process.pid))
            yield process
        finally:
            process.kill()


def test_a_stray_engine_is_named_with_its_memory_and_stops_the_change(at: Installation) -> None:
    with stray(at) as process:
        before = at.service()["InvocationID"]
        at.request("r1", at.text(page_size=64))
        assert at.run("r1") == 2
        assert process.poll() is None
    reason = at.report("r1")["reason"]
    assert reason.startswith(f"process {process.pid} ({sys.executable} -c ") and " GB of memory" in reason
    assert "is not part of ddtree-engine.service; it has to be ended first" in reason
    assert at.service()["InvocationID"] == before


def test_a_process_on_the_engines_port_is_named_with_the_port(at: Installation) -> None:
    subprocess.run(at.verb("stop", "--wait", "10"), check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", at.port)):
        at.request("r1", at.text(page_size=64))
        assert at.run("r1") == 2
    reason = at.report("r1")["reason"]
    assert f"process {os.getpid()} (" in reason and f") holds port {at.port} and " in reason


def test_a_stray_engine_is_ended_on_consent_to_that_very_process(at: Installation) -> None:
    with stray(at) as process:
        at.request("r1", at.text(page_size=64))
        asked = subprocess.run([*at.argv("r1")[:-2], "strays", "r1"], capture_output=True, text=True, check=True)
        (found,) = json.loads(asked.stdout)
        assert (found["pid"], found["memory_bytes"] > 1_000_000) == (process.pid, True)
        at.request(
            "r2", at.text(page_size=64), end=[{"pid": process.pid, "started": "1"}]
        )  # another one of that number
        assert at.run("r2") == 2
        assert process.poll() is None
        at.request("r3", at.text(page_size=64), end=[found])
        assert at.run("r3") == 0
        assert process.wait(timeout=10) == -15
    assert told(at, "ended_stray")["pid"] == process.pid


def test_whoever_holds_the_new_port_is_named(at: Installation) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        at.request("r1", at.text(port=held.getsockname()[1]))
        assert at.run("r1") == 2
    assert at.report("r1")["reason"].startswith(f"process {os.getpid()} (")


def test_the_members_of_a_service_are_all_it_started(at: Installation) -> None:
    main_pid = int(at.service()["MainPID"])
    assert main_pid in apply.members(main_pid, "ddtree-engine.service")
    assert os.getpid() not in apply.members(main_pid, "ddtree-engine.service")
    with subprocess.Popen(["sh", "-c", "sleep 100 & wait"]) as parent:
        wait_until(lambda: len(apply.members(parent.pid, "x")) == 2)
        (child,) = set(apply.members(parent.pid, "x")) - {parent.pid}
        apply.end_process(child, apply.started_at(child) or "")
        assert apply.started_at(child) is None


@pytest.mark.parametrize("program", [apply, survey], ids=["apply", "survey"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["python", "--api-key", "s3cret", "--port", "1"], "python --api-key *** --port 1"),
        (["x", "--api-key=s3cret", "HF_TOKEN=s3cret"], "x --api-key=*** HF_TOKEN=***"),
        (["x", "--tokenizer-path", "/m", "--max-total-tokens", "5"], "x --tokenizer-path /m --max-total-tokens 5"),
        (["--password"], "--password"),
    ],
)
def test_what_may_be_a_secret_is_not_told_with_a_command(program: Any, words: list[str], told: str) -> None:
    assert program.shown(words) == told


def test_gpu_memory_is_told_by_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi is a stand-in: there is no GPU here."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{os.getpid()}, 1024' '{os.getpid()}, 512' '77, [N/A]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    held = apply.gpu_bytes()
    assert held == {os.getpid(): 1536 * 2**20}
    assert "and 1.6 GB of GPU memory" in apply.in_words(apply.process_report(os.getpid(), held))


# The word at the end


def waiting(at: Installation, seconds: float) -> subprocess.Popen[bytes]:
    at.request("r1", at.text(page_size=64), confirm_s=seconds, limits=WAITS)
    worker = subprocess.Popen(at.argv("r1"))
    wait_until(lambda: (at.state / "apply.json").exists() and "waiting" in at.phases("r1"))
    return worker


def word(at: Installation, what: str) -> tuple[int, str]:
    done = subprocess.run([*at.argv("r1")[:-2], what, "r1"], capture_output=True, text=True)
    return done.returncode, done.stdout.strip()


def test_a_change_that_is_confirmed_in_time_holds(at: Installation) -> None:
    with waiting(at, 60) as worker:
        assert word(at, "confirm") == (0, "confirm")
        assert worker.wait(timeout=10) == 0
    assert at.report("r1")["phases"][-2]["text"] == "60 s to confirm"
    assert word(at, "revert") == (3, "confirm")  # too late


def test_a_change_that_nobody_confirms_is_taken_back_and_a_late_yes_is_told_so(at: Installation) -> None:
    base = at.settings.read_text()
    with waiting(at, 0.2) as worker:
        assert worker.wait(timeout=20) == 20
    assert at.report("r1")["reason"] == "nobody confirmed it within 0.2 s"
    assert word(at, "confirm") == (3, "expired")
    assert at.settings.read_text() == base


def test_a_change_can_be_taken_back_before_the_deadline(at: Installation) -> None:
    with waiting(at, 60) as worker:
        assert word(at, "revert") == (0, "revert")
        assert worker.wait(timeout=20) == 20
    assert at.report("r1")["reason"] == "the operator took it back"


def test_a_service_that_fails_while_the_word_is_awaited_is_not_waited_for(at: Installation) -> None:
    at.request("r1", at.text(tree_budget=fake_engine.CRASHES_AFTERWARDS), confirm_s=60, limits={**WAITS, "soak_s": 0})
    assert at.run("r1") == 20
    assert "it did not stay up" in at.report("r1")["reason"]
    assert word(at, "confirm") == (3, "failed")


def test_a_confirmed_change_stays_confirmed_when_its_program_is_killed_before_it_could_say_so(at: Installation) -> None:
    with waiting(at, 60) as worker:
        child = int(Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()[0])
        for pid in (worker.pid, child):
            os.kill(pid, 9)
        worker.wait(timeout=10)
    assert word(at, "confirm") == (0, "confirm")
    assert at.run("r1") == 0
    assert at.report("r1")["status"] == "confirmed"
    assert "page_size = 64" in at.settings.read_text()


def undo(at: Installation) -> str:
    argv = [sys.executable, at.argv("r1")[1], "--state", str(at.state), "undo"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_a_change_cut_short_by_a_power_cut_is_undone_before_the_next_start(at: Installation) -> None:
    base = at.settings.read_text()
    assert undo(at) == "nothing to undo"
    with waiting(at, 60) as worker:
        assert undo(at) == "nothing to undo"  # somebody works on it
        child = int(Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()[0])
        for pid in (worker.pid, child):
            os.kill(pid, 9)
        worker.wait(timeout=10)
    assert "page_size = 64" in at.settings.read_text()
    assert undo(at) == "rolled_back"
    assert at.settings.read_text() == base
    assert (at.report("r1")["status"], word(at, "confirm")) == ("rolled_back", (3, "interrupted"))
    assert at.audit()[-1] == ("rolled_back", 1)
    assert undo(at) == "nothing to undo"


def test_the_supervisor_undoes_it_before_its_next_start_with_nobody_looking(at: Installation) -> None:
    base, service_file = at.settings.read_text(), at.supervised / "service.json"
    spec = json.loads(service_file.read_text())
    before = [sys.executable, "-S", at.argv("r1")[1], "--state", str(at.state), "undo"]
    service_file.write_text(json.dumps({**spec, "before_start": before}))
    with waiting(at, 60) as worker:  # its own start has undone nothing: it holds the lock
        assert at.settings.read_text() != base
        child = int(Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()[0])
        for pid in (worker.pid, child):
            os.kill(pid, 9)
        worker.wait(timeout=10)
    subprocess.run(at.verb("stop", "--wait", "15"), check=True, capture_output=True)
    at.start()
    assert at.settings.read_text() == base
    assert (at.report("r1")["status"], at.audit()[-1]) == ("rolled_back", ("rolled_back", 1))
    logged = subprocess.run(at.verb("logs"), capture_output=True, text=True, check=True).stdout
    said = [json.loads(line)["MESSAGE"] for line in logged.splitlines()]
    assert [line for line in said if line.startswith("Before the start")] == [
        "Before the start: nothing to undo.",
        "Before the start: rolled_back.",
    ]


def test_what_runs_before_the_start_stops_nothing(at: Installation) -> None:
    service_file = at.supervised / "service.json"
    spec = json.loads(service_file.read_text())
    service_file.write_text(json.dumps({**spec, "before_start": [str(at.folder / "none")]}))
    subprocess.run(at.verb("restart", "--wait", "15"), check=True, capture_output=True)
    wait_until(lambda: at.service()["ActiveState"] == "active")
    logged = subprocess.run(at.verb("logs"), capture_output=True, text=True, check=True).stdout
    assert "Before the start: [Errno 2] No such file or directory" in logged


def test_in_200_random_timings_both_sides_agree_on_one_word(tmp_path: Path) -> None:
    """The console's yes against the deadline, a hair before or after it: never both, never neither."""
    draw = random.Random(20261130)
    outcomes = set()

    def late(by_s: float, start: threading.Barrier, request_id: str, what: str) -> str:
        start.wait()
        end = time.perf_counter() + by_s
        while time.perf_counter() < end:
            pass
        return apply.decide(tmp_path, request_id, what)

    with ThreadPoolExecutor(2) as pool:
        for number in range(200):
            start = threading.Barrier(2)
            mine = pool.submit(late, draw.uniform(0, 0.002), start, f"r{number}", "confirm")
            box = pool.submit(late, draw.uniform(0, 0.002), start, f"r{number}", "expired")
            assert mine.result() == box.result() == (tmp_path / f"r{number}.word").read_text()
            outcomes.add(mine.result())
    assert outcomes == {"confirm", "expired"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"r{number}.word" for number in range(200))


def test_settings_that_no_install_laid_down_become_generation_0(at: Installation) -> None:
    (at.state / "audit.jsonl").unlink()
    (at.generations / "0000.toml").unlink()
    base = at.settings.read_text()
    assert at.apply("r1", tree_budget=fake_engine.REFUSES) == 20
    assert [(g["number"], g["outcome"], g["who"]) for g in apply.history(at.state)] == [
        (0, "installed", "found here"),
        (1, "rolled_back", "ana@laptop"),
    ]
    assert (at.generations / "0000.toml").read_text() == base == at.settings.read_text()


@pytest.mark.parametrize(
    ("shown", "wanted", "alike"),
    [
        (16, 16, True), ("16", 16, True), (16, 17, False), (0.9, "0.90", True), (True, 1, False), ("true", True, True),
        ("DDTREE", "ddtree", True), ("/Models/A", "/models/a", False), (None, "x", False), (None, 0, False),
    ],
)  # fmt: skip
def test_a_setting_may_be_shown_in_another_type_or_spelling(shown: object, wanted: object, alike: bool) -> None:
    assert apply.same(shown, wanted) is alike
