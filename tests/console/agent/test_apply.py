"""agent/apply.py over the real supervisor: the transaction's outcomes, with an engine whose faults are to order."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_engine
import pytest

from console.agent import apply, supervise

AGENTS = Path(apply.__file__).parent
SETTINGS = """\
[kv]
page_size = 16
[speculation]
tree_budget = 8
[server]
host = "127.0.0.1"
port = {port}
"""


def wait_until(true: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


class Installation:
    """Settings, supervisor and state folder as an install lays them down, with the fake engine serving."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.state, self.supervised = folder, folder / "state", folder / "supervised"
        self.settings, self.generations = folder / "engine.toml", folder / "generations"
        for path in (self.state / "applies", self.generations, self.supervised):
            path.mkdir(parents=True)
        self.settings.write_text(SETTINGS.format(port=self.port))
        (self.generations / "0000.toml").write_text(self.settings.read_text())
        line = {
            "event": "installed",
            "generation": 0,
            "who": "me",
            "when": "t0",
            "file": str(self.generations / "0000.toml"),
        }
        (self.state / "audit.jsonl").write_text(json.dumps(line) + "\n")
        argv = [sys.executable, "-S", fake_engine.__file__, str(self.settings)]
        spec = {"name": "ddtree-engine.service", "identifier": "ddtree-engine", "argv": argv, "restart_delay_s": 0.2}
        (self.supervised / "service.json").write_text(json.dumps(spec))

    def verb(self, *words: str) -> list[str]:
        return [sys.executable, str(AGENTS / "supervise.py"), "--folder", str(self.supervised), *words]

    def start(self) -> None:
        subprocess.run(self.verb("start", "--wait", "15"), check=True, capture_output=True)

    def service(self) -> dict[str, str]:
        return supervise.status(self.supervised)

    def text(self, **changes: int) -> str:
        """The settings file with other numbers in it."""
        lines = [line.partition(" = ") for line in self.settings.read_text().splitlines()]
        return "".join(f"{name}{equals}{changes.get(name, value)}\n" for name, equals, value in lines)

    def request(self, request_id: str, text: str, **more: Any) -> None:
        base = self.settings.read_text()
        asked = {
            "who": "ana@laptop",
            "in_flight": 0,
            "settings": str(self.settings),
            "generations": str(self.generations),
            "base_sha": apply.sha256(base),
            "text": text,
            "commands": {
                **{verb: self.verb(verb) for verb in ("start", "stop", "reset-failed")},
                "state": self.verb("status"),
                "journal": self.verb("logs", "--lines", "200"),
            },
            "identifier": "ddtree-engine",
            "new": self.endpoint(text),
            "old": self.endpoint(base),
            "limits": {"stop_s": 10, "start_s": 10, "ready_s": 5, "soak_s": 0.6},
        }
        (self.state / "applies" / f"{request_id}.request.json").write_text(json.dumps({**asked, **more}))

    def endpoint(self, text: str) -> dict[str, Any]:
        expect = {
            name: int(value)
            for name, _, value in (line.partition(" = ") for line in text.splitlines())
            if value.isdigit()
        }
        return {"host": "127.0.0.1", "port": expect["port"], "api_key_file": "", "expect": expect, "canary_tokens": 8}

    def argv(self, request_id: str, *more: str) -> list[str]:
        return [sys.executable, str(AGENTS / "apply.py"), "--state", str(self.state), "run", request_id, *more]

    def run(self, request_id: str) -> int:
        return subprocess.run(self.argv(request_id), timeout=60).returncode

    def apply(self, request_id: str, **changes: int) -> int:
        self.request(request_id, self.text(**changes))
        return self.run(request_id)

    def report(self, request_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "applies" / f"{request_id}.json").read_text())
        return found

    def phases(self, request_id: str) -> list[str]:
        names = [phase["name"] for phase in self.report(request_id)["phases"]]
        return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]

    def audit(self) -> list[tuple[str, Any]]:
        records = [json.loads(line) for line in (self.state / "audit.jsonl").read_text().splitlines()]
        return [(record["event"], record["generation"]) for record in records]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    made.start()
    yield made
    subprocess.run(made.verb("stop", "--wait", "20"), capture_output=True)


def test_a_change_that_holds_is_confirmed_and_numbered(at: Installation) -> None:
    before = at.service()["InvocationID"]
    assert at.apply("r1", page_size=64) == 0
    assert "page_size = 64" in at.settings.read_text()
    assert (at.generations / "0001.toml").read_text() == at.settings.read_text()
    assert at.service()["InvocationID"] != before
    report = at.report("r1")
    assert (report["status"], report["generation"], report["settings"]["page_size"]) == ("confirmed", 1, 64)
    assert at.phases("r1") == ["staged", "stopping", "loading", "ready", "probe", "soak", "confirmed"]
    assert at.audit() == [("installed", 0), ("armed", 1), ("confirmed", 1)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (fake_engine.REFUSES, "/models/x: the tree does not fit; use a smaller one"),
        (fake_engine.GIVES_TOO_FEW, "a completion of 8 tokens gave 5"),
        (fake_engine.CRASHES_AFTERWARDS, "it did not stay up"),
        (fake_engine.IGNORES_PAGE_SIZE, "page_size is 16, not 32 as asked"),
        (fake_engine.TALKS_NONSENSE, "the engine's answer is not understood"),
    ],
)
def test_a_change_that_does_not_hold_is_taken_back_with_the_reason(at: Installation, fault: int, reason: str) -> None:
    base = at.settings.read_text()
    assert at.apply("r1", page_size=32, tree_budget=fault) == 20
    report = at.report("r1")
    assert reason in report["reason"]
    assert at.settings.read_text() == base
    assert (at.service()["ActiveState"], report["settings"]["page_size"]) == ("active", 16)
    assert at.phases("r1")[-6:] == ["stopping", "loading", "ready", "probe", "soak", "rolled_back"]
    assert at.audit()[-2:] == [("armed", 1), ("rolled_back", 1)]


def test_a_start_that_never_becomes_ready_ends_at_its_limit_naming_the_phase(at: Installation) -> None:
    at.request(
        "r1",
        at.text(tree_budget=fake_engine.LOADS_FOR_EVER),
        limits={"stop_s": 10, "start_s": 1.0, "ready_s": 5, "soak_s": 0.2},
    )
    assert at.run("r1") == 20
    assert at.report("r1")["reason"] == "not ready within 1 s; loading weights 1/8"
    assert ("loading", "loading weights 1/8") in [(p["name"], p["text"]) for p in at.report("r1")["phases"]]


def test_a_changed_base_is_refused_and_nothing_restarts(at: Installation) -> None:
    before = at.service()["InvocationID"]
    at.request("r1", at.text(page_size=64))
    at.settings.write_text(at.text(page_size=7))
    assert at.run("r1") == 22
    assert "page_size = 7" in at.settings.read_text()
    assert at.service()["InvocationID"] == before
    assert at.audit() == [("installed", 0), ("base_changed", None)]


def test_of_two_changes_at_once_one_is_busy_and_told_whose_the_other_is(at: Installation) -> None:
    at.request("r1", at.text(page_size=64))
    at.request("r2", at.text(page_size=128), who="bo@desk")
    with subprocess.Popen(at.argv("r1")) as first:
        wait_until(lambda: (at.state / "apply.json").exists())
        assert at.run("r2") == 75
        assert first.wait(timeout=60) == 0
    assert "another change is under way, by ana@laptop since " in at.report("r2")["reason"]
    assert "page_size = 64" in at.settings.read_text()


def test_the_same_request_again_only_tells_its_outcome(at: Installation) -> None:
    assert at.apply("r1", page_size=64) == 0
    invocation = at.service()["InvocationID"]
    assert at.run("r1") == 0
    assert at.service()["InvocationID"] == invocation
    assert at.audit() == [("installed", 0), ("armed", 1), ("confirmed", 1)]


def test_when_the_old_settings_fail_too_the_service_is_stopped_and_both_reasons_stand(at: Installation) -> None:
    old = {**at.endpoint(at.settings.read_text()), "expect": {"page_size": 5}}
    at.request("r1", at.text(tree_budget=fake_engine.REFUSES), old=old)
    assert at.run("r1") == 21
    assert "the tree does not fit" in at.report("r1")["reason"]
    assert "then the old settings failed too: page_size is 16, not 5" in at.report("r1")["reason"]
    assert at.service()["ActiveState"] == "inactive"


def test_a_service_that_was_stopped_stays_stopped_when_its_new_settings_fail(at: Installation) -> None:
    subprocess.run(at.verb("stop", "--wait", "10"), check=True, capture_output=True)
    base = at.settings.read_text()
    assert at.apply("r1", tree_budget=fake_engine.REFUSES) == 20
    assert at.settings.read_text() == base
    assert at.service()["ActiveState"] in ("inactive", "failed")


def test_a_worker_that_is_killed_half_way_is_cleaned_up_by_its_watcher(at: Installation) -> None:
    base = at.settings.read_text()
    at.request("r1", at.text(tree_budget=fake_engine.LOADS_FOR_EVER))
    with subprocess.Popen(at.argv("r1")) as watcher:
        wait_until(lambda: (at.state / "apply.json").exists() and at.phases("r1")[-1:] == ["loading"])
        worker = int(Path(f"/proc/{watcher.pid}/task/{watcher.pid}/children").read_text().split()[0])
        os.kill(worker, signal.SIGKILL)
        assert watcher.wait(timeout=60) == 20
    assert at.report("r1")["reason"] == "the change was interrupted on the box"
    assert at.settings.read_text() == base
    assert at.service()["ActiveState"] == "active"


def test_a_change_whose_every_process_was_killed_is_taken_back_by_the_next(at: Installation) -> None:
    at.request("r1", at.text(tree_budget=fake_engine.LOADS_FOR_EVER))
    with subprocess.Popen(at.argv("r1"), start_new_session=True) as watcher:
        wait_until(lambda: (at.state / "apply.json").exists() and at.phases("r1")[-1:] == ["loading"])
        os.killpg(watcher.pid, signal.SIGKILL)
    assert json.loads((at.state / "apply.json").read_text())["status"] == "running"
    at.settings.write_text((at.generations / "0000.toml").read_text())
    at.request("r2", at.text(page_size=64))
    at.settings.write_text((at.generations / "0001.toml").read_text())
    assert at.run("r2") == 0
    assert at.report("r1")["status"] == "rolled_back"
    assert "page_size = 64" in at.settings.read_text()
    assert "tree_budget = 8" in at.settings.read_text()


def test_detached_it_outlives_whoever_asked(at: Installation) -> None:
    at.request("r1", at.text(page_size=64))
    asked = subprocess.run(at.argv("r1", "--detach"), timeout=10, capture_output=True)
    assert (asked.returncode, asked.stdout) == (0, b"")
    wait_until(lambda: (at.state / "applies" / "r1.json").exists() and at.report("r1")["status"] != "running")
    assert at.report("r1")["status"] == "confirmed"


def test_history_tells_every_generation_with_its_text_and_outcome(at: Installation) -> None:
    at.apply("r1", page_size=64)
    at.apply("r2", tree_budget=fake_engine.REFUSES)
    told = apply.history(at.state)
    assert [(g["number"], g["outcome"], g["request_id"]) for g in told] == [
        (0, "installed", None),
        (1, "confirmed", "r1"),
        (2, "rolled_back", "r2"),
    ]
    assert "page_size = 64" in told[1]["text"]
    assert told[2]["reason"] == "/models/x: the tree does not fit; use a smaller one"


def test_the_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    with apply.locked(tmp_path) as mine:
        assert mine
        with apply.locked(tmp_path) as second:
            assert not second
    with (tmp_path / "apply.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('error seq=9 where="loading weights" error="/m: no such \\"shard\\""', '/m: no such "shard"'),
        ("error seq=9 error=broken", "broken"),
        ("decode seq=3 req=r1 steps=4", ""),
        ("ready seq=1 version=0.1.0", ""),
        ("RuntimeError: out of memory", "RuntimeError: out of memory"),
    ],
)
def test_the_reason_is_what_the_engine_said_went_wrong(message: str, said: str) -> None:
    assert apply.error_in(message) == said
