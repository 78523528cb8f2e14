"""An installation under the real supervisor, with the fake engine in it, for the transaction's tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_engine

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
            "unit": "ddtree-engine.service",
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

    def order(self, request_id: str, command: str, argv: list[str]) -> None:
        """One more command in a request."""
        file = self.state / "applies" / f"{request_id}.request.json"
        request = json.loads(file.read_text())
        request["commands"][command] = argv
        file.write_text(json.dumps(request))

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
