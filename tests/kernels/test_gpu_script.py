"""tests/gpu/run.sh without a GPU: every step at toy sizes, and what becomes of the others where one fails, dies or hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

BREAKING = """
import os, threading
from tests.gpu.measure import Row

LIMIT_S = 1.0

def wrong(bench, copy):
    assert False, "error ratio 2.00e-01 over 8e-03"

def steps():
    return {
        "first": lambda bench, copy: [Row("done", "first")],
        "wrong": wrong,
        "dies": lambda bench, copy: os.abort(),
        "second": lambda bench, copy: [Row("done", "second")],
        "hangs": lambda bench, copy: threading.Event().wait(),
        "third": lambda bench, copy: [Row("done", "third")],
    }
"""


def run(*arguments: str, path: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "PYTHONPATH": str(path)}
    return subprocess.run(
        ["bash", str(REPOSITORY / "tests" / "gpu" / "run.sh"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_rehearsal_runs_every_step_and_measures_nothing() -> None:
    done = run("--rehearse")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    head, *rows = done.stdout[done.stdout.index("what  ") :].splitlines()
    assert head.split() == ["what", "case", "us", "GB/s", "of", "floor", "of", "copy", "note"]
    kinds = {row.split("  ")[0] for row in rows}
    assert kinds >= {
        "values", "rounds", "server", "copy", "paged attention", "torch SDPA", "norm + residual", "SiLU-mul",
        "norm, rope, K/V write", "INT4 product", "experts' product", "latent attention", "draft top-k", "build + walk",
        "token choice", "round, eager",
    }  # fmt: skip
    assert not kinds & {"FAILED", "not reached", "aim"}
    assert len([row for row in rows if row.startswith("values ")]) == 18
    figures = [row[head.index("us") : head.index("note")].strip() for row in rows]
    assert not any(figures), "a rehearsal has no figures"


def test_a_step_that_fails_dies_or_hangs_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / "breaking_steps.py").write_text(BREAKING)
    done = run("rehearse", "breaking_steps", path=tmp_path)
    assert done.returncode == 1
    table = done.stdout[done.stdout.index("what  ") :].splitlines()
    cells = [[cell for cell in line.split("  ") if cell] for line in table[2:]]
    assert [" | ".join(cell.strip() for cell in row) for row in cells] == [
        "copy | 1 GiB",
        "done | first",
        "done | second",
        "done | third",
        "FAILED | wrong | AssertionError: error ratio 2.00e-01 over 8e-03",
        "FAILED | dies | killed by signal 6",
        "FAILED | hangs | ended its process with status 1, or took too long",
    ]
    assert "Timeout (0:00:01)!" in done.stderr, "where it hung"


def test_without_a_gpu_measuring_is_refused_in_one_line() -> None:
    done = run()
    assert done.returncode == 4
    assert done.stderr == "tests/gpu: no GPU that torch can use; take rehearse, or run it on a GPU box\n"
    assert run("measures").returncode == 2
