"""Watching one host: journal, `/server_info`, service state and draft trees, gathered into what is Known of it.

Each source has its own loop and picks up again by itself after a lost link; what is known stays meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable

from console.box.errors import BoxError, LinkError
from console.box.journal import JournalError, follow, read_journal
from console.box.values import LinkState, Record, ServiceState
from console.deployment.site import Site, read_base
from console.engine_http import EngineHttp
from console.engine_report import read_gpus, read_machine, read_server_info, read_tree
from console.errors import OperatorError
from console.known import Known
from console.snapshot import Snapshot
from console.telemetry.reader import LogReader, bare
from console.telemetry.sample import Sample

POLL_S = 1.0
SERVICE_EVERY_S = 10.0
"""The engine answering is proof enough that its service is up; the manager is asked in between all the same."""
MACHINE_EVERY_S = 5.0
TREES_AGAIN_S = 2.0
JOURNAL_AGAIN_S = 5.0
LEAST_GAP_S = 0.1
"""At most ten Snapshots a second."""
BACKLOG_LINES = 2000
GLANCE_LINES = 400
"""Journal lines that one look reads back for the newest decode window."""


class Watch:
    """The latest of everything about one host. `look` reads it once; `snapshots` follows it."""

    def __init__(
        self,
        site: Site,
        *,
        tag: str | None = None,
        colour: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known = Known(site.connection.target.name, site.connection.state, tag, colour)
        self._site = site
        self._clock = clock
        self._reader: LogReader = site.deployment.reader()
        self._changed = asyncio.Event()
        self._http: EngineHttp | None = None
        self._service_s = self._machine_s = float("-inf")

    async def look(self) -> Snapshot:
        """One Snapshot from fresh answers. Raises LinkError."""
        await self._poll()
        if self.known.service is not None and self.known.service.state != "not-installed":
            self._take_records(await self._glance(), live=False)
        return self.known.snapshot(self._clock())

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """A Snapshot whenever something changed, at most ten a second, until the connection is closed."""
        unhook = self._site.connection.on_state(self._link_changed)
        loops = [asyncio.create_task(loop()) for loop in (self._poll_on, self._follow_journal, self._follow_trees)]
        self._changed.set()
        try:
            while await self._news(loops):
                yield self.known.snapshot(self._clock())
                await asyncio.sleep(LEAST_GAP_S)
        finally:
            unhook()
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)
            await self.close()

    async def close(self) -> None:
        """End the HTTP connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _news(self, loops: list[asyncio.Task[None]]) -> bool:
        """Wait for a change. False once the connection has been closed; a loop that failed raises its error here."""
        change = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([change, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        for loop in loops:
            if loop.done():
                try:
                    loop.result()
                except LinkError:
                    return False  # raised for good only once it is closed
        self._changed.clear()
        return True

    def _set(self, known: Known) -> None:
        self.known = known
        self._changed.set()

    def _link_changed(self, link: LinkState) -> None:
        self._set(self.known.with_link(link))

    # --- the engine, its service, its box

    async def _poll_on(self) -> None:
        while True:
            await self._site.connection.link.wait_up()
            began_s = self._clock()
            try:
                await self._poll()
            except LinkError:
                continue  # wait_up tells a link that will come back from one that was closed
            await asyncio.sleep(max(0.0, POLL_S - (self._clock() - began_s)))

    async def _poll(self) -> None:
        restarted = False
        http = self._http or await self._read_settings()
        info = await http.server_info() if http is not None else None
        if info is not None and http is not None:
            report = read_server_info(info, http.endpoint.port)
            restarted = self.known.report is None or self.known.report.invocation != report.invocation
            self._set(self.known.with_report(report, self._clock()))
        if info is None or restarted or self._clock() - self._service_s >= SERVICE_EVERY_S:
            self._service_s = self._clock()
            await self._ask_service()
        if info is None or restarted:
            await self._read_settings()  # another port, perhaps, and other values to read back
        if info is None and self._clock() - self._machine_s >= MACHINE_EVERY_S:
            self._machine_s = self._clock()
            await self._read_machine()

    async def _ask_service(self) -> None:
        state = await self._service_state()  # on a line of its own: the other loops add to what is known meanwhile
        self._set(self.known.with_service(state, self._clock()))

    async def _service_state(self) -> ServiceState:
        manager = self._site.manager
        try:
            return await manager.state()
        except LinkError:
            raise
        except BoxError as error:  # the manager does not answer, and says why
            return ServiceState("unknown", manager.unit, manager.scope, status_text=str(error))

    async def _read_settings(self) -> EngineHttp | None:
        """Where the settings file says that the engine answers; None without a file that says so."""
        deployment = self._site.deployment
        try:
            text = await read_base(self._site)
            endpoint = deployment.endpoint(text)
        except LinkError:
            raise
        except OperatorError:  # nothing installed, or a file broken by hand: an engine cannot start from it either
            return None
        if self._http is None or self._http.endpoint != endpoint:
            await self.close()
            self._http = EngineHttp(self._site.connection, endpoint, deployment)
        asked = deployment.read_back(text)
        if asked != self.known.asked:
            self._set(self.known.with_asked(asked))
        return self._http

    async def _read_machine(self) -> None:
        """The box by itself, while no engine tells of it."""
        if self.known.service is None or self.known.service.state == "not-installed":
            return
        layout = self._site.manager.layout
        argv = ["env", "-C", layout.current, layout.python, "-m", "engine", "host", "--json"]
        shown = await self._site.connection.run(argv)
        if shown.exit_status == 0:
            data = json.loads(shown.stdout)
            self._set(self.known.with_machine(read_machine(data), read_gpus(data), self._clock()))

    # --- the journal

    async def _follow_journal(self) -> None:
        live = False
        cursor: str | None = None
        while True:
            try:
                source = self._site.manager.journal_source()
                async for batch in follow(self._site.connection, source, cursor=cursor, lines=BACKLOG_LINES):
                    cursor = batch[-1].cursor
                    self._take_records(batch, live=live)
                    live = True
            except LinkError:
                raise
            except BoxError:
                await asyncio.sleep(
                    JOURNAL_AGAIN_S
                )  # nothing installed yet, or no right to read: the Log screen says so

    async def _glance(self) -> list[Record]:
        try:
            return await read_journal(self._site.connection, self._site.manager.journal_source(), lines=GLANCE_LINES)
        except JournalError:
            return []  # no right to read it; `logs` and `doctor` say so

    def _take_records(self, records: list[Record], *, live: bool) -> None:
        samples: list[Sample] = []
        for record in records:
            if record.marker is None:
                samples += self._reader.read(bare(record.message), record.time).samples
            elif record.marker != "reboot":
                self._reader.lost(record.message)
        for sample in samples:
            if sample.kind == "ready":
                self._set(self.known.with_started(self._site.deployment.from_start(sample)))
        self._set(self.known.with_records(records, samples, self._clock(), live=live))

    # --- draft trees

    async def _follow_trees(self) -> None:
        while True:
            await self._site.connection.link.wait_up()
            if self._http is not None and self.known.report is not None:
                try:
                    async for event in self._http.trees():
                        tree = read_tree(event)
                        if tree is not None:
                            self._set(self.known.with_tree(tree))
                except LinkError:
                    continue  # as above
            await asyncio.sleep(TREES_AGAIN_S)
