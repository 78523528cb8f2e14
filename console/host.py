"""Host: one box as both faces see it (`console.operations.Operations`), over SSH.

What changes the box is refused here, below every key map: in read-only mode, and unless the link is LIVE. Each such
verb leaves a line in the operator's own record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from console.audit import Entry, append
from console.box import journal
from console.box.connection import connect
from console.box.errors import LinkError
from console.box.prompts import Prompts
from console.box.services import pick_manager
from console.box.target import Target
from console.box.values import Record, ServiceState
from console.config import places, resolve
from console.deployment import reconfigure
from console.deployment.change import ChangePlan, Generation, Outcome, Phase
from console.deployment.reconfigure import Site
from console.errors import ExitCode, OperatorError, UsageError
from console.experiments.playbook import Playbook, catalogue
from console.snapshot import Snapshot
from console.telemetry.reader import bare
from console.watch import Watch

BROKEN = ("failed", "start-limit-hit", "start-timeout", "stuck-in-stop", "not-installed")
"""States from which a start does not go on by itself."""
LAST_WORDS_LINES = 50
BAD_SETTINGS = 2
"""Exit status of an engine that cannot work with what it was given."""


async def open_host(
    name: str, *, prompts: Prompts | None = None, accept_host_key: str | None = None, read_only: bool = False
) -> Host:
    """The host called `name`, connected. Raises UsageError for a name that cannot be one, BoxError as `connect` does."""
    where = places()
    target = resolve(name, where)
    connection = await connect(target, prompts, accept_host_key=accept_host_key)
    try:
        manager = await pick_manager(connection, target.scope, target.unit)
    except BaseException:
        await connection.close()
        raise
    audit = partial(append, where.state / "audit.jsonl")
    return Host(target, Site(connection, manager), read_only=read_only or target.read_only, audit=audit)


class Host:
    """See console.operations.Operations. Made by `open_host`."""

    def __init__(self, target: Target, site: Site, *, read_only: bool, audit: Callable[[Entry], None]) -> None:
        self.name = target.name
        self.target = target
        self.site = site
        self.read_only = read_only
        self._audit = audit

    # --- looking

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """A Snapshot whenever something changed, until closed."""
        async for snapshot in self._watch().snapshots():
            yield snapshot

    async def snapshot(self) -> Snapshot:
        """One Snapshot from fresh answers."""
        watch = self._watch()
        try:
            return await watch.look()
        finally:
            await watch.close()

    async def records(self, *, since: str | None, follow: bool) -> AsyncIterator[Sequence[Record]]:
        """Journal records in batches. `since` is `@SECONDS` since the epoch; without it, the newest ones come first."""
        source, connection = self.site.manager.journal_source(), self.site.connection
        if follow:
            async for batch in journal.follow(connection, source, since=since):
                yield batch
            return
        yield await journal.read_journal(
            connection, source, since=since, lines=None if since else journal.BACKLOG_LINES
        )

    async def history(self) -> Sequence[Generation]:
        """Every settings generation, newest first."""
        return await reconfigure.history(self.site)

    def playbooks(self) -> Sequence[Playbook]:
        """The catalogue."""
        return catalogue()

    # --- settings

    async def plan(self, changes: Mapping[str, str]) -> ChangePlan:
        """What `changes` would do; nothing is touched."""
        snapshot = await self.snapshot()
        return await reconfigure.plan(
            self.site, changes, in_flight=snapshot.running, memory_bytes=_memory_for_pool(snapshot)
        )

    async def plan_rollback(self) -> ChangePlan:
        """Back to the settings before the ones in force."""
        snapshot = await self.snapshot()
        return await reconfigure.plan_rollback(
            self.site, in_flight=snapshot.running, memory_bytes=_memory_for_pool(snapshot)
        )

    async def apply(self, plan: ChangePlan) -> AsyncIterator[Phase | Outcome]:
        """Stage the plan and follow it to its Outcome."""
        names = ", ".join(difference.name for difference in plan.differences)
        with self._changing("apply", detail=names) as entry:
            async for item in reconfigure.apply(self.site, plan):
                if isinstance(item, Outcome):
                    entry.ended(item.status, item.request_id)
                yield item

    # --- service

    async def service(self, verb: str) -> ServiceState:
        """`start`, `stop` or `restart`, and wait until it is done. Raises OperatorError with the engine's last words."""
        acts = {"start": self._start, "stop": self._stop, "restart": self._restart}
        with self._changing(verb) as entry:
            state = await acts[verb]()
            entry.ended(state.state)
        return state

    async def _start(self) -> ServiceState:
        manager = self.site.manager
        await manager.start()
        return await self._up(
            await manager.wait(lambda now: now.state == "serving" or now.state in BROKEN, self._start_s)
        )

    async def _restart(self) -> ServiceState:
        manager = self.site.manager
        before = (await manager.state()).invocation
        await manager.restart()
        state = await manager.wait(
            lambda now: now.state in BROKEN or (now.state == "serving" and now.invocation != before), self._start_s
        )
        return await self._up(state)

    async def _stop(self) -> ServiceState:
        manager = self.site.manager
        await manager.stop()
        return await manager.wait(lambda now: now.state == "stopped" or now.state in BROKEN, self.site.limits.stop_s)

    @property
    def _start_s(self) -> float:
        return self.site.limits.stop_s + self.site.limits.start_s

    async def _up(self, state: ServiceState) -> ServiceState:
        """`state` if it serves. Otherwise the engine said why, and its last line is the reason."""
        if state.state == "serving":
            return state
        said = await self._last_words(state.invocation)
        raise OperatorError(
            f"the service is {state.state}{f': {said}' if said else ''}",
            where=state.unit,
            mend=f"ddtree logs {self.name} has the rest",
            exit_code=ExitCode.USAGE if state.exit_status == BAD_SETTINGS else ExitCode.FAILED,
        )

    async def _last_words(self, invocation: str | None) -> str | None:
        records = await journal.read_journal(
            self.site.connection, self.site.manager.journal_source(), lines=LAST_WORDS_LINES
        )
        own = [r for r in records if r.identifier == self.site.deployment.identifier and r.invocation == invocation]
        return bare(own[-1].message).strip() if own else None

    # --- link

    def reconnect(self) -> None:
        """Try the link again at once."""
        self.site.connection.reconnect()

    async def close(self) -> None:
        """End the connection; what runs on the box runs on."""
        await self.site.connection.close()

    def _watch(self) -> Watch:
        return Watch(self.site, tag=self.target.tag)

    def permit(self, verb: str) -> None:
        """The gate that everything goes through that changes the box. Raises UsageError read-only, LinkError unless LIVE."""
        if self.read_only:
            raise UsageError(f"{verb} is refused: read-only", where=self.name)
        link = self.site.connection.state
        if link.name != "LIVE":
            raise LinkError(
                f"{verb} is refused: the link is {link.name}", where=self.name, mend="wait until it is LIVE"
            )

    @contextmanager
    def _changing(self, verb: str, *, detail: str | None = None) -> Iterator[_Act]:
        """Something that changes the box, if it may, and the record of how it ended."""
        self.permit(verb)
        act = _Act()
        try:
            yield act
        except BaseException as error:
            # Who has heard the end of a stream may leave it: that is no other end.
            act.result = act.result or str(error) or type(error).__name__
            raise
        finally:
            self._audit(Entry(self.name, verb, act.result or "unknown", act.request_id, detail))


class _Act:
    """How something that changes the box ended."""

    def __init__(self) -> None:
        self.result: str | None = None
        self.request_id: str | None = None

    def ended(self, result: str, request_id: str | None = None) -> None:
        self.result, self.request_id = result, request_id


def _memory_for_pool(snapshot: Snapshot) -> int | None:
    """Bytes that the engine takes its share of: the smallest GPU's, or the machine's where there is none.

    Memory that the engine itself holds now is free again when it restarts.
    """
    if snapshot.gpus:
        totals = [gpu.memory_total_bytes for gpu in snapshot.gpus if gpu.memory_total_bytes]
        return min(totals, default=None)
    machine, process = snapshot.machine, snapshot.process
    if machine is None or machine.memory_total_bytes is None or machine.memory_used_bytes is None:
        return None
    own = process.rss_bytes or 0 if process else 0
    return machine.memory_total_bytes - machine.memory_used_bytes + own
