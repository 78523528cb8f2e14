"""Warnings of libraries go to a file, not to the screen."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, sys
from pathlib import Path
from console.own_log import keep_own_log
keep_own_log(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    logging.getLogger("asyncio").warning("socket.send() raised exception. %s", "x" * 1000)
"""


def run(path: Path, records: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM, str(path), str(records)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)


def test_a_warning_is_in_the_file_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "state" / "console.log"
    done = run(path, 1)
    assert (done.stdout, done.stderr) == ("", "")
    assert "WARNING asyncio: socket.send() raised exception." in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_to_say_leaves_no_file(tmp_path: Path) -> None:
    run(tmp_path / "state" / "console.log", 0)
    assert list(tmp_path.iterdir()) == []


def test_the_file_stays_small(tmp_path: Path) -> None:
    run(tmp_path / "console.log", 3000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2_000_000


def test_a_place_that_cannot_be_written_is_silent(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    assert run(tmp_path / "state" / "console.log", 1).stderr == ""
