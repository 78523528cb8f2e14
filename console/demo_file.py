"""The file by which a running demo tells the other verbs how to reach it; it is there only while the demo runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from console.private_file import write_private


@dataclass(frozen=True)
class DemoBox:
    """How to reach the demo's SSH server on this machine."""

    address: str  # a loopback address
    port: int
    user: str
    key: Path  # the one private key that opens it
    known_hosts: Path  # holds the server's host key
    pid: int  # the process that runs the demo


def write_demo(path: Path, demo: DemoBox) -> None:
    """Put `demo` into `path`, readable by the user alone, whole or not at all."""
    fields = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(demo).items()}
    write_private(path, json.dumps(fields))


def read_demo(path: Path) -> DemoBox | None:
    """The demo that runs now, or None: no file, one that is torn, or one left behind by a process that is gone."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        demo = DemoBox(
            address=str(found["address"]),
            port=int(found["port"]),
            user=str(found["user"]),
            key=Path(found["key"]),
            known_hosts=Path(found["known_hosts"]),
            pid=int(found["pid"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return demo if _runs(demo.pid) else None


def remove_demo(path: Path, pid: int) -> None:
    """Take the file away if it is the one that process `pid` wrote."""
    demo = read_demo(path)
    if demo is not None and demo.pid == pid:
        path.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it runs, as another user
    return True
