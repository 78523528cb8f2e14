"""Start, stop and restart, each to its end: what was asked for is reached, or the engine's own last line says why not."""

from __future__ import annotations

from console.box import journal
from console.box.values import ServiceState
from console.deployment.site import Site
from console.errors import ExitCode, OperatorError
from console.telemetry.reader import bare

BROKEN = ("failed", "start-limit-hit", "start-timeout", "stuck-in-stop", "not-installed")
"""States from which a start does not go on by itself."""
LAST_WORDS_LINES = 50
BAD_SETTINGS = 2
"""Exit status of an engine that cannot work with what it was given."""


async def start(site: Site) -> ServiceState:
    """Start the service and wait until it serves. Raises OperatorError with the engine's last words."""
    await site.manager.start()
    state = await site.manager.wait(lambda now: now.state == "serving" or now.state in BROKEN, _start_s(site))
    return await _up(site, state)


async def restart(site: Site) -> ServiceState:
    """Restart the service and wait until another run of it serves. Raises OperatorError as `start` does."""
    before = (await site.manager.state()).invocation
    await site.manager.restart()
    state = await site.manager.wait(
        lambda now: now.state in BROKEN or (now.state == "serving" and now.invocation != before), _start_s(site)
    )
    return await _up(site, state)


async def stop(site: Site) -> ServiceState:
    """Stop the service and wait until it has stopped."""
    await site.manager.stop()
    return await site.manager.wait(lambda now: now.state == "stopped" or now.state in BROKEN, site.limits.stop_s)


ACTS = {"start": start, "stop": stop, "restart": restart}


def _start_s(site: Site) -> float:
    return site.limits.stop_s + site.limits.start_s


async def _up(site: Site, state: ServiceState) -> ServiceState:
    """`state` if it serves. Otherwise the engine said why, and its last line is the reason."""
    if state.state == "serving":
        return state
    said = await _last_words(site, state.invocation)
    raise OperatorError(
        f"the service is {state.state}{f': {said}' if said else ''}",
        where=state.unit,
        mend=f"ddtree logs {site.connection.target.name} has the rest",
        exit_code=ExitCode.USAGE if state.exit_status == BAD_SETTINGS else ExitCode.FAILED,
    )


async def _last_words(site: Site, invocation: str | None) -> str | None:
    records = await journal.read_journal(site.connection, site.manager.journal_source(), lines=LAST_WORDS_LINES)
    name = site.deployment.identifier
    own = [
        record
        for record in records
        if record.invocation == invocation
        and (record.identifier == name if name else record.fields.get("_TRANSPORT") == "stdout")
    ]
    return bare(own[-1].message).strip() if own else None
