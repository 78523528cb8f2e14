"""Events on standard output: one JSON object a line, numbered without a gap (measurement 4.5)."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from typing import Any, Mapping

MAX_EVENT_BYTES = 32 * 1024


class Events:
    """Writes events to standard output, numbered without a gap, and remembers when it last did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seq = 0
        self.rows = 0
        self.last_s = time.monotonic()

    def emit(self, kind: str, **fields: Any) -> None:
        """One event. Numbers without a finite value become null; a line over 32 KiB is an error of the script."""
        with self._lock:
            head = {"v": 1, "seq": self.seq, "t": time.time(), "m": time.monotonic(), "type": kind}
            line = json.dumps(_finite({**head, **fields}), ensure_ascii=False, separators=(",", ":"))
            if len(line.encode("utf-8")) > MAX_EVENT_BYTES:
                raise ValueError(f"a {kind} event of {len(line)} characters; the limit is {MAX_EVENT_BYTES} bytes")
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            self.seq += 1
            self.rows += kind == "row"
            self.last_s = time.monotonic()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value
