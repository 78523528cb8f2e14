"""Values, speeds and whole rounds of the kernels, one table last. `tests/gpu/run.sh` says how to start it.

The steps run in a process of their own, which writes each one's rows down as it ends. Where a step breaks that process (a
kernel that faults leaves the GPU's context useless) or hangs, a new one goes on with the next step.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kernels.launch import triton
from tests.gpu.measure import Bench, Row, copy_bandwidth, print_table
from tests.gpu.speed import verdicts

STEPS = "tests.gpu.steps"
WITHIN_S = 570.0
"""No step begins later."""
FRESH_CONTEXT = 75
"""How the process of the steps ends where the next one needs a new process."""


def main(mode: str, module: str = STEPS) -> int:
    """Exit status: 0 done, 1 some step failed, 2 bad usage, 4 no GPU. The table comes last, whatever failed."""
    if mode not in ("measure", "rehearse"):
        print(f"tests/gpu: {mode} is not known; take measure or rehearse", file=sys.stderr)
        return 2
    if mode == "measure" and not torch.cuda.is_available():
        print("tests/gpu: no GPU that torch can use; take rehearse, or run it on a GPU box", file=sys.stderr)
        return 4
    with tempfile.TemporaryDirectory() as kept:
        diary = Path(kept) / "steps.jsonl"
        diary.touch()
        until = time.time() + WITHIN_S
        while _unfinished(diary, module):
            before = len(_records(diary))
            command = [sys.executable, "-m", "tests.gpu.run", mode, module, str(diary), str(until)]
            status = subprocess.run(command, check=False).returncode
            if len(_records(diary)) == before:
                print(f"tests/gpu: the process of the steps ended at its start, with {status}", file=sys.stderr)
                break
            _note_broken(diary, status)
            if time.time() > until:
                break
        records = _records(diary)
        missed = _unfinished(diary, module)
    rows = [Row(**row) for record in records for row in record.get("rows", ())]
    failed = [(record["step"], record["failed"]) for record in records if record.get("failed")]
    rows += [Row("FAILED", step, note=why) for step, why in failed]
    rows += [Row("not reached", step) for step in missed]
    print_table([machine(mode), *rows, *verdicts(rows)])
    return 1 if failed or missed else 0


def machine(mode: str) -> Row:
    """What it ran on."""
    name = torch.cuda.get_device_name() if mode == "measure" else "no GPU: a rehearsal"
    return Row("machine", name, note=f"torch {torch.__version__}, triton {triton.__version__ if triton else 'none'}")


def run_steps(mode: str, module: str, diary: Path, until: float) -> int:
    """The steps that have not begun yet, until one needs another process."""
    bench = Bench(torch.device("cuda" if mode == "measure" else "cpu"), mode == "measure")
    torch.set_grad_enabled(False)
    room = importlib.import_module(module)
    began = {record["step"] for record in _records(diary)}
    copy = copy_bandwidth(bench)
    if not began:
        _write(diary, {"step": "copy", "rows": [asdict(Row("copy", "1 GiB", gb_s=copy / 1e9))]})
    for name, step in room.steps().items():
        if name in began:
            continue
        if time.time() > until:
            return 0
        print(f"{time.time() - (until - WITHIN_S):6.1f} s  {name}", flush=True)
        _write(diary, {"step": name})
        faulthandler.dump_traceback_later(room.LIMIT_S, exit=True)
        try:
            rows = step(bench, copy)
            if bench.measures:
                torch.cuda.synchronize()
        except Exception as failure:  # noqa: BLE001 - a row of the table tells of it
            why = " ".join(f"{type(failure).__name__}: {failure}".split())[:200]
            print(f"          FAILED: {why}", flush=True)
            _write(diary, {"step": name, "failed": why})
            if bench.measures and not isinstance(failure, AssertionError):
                return FRESH_CONTEXT
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        _write(diary, {"step": name, "rows": [asdict(row) for row in rows]})
    return 0


def _write(diary: Path, record: dict[str, Any]) -> None:
    with diary.open("a") as lines:
        lines.write(json.dumps(record) + "\n")


def _records(diary: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in diary.read_text().splitlines()]


def _unfinished(diary: Path, module: str) -> list[str]:
    """Steps that have neither rows nor a failure."""
    ended = {record["step"] for record in _records(diary) if len(record) > 1}
    return [name for name in importlib.import_module(module).steps() if name not in ended]


def _note_broken(diary: Path, status: int) -> None:
    """The step that the process ended in, if it did not say so itself."""
    last = _records(diary)[-1]
    if len(last) == 1:
        what = (
            f"killed by signal {-status}" if status < 0 else f"ended its process with status {status}, or took too long"
        )
        _write(diary, {"step": last["step"], "failed": what})


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if len(rest) < 2:
        raise SystemExit(main(mode, *rest))
    raise SystemExit(run_steps(mode, rest[0], Path(rest[1]), float(rest[2])))
