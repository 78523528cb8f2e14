"""A real engine process under test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], within_s: float = 20.0) -> Found:
    """The first true answer of `look`; fails when none comes in time."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"nothing within {within_s} s"
        time.sleep(0.01)
    return found


class Server:
    """An engine process: its log lines as they come, its HTTP side, and its end."""

    def __init__(self, config: Path, environment: Mapping[str, str], program: Sequence[str] = ("-m", "engine")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, into), daemon=True)
            for pipe, into in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, into: list[str]) -> None:
        for line in pipe:
            into.append(line.rstrip("\n"))

    def until_ready(self) -> Server:
        eventually(lambda: self.records("ready") or self.process.poll() is not None, 60.0)
        assert self.process.poll() is None, self.errors
        return self

    def records(self, kind: str) -> list[dict[str, str]]:
        """Log lines of one kind as their key=value pairs; values in these tests hold no blanks."""
        marked = [line for line in list(self.lines) if line.partition(">")[2].startswith(f"{kind} ")]
        return [dict(pair.split("=", 1) for pair in line.split(" ")[1:]) for line in marked]

    @property
    def url(self) -> str:
        return f"http://{self.records('ready')[0]['address']}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False, timeout=20.0)

    def post(self, path: str, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(self.url + path, content=content, trust_env=False, timeout=60.0)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=60.0,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )

    def stop(self) -> int:
        """End it gently; gives the exit status once all its output has been read."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30.0)
        for reader in self._readers:
            reader.join(10.0)
        return status
