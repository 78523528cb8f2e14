"""Check: one thing that the doctor looked at, judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing looked at. `mend` is what to do about it, a command where there is one; None where all is well.

    `commands` do it, where that asks for no password and stops nothing; they are never run unasked.
    """

    group: str
    name: str
    verdict: Verdict
    text: str
    mend: str | None = None
    commands: tuple[tuple[str, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """One row of `ddtree doctor --json`."""
        return {"group": self.group, "name": self.name, "verdict": self.verdict, "text": self.text, "mend": self.mend}
