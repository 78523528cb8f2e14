"""agent/survey.py on this machine: what it finds of engines that run beside the service."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

from installation import wait_until

from console.agent import apply, survey


def test_an_engine_that_only_checks_a_file_is_no_other_engine() -> None:
    with ExitStack() as ended:

        def begin(*words: str) -> subprocess.Popen[bytes]:
            argv = [sys.executable, "-c", "import time; time.sleep(600)", "-m", "engine", "serve", *words]
            process = ended.enter_context(subprocess.Popen(argv))
            ended.callback(process.kill)
            wait_until(lambda: "engine" in apply.command_of(process.pid))
            return process

        serves, checks = begin("--config", "engine.toml"), begin("--check-config", "--config", "engine.toml")
        found = [one["pid"] for one in survey.engines([])]
        assert serves.pid in found and checks.pid not in found
