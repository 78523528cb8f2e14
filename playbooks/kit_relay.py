"""One stream stamped twice: a relay on the box's loopback that passes an answer on to the console and notes each chunk.

The console reaches it through its own forwarded port, stamps what arrives, and hands its stamps back, so that all of the
evidence lies in the run's events.
"""

from __future__ import annotations

import http.server
import json
import secrets
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from kit_end import Stop
from kit_run import Run

MAX_STAMPS_BYTES = 256 * 1024
STREAM_S = 600.0
POLL_S = 0.1


class Relay:
    """Serves `count` streams to one client that knows the secret path; use it as a context manager."""

    def __init__(self, run: Run, prompts: Sequence[Sequence[int] | str], output_tokens: int) -> None:
        self.run = run
        self.prompts = prompts
        self.output_tokens = output_tokens
        self.secret = secrets.token_hex(8)
        self.begun = threading.Event()  # somebody is there
        self.box_s: Dict[int, List[float]] = {}  # arrival of each chunk here, from the relay's request on
        self.client_s: Dict[int, List[float]] = {}
        self.failed: Optional[Stop] = None
        self._changed = threading.Condition()

    def __enter__(self) -> Relay:
        relay = self

        class Handler(_Handler):
            owner = relay

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()

    def ask_for_a_client(self) -> None:
        """The event that a following console answers by reading every stream."""
        self.run.events.emit(
            "client",
            port=self.server.server_port,
            path=f"/{self.secret}",
            streams=len(self.prompts),
            tokens=self.output_tokens,
        )

    def wait_for_client(self, within_s: float) -> bool:
        """Whether a console has begun to read within that time."""
        deadline = time.monotonic() + within_s
        while not self.begun.wait(POLL_S):
            self.run.check()
            if time.monotonic() > deadline:
                return False
        return True

    def wait_for(self, number: int) -> None:
        """Until both sides of a stream are there. Raises Stop where the engine failed or the client stayed away."""
        deadline = time.monotonic() + STREAM_S
        with self._changed:
            while number not in self.client_s:
                self.run.check()
                if self.failed is not None:
                    raise self.failed
                if time.monotonic() > deadline:
                    raise Stop("missing", "the console stopped reading in the middle", "client_lost")
                self._changed.wait(POLL_S)

    def note(self, side: Dict[int, List[float]], number: int, stamps: List[float]) -> None:
        """Keep one side's stamps of a stream."""
        with self._changed:
            side[number] = stamps
            self._changed.notify_all()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = STREAM_S
    owner: Relay

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error is for the playbook."""

    def _number(self) -> Optional[int]:
        parts = self.path.strip("/").split("/")
        good = len(parts) == 2 and secrets.compare_digest(parts[0], self.owner.secret) and parts[1].isdigit()
        return int(parts[1]) if good and int(parts[1]) < len(self.owner.prompts) else None

    def do_GET(self) -> None:
        """One stream, passed on line by line as it comes."""
        number = self._number()
        if number is None:
            self.send_error(404)
            return
        self.owner.begun.set()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        stamps: List[float] = []
        try:
            for stamp_s, line in self.owner.run.engine.stream_lines(
                self.owner.prompts[number], self.owner.output_tokens
            ):
                stamps.append(stamp_s)
                self.wfile.write(line)
                self.wfile.flush()
        except Stop as stop:
            self.owner.failed = stop
        self.owner.note(self.owner.box_s, number, stamps)

    def do_POST(self) -> None:
        """The client's stamps of one stream."""
        number, length = self._number(), int(self.headers.get("Content-Length") or 0)
        if number is None or not 0 < length <= MAX_STAMPS_BYTES:
            self.send_error(404)
            return
        stamps = json.loads(self.rfile.read(length))
        self.owner.note(self.owner.client_s, number, [float(stamp) for stamp in stamps])
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()


def streams(relay: Relay) -> List[Mapping[str, Any]]:
    """Every stream's stamps of both sides, in seconds, as they are told in `sample` events."""
    found: List[Mapping[str, Any]] = []
    for number in range(len(relay.prompts)):
        relay.wait_for(number)
        both = relay.box_s[number], relay.client_s[number]
        found.append({"box_s": [round(s, 6) for s in both[0]], "client_s": [round(s, 6) for s in both[1]]})
    return found
