"""The bench of a run: the engine it measures, as it stands on the box now, and the store that its events go to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from console.deployment import reconfigure
from console.deployment.site import Site, read_base
from console.errors import ExitCode, OperatorError
from console.experiments.conduct import Bench
from console.experiments.remote import EngineUnderTest
from console.experiments.store import Store, default_store_folder
from console.snapshot import Snapshot


@asynccontextmanager
async def open_bench(site: Site, snapshot: Snapshot, *, needs_engine: bool) -> AsyncIterator[Bench]:
    """The bench on `site`, its store open. Raises OperatorError (exit 4) where an engine is needed and none answers."""
    host = site.connection.target.name
    if needs_engine and snapshot.engine is None:
        state = snapshot.service.state if snapshot.service else "unknown"
        raise OperatorError(
            f"no engine answers (service {state})",
            where=host,
            mend=f"ddtree start {host}",
            exit_code=ExitCode.PRECONDITION,
        )
    layout = site.manager.layout
    own = await site.connection.run(["test", "-x", layout.python])  # of a system installation, root's alone
    python = layout.python if own.exit_status == 0 else "python3"
    with Store(default_store_folder()) as store:
        restarts = partial(reconfigure.restart_kit, site, reconfigure.operator())
        under_test = await _under_test(site, snapshot)
        yield Bench(site.connection, host, under_test, store, python, restarts=restarts)


async def _under_test(site: Site, snapshot: Snapshot) -> EngineUnderTest:
    """The engine that runs measure: where the settings file puts it, and what it says of itself."""
    deployment, settings = site.deployment, snapshot.settings
    endpoint = deployment.endpoint(await read_base(site))
    engine = snapshot.engine
    return EngineUnderTest(
        port=endpoint.port,
        unit=site.manager.unit,
        kind=deployment.kind,
        model=engine.model if engine else None,
        max_context=settings.get("context_length") or (engine.max_context if engine else None),
        block_size=settings.get("block_size") or (engine.block_size if engine else None),
        page_size=settings.get("page_size"),
        api_key_file=endpoint.api_key_file or None,
    )
