"""Host: one box as both faces see it (`console.operations.Operations`), over SSH.

What changes the box is refused here, below every key map: in read-only mode, and unless the link is LIVE. Each such
verb leaves a line in the operator's own record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from console.audit import Entry, append
from console.box import empty_log, journal
from console.box.as_root import SudoRefused
from console.box.connection import connect
from console.box.empty_log import EmptyLog
from console.box.errors import HostUnknown, LinkError, LoginRefused, NotAllowed
from console.box.prompts import Prompts
from console.box.services import pick_manager
from console.box.skipped_options import SkippedOption, skipped_options
from console.box.target import Scope, Target
from console.box.values import Record, ServiceState
from console.config import places, resolve
from console.deployment import generations, reconfigure
from console.deployment.change import ChangePlan, Choices, Difference, Generation, Outcome, Phase, Stray, UnderWay
from console.deployment.detect import find_site
from console.deployment.site import Site
from console.errors import OperatorError, UsageError
from console.experiments.playbook import Playbook, catalogue
from console.pool_memory import beside_own_pool, memory_for_pool
from console.service_acts import ACTS
from console.snapshot import Snapshot
from console.watch import Watch

if TYPE_CHECKING:
    from console.box.doctor import Check
    from console.box.install import InstallRequest
    from console.box.steps import Progress


async def open_host(
    name: str,
    *,
    prompts: Prompts | None = None,
    accept_host_key: str | None = None,
    read_only: bool = False,
    scope: Scope | None = None,
) -> Host:
    """The host called `name`, connected. Raises UsageError for a name that cannot be one, BoxError as `connect` does.

    `scope` is the service manager to use; None: the one of the config file, or the one that the box has.
    """
    where = places()
    target = resolve(name, where)
    try:
        connection = await connect(target, prompts, accept_host_key=accept_host_key)
    except (LinkError, HostUnknown, LoginRefused) as error:
        slips = [f"{one.where}: no option {one.name}, {one.mend}" for one in _options_of(target) if one.misspelt]
        error.mend = "; ".join([*([error.mend] if error.mend else []), *slips])
        raise
    try:
        manager = await pick_manager(connection, scope or target.scope, target.unit)
        site = await find_site(connection, manager)
    except BaseException:
        await connection.close()
        raise
    audit = partial(append, where.state / "audit.jsonl")
    return Host(target, site, read_only=read_only or target.read_only, audit=audit)


def _options_of(target: Target) -> tuple[SkippedOption, ...]:
    return skipped_options(target.ssh_config, target.ssh_name, target.user, target.port)


class Host:
    """See console.operations.Operations. Made by `open_host`."""

    def __init__(self, target: Target, site: Site, *, read_only: bool, audit: Callable[[Entry], None]) -> None:
        self.name = target.name
        self.target = target
        self.site = site
        self.read_only = read_only
        self.production = target.production
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

    async def why_empty(self) -> EmptyLog:
        """Why there are no records to show, with the mend."""
        return await empty_log.why_empty(self.site.connection, self.site.manager)

    async def history(self) -> Sequence[Generation]:
        """Every settings generation, newest first."""
        return await generations.history(self.site)

    async def diff(self, old: int, new: int) -> Sequence[Difference]:
        """What is different between two generations, by their numbers. Raises UsageError for one that is not there."""
        return await generations.diff(self.site, old, new)

    def playbooks(self) -> Sequence[Playbook]:
        """The catalogue."""
        return catalogue()

    # --- settings

    async def plan(self, changes: Mapping[str, str]) -> ChangePlan:
        """What `changes` would do; nothing is touched."""
        snapshot = await self.snapshot()
        planned = await reconfigure.plan(
            self.site, changes, in_flight=snapshot.running, memory_bytes=memory_for_pool(snapshot)
        )
        return beside_own_pool(planned, snapshot)

    async def plan_rollback(self) -> ChangePlan:
        """Back to the settings before the ones in force."""
        snapshot = await self.snapshot()
        planned = await reconfigure.plan_rollback(
            self.site, in_flight=snapshot.running, memory_bytes=memory_for_pool(snapshot)
        )
        return beside_own_pool(planned, snapshot)

    async def find_strays(self, plan: ChangePlan) -> Sequence[Stray]:
        """Processes on the box that are in the way of the plan, to be shown before it is applied."""
        self.permit("apply")
        return await reconfigure.find_strays(self.site, plan)

    async def apply(self, plan: ChangePlan, choices: Choices | None = None) -> AsyncIterator[Phase | Outcome]:
        """Stage the plan and follow it to its Outcome. `choices` are the operator's, where there was something to choose."""
        names = ", ".join(difference.name for difference in plan.differences)
        with self._changing("apply", detail=names) as entry:
            async for item in reconfigure.apply(self.site, plan, choices=choices):
                if isinstance(item, Outcome):
                    entry.ended(item.status, item.request_id)
                yield item

    async def change_under_way(self) -> UnderWay | None:
        """The settings change that the box works on now, whoever asked for it; None, too, for a login that may not see it
        and so could give it no word."""
        try:
            return await reconfigure.change_under_way(self.site)
        except (NotAllowed, SudoRefused):
            return None

    async def follow_change(self, request_id: str) -> AsyncIterator[Phase | Outcome]:
        """A change that somebody asked for, from its first phase to its Outcome. Unless read-only, one that nobody on the
        box works on any more is brought to its end."""
        async for item in reconfigure.follow(self.site, request_id, only_look=self.read_only):
            yield item

    async def say(self, word: Literal["confirm", "revert"]) -> AsyncIterator[Phase | Outcome]:
        """Give the operator's word to the change that waits for one, and follow it to its Outcome."""
        with self._changing(word) as entry:
            entry.request_id = request_id = await reconfigure.waiting_change(self.site)
            await reconfigure.say(self.site, request_id, word)  # too late: the Outcome tells
            async for item in reconfigure.follow(self.site, request_id):
                if isinstance(item, Outcome):
                    entry.ended(item.status, item.request_id)
                yield item

    # --- install

    async def install(self, request: InstallRequest) -> AsyncIterator[Progress]:
        """Put the engine on the box, step by step; what is there already is left alone."""
        from console.box.install import install

        with self._changing("install", detail=request.model) as act:
            async for step in install(self.site.connection, self.site.manager, request):
                yield step
            act.ended("installed")

    async def uninstall(self) -> AsyncIterator[Progress]:
        """Stop the engine and take away everything that an install put there, step by step."""
        from console.box.uninstall import uninstall

        with self._changing("uninstall") as act:
            async for step in uninstall(self.site.connection, self.site.manager):
                yield step
            act.ended("uninstalled")

    async def examine(self) -> Sequence[Check]:
        """What would stop the engine from working on the box, each with its mend; nothing is touched."""
        from console.box.doctor import examine

        return await examine(self.site.connection, self.site.manager)

    async def mend(self, commands: Sequence[Sequence[str]]) -> None:
        """Run the commands of findings on the box, one after another; the first that fails is the last."""
        with self._changing("mend", detail="; ".join(" ".join(argv) for argv in commands)) as act:
            for argv in commands:
                done = await self.site.connection.run(argv)
                if done.exit_status != 0:
                    said = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.exit_status}"
                    raise OperatorError(f"{' '.join(argv)}: {said}", where=self.name)
            act.ended("mended")

    # --- service

    async def service(self, verb: str) -> ServiceState:
        """`start`, `stop` or `restart`, and wait until it is done. Raises OperatorError with the engine's last words."""
        with self._changing(verb) as entry:
            state = await ACTS[verb](self.site)
            entry.ended(state.state)
        return state

    # --- experiments; what they need (numpy, scipy, a database) is loaded when one is asked for

    async def run(self, playbook: Playbook, params: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Start a playbook detached and yield its events; the first names the run, the last is the result."""
        from console.experiments import conduct
        from console.run_bench import open_bench

        with self._changing("run", detail=playbook.id) as act:
            async with open_bench(self.site, await self.snapshot(), needs_engine=True) as bench:
                async for event in conduct.run(bench, playbook, params):
                    if event["type"] in ("run", "result"):
                        act.ended(event.get("status", "started"), event["run_id"])
                    yield event

    async def start_run(self, playbook: Playbook, params: Mapping[str, Any]) -> dict[str, Any]:
        """Start a playbook and leave it to itself; `attach` follows it later. Gives the event that names the run."""
        from console.experiments import conduct
        from console.run_bench import open_bench

        with self._changing("run", detail=playbook.id) as act:
            async with open_bench(self.site, await self.snapshot(), needs_engine=True) as bench:
                event = await conduct.start(bench, playbook, params)
            act.ended("started", event["run_id"])
        return event

    async def attach(self, run_id: str) -> AsyncIterator[dict[str, Any]]:
        """Events of a run from its start, then live; ends as `run` does."""
        from console.experiments import conduct
        from console.run_bench import open_bench

        async with open_bench(self.site, await self.snapshot(), needs_engine=False) as bench:
            async for event in conduct.attach(bench, run_id):
                yield event

    async def cancel(self, run_id: str) -> None:
        """Stop a run, and see that the engine works for nobody any more."""
        from console.experiments import conduct
        from console.run_bench import open_bench

        with self._changing("cancel") as act:
            async with open_bench(self.site, await self.snapshot(), needs_engine=False) as bench:
                await conduct.cancel(bench, run_id)
            act.ended("cancelled", run_id)

    # --- link

    def reconnect(self) -> None:
        """Try the link again at once."""
        self.site.connection.reconnect()

    async def close(self) -> None:
        """End the connection; what runs on the box runs on."""
        await self.site.connection.close()

    def _watch(self) -> Watch:
        return Watch(self.site, tag=self.target.tag, colour=self.target.colour)

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
