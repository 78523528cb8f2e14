"""A service for the supervisor's tests: `child.py ACT…`, each act done in order. Standard library only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def notify(message: str) -> None:
    address = os.environ["NOTIFY_SOCKET"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(message.encode(), "\0" + address[1:] if address[0] == "@" else address)


def main() -> None:
    for act in sys.argv[1:]:
        word, _, rest = act.partition(":")
        if word == "say":
            print(rest, flush=True)
        elif word == "complain":
            print(rest, file=sys.stderr, flush=True)
        elif word == "raw":
            os.write(1, bytes.fromhex(rest))
        elif word == "count":
            for number in range(int(rest)):
                print(f"n={number}")
            sys.stdout.flush()
        elif word == "notify":
            notify(rest)
        elif word == "exit":
            sys.exit(int(rest))
        elif word == "ignore-term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif word == "environment":
            print(f"{rest}={os.environ.get(rest)}", flush=True)
        elif word == "leave-behind":
            subprocess.Popen(["sleep", rest], start_new_session=True)
        elif word == "once":  # do the rest only the first time: the file named remembers
            if Path(rest).exists():
                break
            Path(rest).touch()
        elif word == "wait":
            while True:
                time.sleep(60)
        else:
            sys.exit(f"no such act: {act}")
    while True:
        time.sleep(60)


main()
