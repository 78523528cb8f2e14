"""What both faces, the CLI and the TUI, may ask of one host. `console/host.py` does it over SSH; tests use a recorded one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from console.box.values import Record, ServiceState
from console.deployment.change import ChangePlan, Choices, Generation, Outcome, Phase, Stray, UnderWay
from console.experiments.playbook import Playbook
from console.snapshot import Snapshot

if TYPE_CHECKING:
    from console.box.doctor import Check  # which brings in asyncssh
    from console.box.empty_log import EmptyLog


class Operations(Protocol):
    """One host, as the faces see it. Every method raises `OperatorError` for what the operator should read."""

    name: str
    read_only: bool
    """Nothing that changes the box is allowed."""

    @property
    def production(self) -> bool:
        """Whether a mistake here would be felt: questions want the host's name typed."""
        ...

    def snapshots(self) -> AsyncIterator[Snapshot]:
        """A new Snapshot whenever something changed, at most ten a second, over reconnects, until closed."""
        ...

    async def snapshot(self) -> Snapshot:
        """One Snapshot now (the `status` verb)."""
        ...

    def records(self, *, since: str | None, follow: bool) -> AsyncIterator[Sequence[Record]]:
        """Journal records in batches, each exactly once; ends by itself only when `follow` is false."""
        ...

    async def why_empty(self) -> EmptyLog:
        """Why `records` gives nothing, and what to do about it."""
        ...

    async def plan(self, changes: Mapping[str, str]) -> ChangePlan:
        """Validate `changes` (leaf name -> text) against the settings on the box; nothing is touched."""
        ...

    async def find_strays(self, plan: ChangePlan) -> Sequence[Stray]:
        """Processes on the box that are in the way of the plan, to be shown before it is applied."""
        ...

    def apply(self, plan: ChangePlan, choices: Choices | None = None) -> AsyncIterator[Phase | Outcome]:
        """Stage the plan and follow it to its end; the last item is the Outcome."""
        ...

    async def change_under_way(self) -> UnderWay | None:
        """The settings change that the box works on now, whoever asked for it."""
        ...

    def follow_change(self, request_id: str) -> AsyncIterator[Phase | Outcome]:
        """A change that somebody asked for, from its first phase to its Outcome."""
        ...

    def say(self, word: Literal["confirm", "revert"]) -> AsyncIterator[Phase | Outcome]:
        """Give the operator's word to the change that waits for one, and follow it to its Outcome."""
        ...

    async def history(self) -> Sequence[Generation]:
        """Every settings generation on the box, newest first."""
        ...

    async def service(self, verb: str) -> ServiceState:
        """`start`, `stop` or `restart` without a settings change; returns the state reached."""
        ...

    async def examine(self) -> Sequence[Check]:
        """What would stop the engine from working on the box, each with its mend; nothing is touched."""
        ...

    async def mend(self, commands: Sequence[Sequence[str]]) -> None:
        """Run the commands of findings on the box, one after another; the first that fails is the last."""
        ...

    def playbooks(self) -> Sequence[Playbook]:
        """The catalogue: built-in script files and the user's own, each with its validity."""
        ...

    def run(self, playbook: Playbook, params: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Start a playbook detached and yield its events (measurement.md 4.5); the last is `{"type": "result", …}`
        with the stored run's id, status, exit code, summary and verdict."""
        ...

    def attach(self, run_id: str) -> AsyncIterator[dict[str, Any]]:
        """Events of a run from its start, then live; ends as `run` does."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Ask a run to stop, then make sure that it has."""
        ...

    def reconnect(self) -> None:
        """Try the link again at once."""
        ...

    async def close(self) -> None:
        """End the connection; leaves nothing running on the box except what is meant to run on."""
        ...
