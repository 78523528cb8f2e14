"""The operator's own record of what was changed where: one JSON object a line, appended, never rewritten."""

from __future__ import annotations

import getpass
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One verb that changed a box, or tried to. `result` is its outcome in a word, or the error's line."""

    host: str
    verb: str
    result: str
    request_id: str | None = None
    detail: str | None = None  # names of what was changed; values may be secrets and are left out
    when: str = ""
    who: str = ""


def append(file: Path, entry: Entry) -> None:
    """Add `entry`, stamped with the time and the operator's login, to `file` (0600, its folder 0700)."""
    stamped = {
        **asdict(entry),
        "when": entry.when or datetime.now(UTC).isoformat(timespec="milliseconds"),
        "who": entry.who or operator(),
    }
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # One write of less than a page in append mode: lines of consoles running at once do not mix.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as out:
        out.write(json.dumps(stamped, ensure_ascii=False) + "\n")


def operator() -> str:
    """The operator's login on this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return f"uid {os.getuid()}"
