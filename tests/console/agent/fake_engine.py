"""An engine with faults to order, for the transaction's tests: what the real one does not do when asked.

`[speculation] tree_budget` picks the fault; everything else is as the real engine's HTTP side has it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REFUSES, GIVES_TOO_FEW, CRASHES_AFTERWARDS, IGNORES_PAGE_SIZE, LOADS_FOR_EVER, TALKS_NONSENSE = range(901, 907)


def notify(message: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        address = os.environ["NOTIFY_SOCKET"]
        sock.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)


class Handler(BaseHTTPRequestHandler):
    settings: dict[str, Any]
    fault: int

    def log_message(self, *_: object) -> None:
        return

    def answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/server_info":
            shown = {**self.settings, **({"page_size": 16} if self.fault == IGNORES_PAGE_SIZE else {})}
            nonsense = self.fault == TALKS_NONSENSE
            requests = Path(sys.argv[1]).with_name("running")  # as many as this file says
            running = int(requests.read_text()) if requests.exists() else 0
            whole = {"invocation": os.environ["INVOCATION_ID"], "settings": shown, "requests": {"running": running}}
            self.answer([] if nonsense else whole)
        else:
            self.answer({"ready": True})

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        got = wanted - 3 if self.fault == GIVES_TOO_FEW else wanted
        self.answer({"usage": {"completion_tokens": got}, "speculation": {"steps": 4}})
        if self.fault == CRASHES_AFTERWARDS:
            threading.Timer(0.2, os._exit, (1,)).start()


def main() -> None:
    tables = tomllib.loads(Path(sys.argv[1]).read_text())
    Handler.settings = {name: value for table in tables.values() for name, value in table.items()}
    Handler.fault = int(Handler.settings.get("tree_budget", 0))
    if Handler.fault == REFUSES:
        print("<6>ready seq=1 version=0", flush=True)
        print("/models/x: the tree does not fit; use a smaller one", file=sys.stderr, flush=True)
        sys.exit(2)
    if Handler.fault == LOADS_FOR_EVER:
        notify("STATUS=loading weights 1/8\nEXTEND_TIMEOUT_USEC=600000000")
        time.sleep(3600)
    server = ThreadingHTTPServer(("127.0.0.1", int(Handler.settings["port"])), Handler)
    notify("READY=1\nSTATUS=serving")
    server.serve_forever()


if __name__ == "__main__":
    main()
