"""agent/apply.py over the real supervisor: the transaction's outcomes, with an engine whose faults are to order."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import fake_engine
import pytest
from installation import Installation, wait_until

from console.agent import apply


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


def test_a_manager_that_does_not_tell_the_state_is_asked_again_and_its_silence_is_never_taken_for_stopped(
    at: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `systemctl show` fails while systemd executes itself anew, or the bus is not there."""
    base, before = at.settings.read_text(), at.service()["InvocationID"]
    fails = "echo Failed to connect to bus >&2; exit 1"
    at.request("r1", at.text(page_size=64))
    at.order("r1", "state", ["sh", "-c", fails])
    monkeypatch.setattr(apply, "SILENT_S", 0.0)
    assert apply.Transaction(at.state, "r1").run() == "rejected"
    assert at.report("r1")["reason"] == "the service manager does not tell the unit's state: Failed to connect to bus"
    assert (at.settings.read_text(), at.service()["InvocationID"]) == (base, before)
    monkeypatch.undo()
    hiccup = f'if [ -e "$0" ]; then exec "$@"; fi; : >"$0"; {fails}'
    at.request("r2", at.text(page_size=64))
    at.order("r2", "state", ["sh", "-c", hiccup, str(at.folder / "asked"), *at.verb("status")])
    assert apply.Transaction(at.state, "r2").run() == "confirmed"
    assert at.report("r2")["was_active"] is True


def test_of_two_changes_at_once_one_is_busy_and_told_whose_the_other_is(at: Installation) -> None:
    at.request("r1", at.text(page_size=64), what="page_size 16 to 64, api_key_file")
    at.request("r2", at.text(page_size=128), who="bo@desk")
    with subprocess.Popen(at.argv("r1")) as first:
        wait_until(lambda: (at.state / "apply.json").exists())
        assert at.run("r2") == 75
        assert first.wait(timeout=60) == 0
    told = at.report("r2")["reason"]
    steps = "staged|clearing|stopping|loading|ready|probe|soak"
    assert re.fullmatch(
        r"another change is under way, by ana@laptop since \S+ \(page_size 16 to 64, api_key_file\), "
        rf"now at: ({steps})\b.*; until \S+ at the latest",
        told,
    ), told
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
