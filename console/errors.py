"""What an operator is told when something cannot be done, and the exit status that goes with it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit statuses of the `ddtree` command (contracts.md section 1)."""

    DONE = 0
    """The verb did what was asked."""
    FAILED = 1
    """The verb was understood, was tried, and failed."""
    USAGE = 2
    """Bad input: nothing was touched."""
    CHECK_SAYS_NO = 3
    """A check ran and its answer is "no"."""
    PRECONDITION = 4
    """Something the verb needs is missing on the box."""
    NO_CONNECTION = 5
    """The box could not be reached."""
    INCONCLUSIVE = 6
    """An experiment ended without enough evidence."""
    VOID = 7
    """An experiment was contaminated and counts for nothing."""
    ROLLED_BACK = 20
    """A settings change failed its gate; the old settings serve again."""
    ROLLBACK_FAILED = 21
    """Neither the new nor the old settings could be brought up."""
    BASE_CHANGED = 22
    """Somebody else changed the settings in between; nothing was done."""
    OUTCOME_UNKNOWN = 23
    """The link was lost; the box knows the outcome, ask again."""
    BUSY = 75
    """Another change or run holds the lock; try later."""
    INTERRUPTED = 130
    """Stopped by the operator."""


class OperatorError(Exception):
    """One clear line for the operator: where, what, and the nearest right thing.

    Raised where the cause is known and shown once, at the edge (CLI or TUI), never as a traceback.
    Each layer subclasses it for its own kind of trouble.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        mend: str | None = None,
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.mend}" if self.mend else line

    def to_json(self) -> dict[str, object]:
        """`{"error": {"what", "where", "mend", "exit"}}`, the shape `--json` prints on standard output."""
        return {
            "error": {
                "what": self.what,
                "where": self.where,
                "mend": self.mend,
                "exit": int(self.exit_code),
            }
        }


class UsageError(OperatorError):
    """Bad input; nothing was touched."""

    exit_code = ExitCode.USAGE
