"""The kernel's count of how long a thread waited for a processor, read as it lies in /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit_waits import thread_times, waited_s


def written(proc: Path, threads: dict[str, str]) -> Path:
    for name, text in threads.items():
        (proc / "811" / "task" / name).mkdir(parents=True, exist_ok=True)
        (proc / "811" / "task" / name / "schedstat").write_text(text)
    return proc


def test_the_thread_that_ran_most_says_what_was_waited(tmp_path: Path) -> None:
    before = thread_times(811, written(tmp_path, {"811": "9000000000 7 1\n", "812": "100 200 3\n", "813": "5 broken"}))
    assert before == {"811": (9_000_000_000, 7), "812": (100, 200)}
    after = thread_times(811, written(tmp_path, {"811": "9000000100 8000000000 2\n", "812": "600000100 250000200 9\n"}))
    assert waited_s(before, after) == pytest.approx(0.25)


def test_what_cannot_be_read_is_not_nought(tmp_path: Path) -> None:
    assert thread_times(None) == thread_times(812, tmp_path) == {}
    assert waited_s({}, {}) is None
    assert waited_s({"1": (1, 1)}, {"2": (5, 5)}) is None
    assert str(os.getpid()) in thread_times(os.getpid()) or not Path("/proc/self/schedstat").exists()
