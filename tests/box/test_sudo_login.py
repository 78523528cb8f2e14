"""A system unit under a login that is not root: what sudo lets it do is done, and what it does not is told in one line."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from box_machine import Box, free_port
from fake_service import install_the_fake

from console.box.as_root import SudoRefused
from console.box.connection import Connection
from console.box.services import ServiceError, ServiceManager
from console.box.uninstall import uninstall
from console.deployment.change import Outcome
from console.errors import ExitCode
from console.host import Host, open_host
from console.run_bench import open_bench

pytestmark = [pytest.mark.box, pytest.mark.skipif(shutil.which("sudo") is None, reason="needs Debian package sudo")]
RULES = "/etc/sudoers.d/ddtree"


@pytest.fixture
async def served(
    box: Box, root: Connection, operators_own: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServiceManager]:
    """The fake engine serving as a system unit that root installed; `ops` has no rule in sudoers."""
    # The fake engine checks no files: the settings are read by nobody before the start.
    monkeypatch.setattr("console.deployment.bundled.Bundled.check_argv", lambda self, python: [])
    manager = await install_the_fake(box, root, free_port(), "system")
    yield manager
    box.run(["rm", "-f", RULES])
    async for _ in uninstall(root, manager):
        pass


@asynccontextmanager
async def host() -> AsyncIterator[Host]:
    """The host `box` as `ops` reaches it."""
    found = await open_host("box")
    try:
        assert (found.site.manager.scope, found.site.manager.needs_sudo) == ("system", True)
        yield found
    finally:
        await found.close()


def allow(box: Box, line: str) -> None:
    """Put a line into sudoers as an operator does, and have sudo's own checker read it."""
    box.run(["tee", RULES], input=f"{line}\n".encode())
    box.run(["chmod", "440", RULES])
    box.run(["visudo", "--check", "--quiet"])


def asked_of_sudo(box: Box) -> int:
    """How often `sudo` was run, by the box's own log."""
    return box.run(["journalctl", "--quiet", "-o", "cat", "_COMM=sudo"]).stdout.decode().count("COMMAND=")


async def test_without_a_rule_each_verb_is_refused_with_the_line_that_allows_it(
    box: Box, served: ServiceManager
) -> None:
    before = (await served.state()).invocation
    async with host() as found:
        for verb in ("stop", "restart", "start"):
            with pytest.raises(
                ServiceError, match=f"{verb} as root is refused: sudo: a password is required"
            ) as refused:
                await found.service(verb)
            assert refused.value.exit_code is ExitCode.PRECONDITION
            assert (refused.value.mend or "").startswith(f"put this line in {RULES} there: ops ALL=(root) NOPASSWD: /")
        shown = await found.snapshot()
        assert shown.service is not None and shown.service.state == "serving"
        with pytest.raises(SudoRefused, match=r"cat as root is refused.*ops ALL=\(root\) NOPASSWD: ALL$"):
            await found.plan({"page_size": "64"})
        assert await found.change_under_way() is None
        (told,) = [check for check in await found.examine() if check.name == "settings"]
        assert told.text == "/etc/ddtree/engine.toml: cat as root is refused: sudo: a password is required"
        assert (told.verdict, (told.mend or "")[-27:]) == ("warn", "ops ALL=(root) NOPASSWD: ALL"[-27:])
        asked = asked_of_sudo(box)
        for _ in range(3):  # reading what was refused a moment ago is not tried again
            await found.snapshot()
        assert asked_of_sudo(box) == asked
    assert (await served.state()).invocation == before


async def test_the_line_that_was_told_allows_the_verbs_and_no_more(box: Box, served: ServiceManager) -> None:
    async with host() as found:
        with pytest.raises(ServiceError) as refused:
            await found.service("stop")
        allow(box, (refused.value.mend or "").partition(" there: ")[2])
        first = (await served.state()).invocation
        assert (await found.service("restart")).state == "serving"
        second = (await served.state()).invocation
        assert second != first
        assert (await found.service("stop")).state == "stopped"
        assert (await found.service("start")).state == "serving"
        assert (await served.state()).invocation not in (first, second)
        with pytest.raises(SudoRefused):
            await found.plan({"page_size": "64"})
        direct = await found.site.connection.run(["sudo", "-n", "/usr/bin/systemctl", "stop", served.unit])
        assert direct.exit_status != 0  # another list of arguments is not allowed


async def test_a_login_that_sudo_lets_do_all_changes_settings_too(
    box: Box, root: Connection, served: ServiceManager
) -> None:
    allow(box, "ops ALL=(root) NOPASSWD: ALL")
    async with host() as found:
        planned = await found.plan({"page_size": "64"})
        assert await found.find_strays(planned) == ()
        *_, outcome = [item async for item in found.apply(planned)]
        assert isinstance(outcome, Outcome)
        assert (outcome.status, outcome.settings["page_size"]) == ("confirmed", 64), outcome
        async with open_bench(found.site, await found.snapshot(), needs_engine=False) as bench:
            assert bench.python == "python3"  # that of the installation is root's alone
        newest = (await found.history())[0]
        assert (newest.number, newest.outcome) == (1, "confirmed")
        back = await found.plan_rollback()
        *_, outcome = [item async for item in found.apply(back)]
        assert isinstance(outcome, Outcome) and outcome.settings["page_size"] == 16
    shown = box.run(["stat", "-c", "%U %a", served.layout.settings, f"{served.layout.state}/audit.jsonl"]).stdout
    assert shown.split() == [b"root", b"600"] * 2
