"""An embedded SSH server and the Target that reaches it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest
from embedded_box import EmbeddedBox

from console.box.target import Target


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[EmbeddedBox]:
    """A listening server with an Ed25519 host key, and one client key that it lets in."""
    keys = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(2)]
    found = EmbeddedBox(tmp_path / "home", [keys[0]], keys[1])
    found.folder.mkdir()
    await found.listen()
    yield found
    await found.stop()


@pytest.fixture
def target(embedded: EmbeddedBox, tmp_path: Path) -> Target:
    """The embedded box, its host key known and its client key in a file."""
    key = tmp_path / "id"
    embedded.client_key.write_private_key(key)
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(known_line(embedded.port, embedded.host_keys[0]))
    return Target(
        name="lab",
        ssh_name="127.0.0.1",
        address="127.0.0.1",
        port=embedded.port,
        user="ops",
        own_known_hosts=known_hosts,
        identity_files=(key,),
        only_these_keys=True,
    )


def known_line(port: int, key: asyncssh.SSHKey, marker: str = "") -> str:
    return f"{marker}[127.0.0.1]:{port} {key.export_public_key().decode()}"
