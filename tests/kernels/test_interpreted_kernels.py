"""Every kernel in Triton's interpreter against its reference: the checks of interpreted/, in processes of their own.

One process cannot both interpret and compile, and the interpreter dies of a far read out of bounds: the checks run in
forks of two processes, side by side, and a crash is the failure of one file. bfloat16 arithmetic is wrong in the
interpreter, so values are tested in float32 and float16; what bfloat16 does is tests/gpu's affair.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is for Linux only")

FOLDER = Path(__file__).parent / "interpreted"
FILES = sorted(path.stem for path in FOLDER.glob("check_*.py"))
PROCESSES = 2


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """File -> its exit status and output, of the files whose tests were asked for."""
    items = [item for item in request.session.items if item.originalname == "test_values_are_the_references"]
    files = [item.callspec.params["file"] for item in items]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.interpreted.run", *(str(FOLDER / f"{file}.py") for file in part)],
            cwd=FOLDER.parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in (files[n::PROCESSES] for n in range(PROCESSES))
        if part
    ]
    lines = [line for process in running for line in process.communicate()[0].splitlines()]
    return {outcome["file"]: outcome for outcome in map(json.loads, lines)}


@pytest.mark.parametrize("file", FILES)
def test_values_are_the_references(outcomes: dict[str, dict[str, Any]], file: str) -> None:
    outcome = outcomes.get(file)
    assert outcome is not None, "its process ended before it came to this file"
    what = f"killed by signal {-outcome['status']}" if outcome["status"] < 0 else f"exit status {outcome['status']}"
    assert outcome["status"] == 0, f"{file}: {what}\n{outcome['output'][-6000:]}"
    assert " passed" in outcome["output"]


def test_a_crash_is_the_failure_of_one_file(tmp_path: Path) -> None:
    crashing, sound = tmp_path / "check_crash.py", tmp_path / "check_sound.py"
    crashing.write_text("import os, signal\ndef test_crash() -> None:\n    os.kill(os.getpid(), signal.SIGSEGV)\n")
    sound.write_text("def test_sound() -> None:\n    pass\n")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpreted.run", str(crashing), str(sound)],
        cwd=FOLDER.parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(outcome["file"], outcome["status"]) for outcome in outcomes] == [("check_crash", -11), ("check_sound", 0)]
    assert "test_crash" in outcomes[0]["output"]  # what ran when it died
