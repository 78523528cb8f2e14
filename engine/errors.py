"""What goes wrong on the engine's side, in one clear line."""

from __future__ import annotations


class EngineError(Exception):
    """Bad input to the engine: what is wrong, where, and the mend, in one line.

    Raised where the cause is known; `python -m engine` prints it on standard error and exits with status 2.
    """

    def __init__(self, what: str, *, where: str | None = None, mend: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        line = f"{line}; {self.mend}" if self.mend else line
        return " ".join(line.split())
