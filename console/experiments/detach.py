"""How a run is made to outlive the connection that starts it (measurement.md 4.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from console.box.connection import Connection

SPARE_S = 60  # RuntimeMaxSec stands behind the runner's own deadline, it does not compete with it


@dataclass(frozen=True)
class Detachment:
    """The argument list that starts a run, in which keeping, and why not a better one."""

    argv: tuple[str, ...]
    how: Literal["system", "user", "session"]
    note: str | None = None


async def choose_detachment(
    connection: Connection, run_id: str, runner_argv: Sequence[str], max_seconds: int
) -> Detachment:
    """A transient system unit for root, a user unit for a lingering user, else a session of its own.

    Without linger the user manager dies with the last login and takes its units along, so it is never used then.
    """
    session = in_session(runner_argv)
    facts = connection.facts
    if facts.systemd_version is None:
        return session
    unit = [
        "systemd-run", "--quiet", "--collect", f"--unit={unit_name(run_id)}", "--property=Type=exec",
        f"--property=RuntimeMaxSec={max_seconds + SPARE_S}", "--property=KillMode=control-group",
    ]  # fmt: skip
    if facts.uid == 0:
        return Detachment((*unit, "--", *runner_argv), "system")
    shown = await connection.run(["loginctl", "show-user", str(facts.uid), "--property=Linger", "--value"])
    if shown.exit_status == 0 and shown.stdout.strip() == b"yes":
        return Detachment((unit[0], "--user", *unit[1:], "--", *runner_argv), "user")
    note = f"{facts.user} does not linger, so the run has a session of its own; loginctl enable-linger {facts.user} mends it"
    return in_session(runner_argv, note)


def in_session(runner_argv: Sequence[str], note: str | None = None) -> Detachment:
    """The runner's own way: a double fork into a session that no login holds."""
    return Detachment((*runner_argv, "--detach"), "session", note)


def unit_name(run_id: str) -> str:
    """The transient unit of a run."""
    return f"ddtree-{run_id}"
