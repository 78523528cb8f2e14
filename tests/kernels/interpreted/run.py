"""Run files of interpreter tests, each in a fork of this process, so that a crash ends one file and not the rest.

    TRITON_INTERPRET=1 python -m tests.kernels.interpreted.run FILE...

A JSON line a file: {"file", "status", "output"}; a negative status is the signal that killed it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import kernels.check  # loads torch and Triton once, for all forks
from kernels.launch import INTERPRETED


def run_in_fork(file: Path) -> tuple[int, str]:
    """(exit status or minus the signal, what pytest said)."""
    with tempfile.TemporaryFile() as kept:
        child = os.fork()
        if child == 0:
            os.dup2(kept.fileno(), 1)
            os.dup2(kept.fileno(), 2)
            status = pytest.main(["-vv", "-p", "no:cacheprovider", "-o", "addopts=", "--tb=short", str(file)])
            sys.stdout.flush()
            os._exit(int(status))
        _, waited = os.waitpid(child, 0)
        kept.seek(0)
        return os.waitstatus_to_exitcode(waited), kept.read().decode(errors="replace")


def main(files: Sequence[str]) -> None:
    """Print a line a file, in order."""
    if not INTERPRETED:
        raise SystemExit("set TRITON_INTERPRET=1: without it these tests would need a GPU")
    torch.set_num_threads(1)
    for module in kernels.check.MODULES:
        __import__(f"kernels.{module}")
    for file in files:
        status, output = run_in_fork(Path(file))
        print(json.dumps({"file": Path(file).stem, "status": status, "output": output}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
