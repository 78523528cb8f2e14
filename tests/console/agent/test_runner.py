"""The runner leaves exit.json behind whatever happens to the script, and two runs never share an engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).resolve().parents[3] / "console" / "agent" / "runner.py"
EVENT = 'print(\'{"seq": %d, "type": "log"}\', flush=True)\n'


def make(tmp_path: Path, script: str, run_id: str = "r1", **environment: str) -> Path:
    folder = tmp_path / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "script.py").write_text(script)
    base = {"DDT_API": "1", "DDT_RUN_ID": run_id, "DDT_BASE_URL": "http://127.0.0.1:8765", "DDT_MAX_SECONDS": "60"}
    (folder / "env.json").write_text(json.dumps({**base, **environment}))
    return folder


def runner(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, RUNNER, folder, *arguments], capture_output=True, text=True, timeout=30, check=False
    )


def until(condition: Callable[[], Any], what: str) -> Any:
    limit = time.monotonic() + 15
    while not (found := condition()):
        assert time.monotonic() < limit, f"{what} did not happen"
        time.sleep(0.02)
    return found


def read_json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def exit_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = until(lambda: read_json(folder / "exit.json"), "exit.json")
    return found


def test_a_script_that_ends_has_its_exit_status_and_its_count_of_events(tmp_path: Path) -> None:
    folder = make(tmp_path, EVENT % 0 + EVENT % 1 + "raise SystemExit(6)\n")
    assert runner(folder).returncode == 6
    ended = exit_of(folder)
    assert (ended["code"], ended["signal"], ended["reason"], ended["seq_total"]) == (6, None, None, 2)
    assert ended["ended"] == pytest.approx(time.time(), abs=60)


def test_a_script_that_raises_leaves_its_traceback_and_exit_status_one(tmp_path: Path) -> None:
    folder = make(tmp_path, EVENT % 0 + "1 / 0\n")
    assert runner(folder).returncode == 1
    assert exit_of(folder)["code"] == 1
    assert "ZeroDivisionError" in (folder / "stderr.log").read_text()


def test_a_script_killed_by_a_signal_has_a_signal_and_no_code(tmp_path: Path) -> None:
    folder = make(tmp_path, EVENT % 0 + "import os\nos.kill(os.getpid(), 9)\n")
    runner(folder)
    ended = exit_of(folder)
    assert (ended["code"], ended["signal"], ended["seq_total"]) == (None, "SIGKILL", 1)


def test_a_script_out_of_time_is_ended_and_says_deadline(tmp_path: Path) -> None:
    folder = make(tmp_path, EVENT % 0 + "import time\ntime.sleep(60)\n", DDT_MAX_SECONDS="0.3")
    runner(folder, "--term-after", "0", "--kill-after", "5")
    ended = exit_of(folder)
    assert (ended["code"], ended["signal"], ended["reason"]) == (None, "SIGTERM", "deadline")


def test_a_script_that_ignores_the_cancel_file_and_sigterm_is_killed_with_all_it_started(tmp_path: Path) -> None:
    script = (
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid))\n" + EVENT % 0 + "time.sleep(60)\n"
    )
    folder = make(tmp_path, script)
    assert runner(folder, "--detach", "--term-after", "0.1", "--kill-after", "0.4").returncode == 0
    until(lambda: (folder / "events.jsonl").stat().st_size, "the first event")
    cancelled = runner(folder, "--cancel")
    ended = json.loads(cancelled.stdout)
    assert (ended["code"], ended["signal"], ended["reason"]) == (None, "SIGKILL", "cancelled")
    grandchild = Path(f"/proc/{(folder / 'child').read_text()}")
    until(lambda: not grandchild.exists() or " Z " in (grandchild / "stat").read_text(), "the end of the grandchild")


def test_a_script_that_sees_the_cancel_file_first_was_cancelled_all_the_same(tmp_path: Path) -> None:
    folder = make(tmp_path, "import sys\n" + EVENT % 0 + "open('cancel', 'w').close()\nsys.exit(130)\n")
    runner(folder)
    assert (exit_of(folder)["code"], exit_of(folder)["reason"]) == (130, "cancelled")


def test_a_detached_run_outlives_the_command_that_started_it_and_is_known_by_its_folder(tmp_path: Path) -> None:
    script = "import os, time\n" + EVENT % 0 + "while not os.path.exists('go'):\n    time.sleep(0.02)\n"
    folder = make(tmp_path, script)
    started = json.loads(runner(folder, "--detach").stdout)
    assert started["state"] == "running"
    pid = started["pid"]
    assert os.getsid(pid) == pid != os.getsid(0)
    assert json.loads(runner(folder, "--status").stdout)["state"] == "running"
    again = runner(folder)
    assert (again.returncode, "started before" in again.stderr) == (2, True)
    (folder / "go").touch()
    assert exit_of(folder)["code"] == 0
    assert json.loads(runner(folder, "--status").stdout)["state"] == "ended"


def test_a_second_run_on_the_same_engine_is_busy_and_names_the_first(tmp_path: Path) -> None:
    first = make(tmp_path, "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n", "first")
    second = make(tmp_path, "pass\n", "second")
    other = make(tmp_path, "pass\n", "other", DDT_BASE_URL="http://127.0.0.1:9000")
    runner(first, "--detach")
    assert runner(second).returncode == 75
    assert exit_of(second)["code"] == 75
    assert exit_of(second)["holder"] == "first"
    assert not (second / "events.jsonl").exists()
    assert runner(other).returncode == 0
    (first / "go").touch()
    exit_of(first)
    third = make(tmp_path, "pass\n", "third")
    until(lambda: runner(third).returncode == 0 or (third / "exit.json").unlink(missing_ok=True), "the lock's release")


def test_a_runner_told_to_terminate_ends_the_script_first(tmp_path: Path) -> None:
    folder = make(tmp_path, EVENT % 0 + "import time\ntime.sleep(60)\n")
    runner(folder, "--detach")
    own = until(lambda: read_json(folder / "pid"), "pid")
    os.kill(own["runner"], signal.SIGTERM)
    ended = exit_of(folder)
    assert (ended["signal"], ended["reason"]) == ("SIGTERM", "terminated")


def test_a_runner_that_was_killed_takes_the_script_along_and_cancel_settles_what_remains(tmp_path: Path) -> None:
    folder = make(tmp_path, EVENT % 0 + "import time\ntime.sleep(60)\n")
    runner(folder, "--detach")
    own = until(lambda: read_json(folder / "pid"), "pid")
    os.kill(own["runner"], signal.SIGKILL)
    until(lambda: json.loads(runner(folder, "--status").stdout)["state"] == "lost", "the end of the script")
    assert json.loads(runner(folder, "--cancel").stdout)["reason"] == "cancelled"
    assert exit_of(folder)["signal"] == "SIGKILL"


def test_the_script_sees_its_own_environment_and_nothing_of_the_logins(tmp_path: Path) -> None:
    script = "import json, os, sys\nprint(json.dumps({'seq': 0, 'env': dict(os.environ), 'flags': sys.flags.no_user_site, 'path': sys.path}))\n"
    folder = make(tmp_path, script)
    (folder / "secrets.json").write_text("{}")
    os.environ["SECRET_OF_THE_LOGIN"] = "x"
    try:
        runner(folder)
    finally:
        del os.environ["SECRET_OF_THE_LOGIN"]
    seen = json.loads((folder / "events.jsonl").read_text())
    assert "SECRET_OF_THE_LOGIN" not in seen["env"]
    assert seen["env"]["DDT_RUN_DIR"] == str(folder)
    assert float(seen["env"]["DDT_DEADLINE"]) > time.time()
    assert seen["flags"] == 1
    assert seen["path"][0] == str(folder)
    assert not (folder / "secrets.json").exists()
    for name in ("events.jsonl", "stderr.log", "exit.json", "pid"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600, name
