"""The real box, booted once for all tests that ask for it, and the network between it and the console."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from box_machine import Box, boot, why_not
from link_proxy import LinkProxy

from console.box.connection import Connection, connect
from console.box.target import Target


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A booted machine (a few seconds, once). Skips, saying why, where there cannot be one."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    found = boot(tmp_path_factory.mktemp("box"))
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
async def ops(box: Box) -> AsyncIterator[Connection]:
    """A connection as the ordinary user `ops`."""
    async with await connect(box.target("ops")) as connection:
        yield connection


@pytest.fixture
def operators_own(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration in which the box is the host `box`, reached as `ops`, and a state folder of the test's own."""
    config = tmp_path / "config" / "ddtree"
    config.mkdir(parents=True)
    hosts = f'[box]\naddress = "127.0.0.1"\nport = {box.port}\nuser = "ops"\nkey = "{box.key}"\n'
    (config / "hosts.toml").write_text(hosts)
    (config / "known_hosts").write_text(box.known_hosts.read_text())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
async def root(box: Box) -> AsyncIterator[Connection]:
    """A connection as root."""
    async with await connect(box.target("root")) as connection:
        yield connection


@pytest.fixture
async def proxy(box: Box) -> AsyncIterator[LinkProxy]:
    """A way to the box's sshd that a test can cut; `proxied` is the box at its far end."""
    found = LinkProxy(box.port)
    await found.open()
    yield found
    await found.cut()


@pytest.fixture
def proxied(box: Box, proxy: LinkProxy, tmp_path: Path) -> Target:
    """The box as `ops` reaches it through the proxy."""
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(box.known_hosts.read_text().replace(f":{box.port} ", f":{proxy.port} "))
    return box.target("ops", port=proxy.port, own_known_hosts=known_hosts)
