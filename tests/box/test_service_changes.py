"""The settings transaction on a real machine: systemd units, journald's lines, a link that breaks, two operators.

The engine is the one with faults to order, in the real one's place in the unit, so that a restart takes a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from box_machine import Box, free_port
from fake_service import install_the_fake
from link_proxy import LinkProxy, eventually

from console.box.connection import Connection, connect
from console.box.services import ServiceManager, manager_for
from console.box.target import Target
from console.box.timing import Timing
from console.box.uninstall import uninstall
from console.deployment.change import Choices, Outcome, Phase
from console.deployment.generations import history
from console.deployment.reconfigure import (
    apply,
    find_strays,
    follow,
    new_request_id,
    plan,
    plan_rollback,
    say,
)
from console.deployment.site import Limits, Site

pytestmark = pytest.mark.box

FAKE = Path("tests/console/agent/fake_engine.py")
TINY = Path("tests/data/tiny-ddtree")
REFUSES = 901  # fake_engine.REFUSES
LIMITS = Limits(stop_s=20, start_s=20, ready_s=5, soak_s=0.3, drain_s=20, dry_run=False)  # it checks no files
QUICK = Timing(first_retry_s=0.05, last_retry_s=0.2, heartbeat_s=0.2, slow_s=0.5, keepalive_s=1.0, keepalive_count=1)


@dataclass(frozen=True)
class Served:
    """The fake engine serving as a user unit of `ops`."""

    box: Box
    manager: ServiceManager
    site: Site

    def settings(self) -> str:
        return self.box.run(["cat", self.manager.layout.settings]).stdout.decode()

    def through(self, connection: Connection) -> Site:
        """The same engine, by another connection."""
        return Site(connection, manager_for(connection, self.manager.layout), limits=LIMITS)


@pytest.fixture
async def served(box: Box, ops: Connection) -> AsyncIterator[Served]:
    manager = await install_the_fake(box, ops, free_port())
    try:
        yield Served(box, manager, Site(ops, manager, limits=LIMITS))
    finally:
        async for _ in uninstall(ops, manager):
            pass


async def end_of(
    site: Site, changes: dict[str, str], request_id: str | None = None, choices: Choices | None = None
) -> Outcome:
    planned = await plan(site, changes)
    *_, outcome = [item async for item in apply(site, planned, request_id=request_id, choices=choices)]
    assert isinstance(outcome, Outcome)
    return outcome


async def test_what_the_engine_refuses_is_taken_back_and_its_own_line_is_the_reason(served: Served) -> None:
    before = served.settings()
    outcome = await end_of(served.site, {"tree_budget": str(REFUSES)})
    assert (outcome.status, outcome.generation) == ("rolled_back", 1)
    assert outcome.reason == "/models/x: the tree does not fit; use a smaller one"
    assert served.settings() == before
    assert outcome.settings["tree_budget"] == 16
    assert (await served.manager.state()).state == "serving"


async def test_a_change_is_confirmed_and_rollback_goes_back_by_the_same_way(served: Served) -> None:
    assert (await end_of(served.site, {"page_size": "64"})).status == "confirmed"
    back = await plan_rollback(served.site)
    *_, outcome = [item async for item in apply(served.site, back, who="bo@desk")]
    assert isinstance(outcome, Outcome) and outcome.settings["page_size"] == 16
    told = [(g.number, g.outcome, g.who) for g in await history(served.site)]
    assert told[0] == (2, "confirmed", "bo@desk")
    assert [outcome for _, outcome, _ in told] == ["confirmed", "confirmed", "installed"]


async def test_a_stale_plan_is_refused_and_nothing_restarts(served: Served) -> None:
    stale = await plan(served.site, {"page_size": "32"})
    assert (await end_of(served.site, {"page_size": "64"})).status == "confirmed"
    before = await served.manager.state()
    *_, outcome = [item async for item in apply(served.site, stale)]
    assert isinstance(outcome, Outcome) and outcome.status == "base_changed"
    assert (await served.manager.state()).invocation == before.invocation
    assert "page_size = 64" in served.settings()


async def test_of_two_operators_at_once_one_is_told_that_the_other_is_at_it(served: Served, box: Box) -> None:
    async with await connect(box.target("ops")) as second:
        other = served.through(second)
        mine, theirs = await plan(served.site, {"page_size": "64"}), await plan(other, {"page_size": "128"})

        async def run(site: Site, who: str) -> Outcome:
            *_, outcome = [item async for item in apply(site, mine if site is served.site else theirs, who=who)]
            assert isinstance(outcome, Outcome)
            return outcome

        ends = await asyncio.gather(run(served.site, "ana@laptop"), run(other, "bo@desk"))
    assert sorted(outcome.status for outcome in ends) == ["busy", "confirmed"]
    lost = next(outcome for outcome in ends if outcome.status == "busy")
    assert lost.reason is not None and "another change is under way" in lost.reason


async def test_a_cut_link_changes_nothing_the_box_finishes_and_the_outcome_is_read_on_return(
    served: Served, proxy: LinkProxy, proxied: Target
) -> None:
    async with await connect(proxied, timing=QUICK) as connection:
        site = served.through(connection)
        request_id = new_request_id()
        items = apply(site, await plan(site, {"page_size": "64"}), request_id=request_id)
        first = await anext(items)
        assert isinstance(first, Phase) and first.name == "staged"
        await proxy.cut()
        box_alone = [item async for item in follow(served.site, request_id)][-1]  # over the link that was not cut
        assert isinstance(box_alone, Outcome) and box_alone.status == "confirmed"
        await proxy.open()
        *_, outcome = [item async for item in items]
    assert isinstance(outcome, Outcome)
    assert (outcome.status, outcome.settings["page_size"]) == ("confirmed", 64)
    again = [item async for item in apply(served.site, await plan(served.site, {}), request_id=request_id)][-1]
    assert again == outcome  # asked once more, it only tells


async def test_a_frozen_link_changes_nothing_either(served: Served, proxy: LinkProxy, proxied: Target) -> None:
    """As when the laptop is stopped in the middle: nothing is reset, nothing answers, and the box goes on alone."""
    async with await connect(proxied, timing=QUICK) as connection:
        site = served.through(connection)
        request_id = new_request_id()
        items = apply(site, await plan(site, {"page_size": "64"}), request_id=request_id)
        await anext(items)
        proxy.freeze()
        *_, alone = [item async for item in follow(served.site, request_id)]
        assert isinstance(alone, Outcome) and alone.status == "confirmed"
        proxy.thaw()
        *_, outcome = [item async for item in items]
    assert isinstance(outcome, Outcome) and outcome.status == "confirmed"


async def test_a_closed_connection_leaves_the_outcome_unknown_here_and_known_there(
    served: Served, proxied: Target
) -> None:
    request_id = new_request_id()
    async with await connect(proxied, timing=QUICK) as connection:
        site = served.through(connection)
        items = apply(site, await plan(site, {"page_size": "64"}), request_id=request_id)
        await anext(items)
        await connection.close()
        *_, here = [item async for item in items]
    assert isinstance(here, Outcome) and here.status == "unknown"
    there = [item async for item in follow(served.site, request_id)][-1]
    assert isinstance(there, Outcome) and there.status == "confirmed"


async def test_a_stray_engine_is_shown_with_its_memory_and_ended_on_consent(served: Served, ops: Connection) -> None:
    argv = [str(served.box.python), "-c", "import time; time.sleep(600)", "--config", served.manager.layout.settings]
    await ops.run(["systemd-run", "--user", "--quiet", "--unit=stray", *argv])
    planned = await plan(served.site, {"page_size": "64"})
    (stray,) = await find_strays(served.site, planned)
    assert stray.command.endswith(f"--config {served.manager.layout.settings}") and stray.memory_bytes > 1_000_000
    refused = await end_of(served.site, {"page_size": "64"})
    assert refused.status == "rejected"
    assert refused.reason is not None and refused.reason.startswith(f"process {stray.pid} (")
    ended = await end_of(served.site, {"page_size": "64"}, choices=Choices(end=(stray,)))
    assert ended.status == "confirmed"
    assert await find_strays(served.site, planned) == ()


async def test_a_change_waits_for_the_operators_word_over_another_connection(served: Served, box: Box) -> None:
    request_id = new_request_id()
    choices = Choices(confirm_s=60)
    items = apply(served.site, await plan(served.site, {"page_size": "64"}), request_id=request_id, choices=choices)
    async with await connect(box.target("ops")) as second:
        async for item in items:
            if isinstance(item, Phase) and item.name == "waiting":
                assert item.text == "60 s to confirm"
                assert await say(served.through(second), request_id, "confirm")
            last = item
        assert isinstance(last, Outcome) and last.status == "confirmed"
        assert not await say(served.through(second), request_id, "revert")


async def test_a_change_whose_program_was_killed_is_taken_back_without_being_asked(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.deployment.reconfigure.SILENT_S", 0.5)
    before = served.settings()
    request_id = new_request_id()
    items = apply(
        served.site,
        await plan(served.site, {"page_size": "64"}),
        request_id=request_id,
        choices=Choices(confirm_s=600),
    )
    async for item in items:
        if isinstance(item, Phase) and item.name == "waiting":  # all of it at once, as a crash of the box would
            served.box.run(["pkill", "-KILL", "-f", f"apply-.*run {request_id}"])
        last = item
    assert isinstance(last, Outcome) and last.status == "rolled_back"
    assert last.reason == "the change was interrupted on the box"
    assert served.settings() == before


async def test_a_start_after_a_power_cut_in_mid_change_finds_the_old_settings(served: Served) -> None:
    before = served.settings()
    request_id = new_request_id()
    planned = await plan(served.site, {"page_size": "64"})
    async for item in apply(served.site, planned, request_id=request_id, choices=Choices(confirm_s=600)):
        if isinstance(item, Phase) and item.name == "waiting":
            break
    served.box.run(["pkill", "-KILL", "-f", f"apply-.*run {request_id}"])
    assert served.settings() != before
    await served.manager.restart()  # as the next boot would, with nobody looking
    await eventually(lambda: served.settings() == before)
    *_, outcome = [item async for item in follow(served.site, request_id)]
    assert isinstance(outcome, Outcome) and outcome.status == "rolled_back"
    assert outcome.reason == "the machine went down in the middle of the change"
    await served.manager.wait(lambda now: now.state == "serving", 20)
