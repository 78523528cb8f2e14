"""How long an engine's busiest thread waited for a processor: the kernel's own count of what others took from it.

It is the one sign that a slower step is the box's fault and not the engine's which needs no guess: a thread that could have
run, and did not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

Times = Mapping[str, Tuple[int, int]]
"""Thread -> (nanoseconds on a processor, nanoseconds waited for one)."""


def thread_times(pid: Any, proc: Path = Path("/proc")) -> Times:
    """Every thread's times so far; empty where the process or the kernel's count cannot be read from here."""
    found: Dict[str, Tuple[int, int]] = {}
    if not isinstance(pid, int):
        return found
    for file in (proc / str(pid) / "task").glob("*/schedstat"):
        try:
            ran, waited, _ = file.read_text().split()
        except (OSError, ValueError):  # it ended in this moment
            continue
        found[file.parent.name] = int(ran), int(waited)
    return found


def waited_s(before: Times, after: Times) -> Optional[float]:
    """Seconds that the thread which ran most in between waited for a processor; None where no thread is in both."""
    both = [(after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after if name in before]
    return round(max(both)[1] / 1e9, 6) if both else None
