"""Host keys and logins as a real sshd answers them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
from box_machine import Box

from console.box.connection import connect
from console.box.errors import HostKeyChanged, HostKeyUnknown, LoginRefused

pytestmark = pytest.mark.box


def shown_by_ssh_keygen(known_hosts: Path) -> str:
    """The fingerprint as OpenSSH's own tool prints it."""
    return subprocess.run(
        ["ssh-keygen", "-lf", known_hosts], capture_output=True, text=True, check=True
    ).stdout.split()[1]


async def test_a_new_box_is_shown_by_the_fingerprint_openssh_shows_and_pinned_on_consent(
    box: Box, tmp_path: Path
) -> None:
    stranger = box.target("ops", own_known_hosts=tmp_path / "known_hosts")
    expected = shown_by_ssh_keygen(box.known_hosts)
    with pytest.raises(HostKeyUnknown) as caught:
        await connect(stranger)
    assert caught.value.fingerprint == expected
    async with await connect(stranger, accept_host_key=expected):
        pass
    assert await asyncio.to_thread(name_over_openssh, box, stranger.own_known_hosts) == "ops\n"


def name_over_openssh(box: Box, known_hosts: Path) -> str:
    """Who OpenSSH's own client is there, trusting nothing but `known_hosts`."""
    options = {"UserKnownHostsFile": str(known_hosts), "StrictHostKeyChecking": "yes", "BatchMode": "yes"}
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    argv = ["ssh", "-F", "none", *words, "-i", str(box.key), "-p", str(box.port), f"ops@{box.address}", "id", "-un"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def reinstalled(box: Box) -> Iterator[None]:
    """The box with a host key of its own making, as after a reinstallation."""
    key = "/etc/ssh/ssh_host_ed25519_key"
    box.run(
        ["sh", "-c", f"mkdir /root/keys && mv {key} {key}.pub /root/keys && ssh-keygen -q -t ed25519 -N '' -f {key}"]
    )
    box.restart_sshd()
    yield
    box.run(["sh", "-c", "mv /root/keys/* /etc/ssh && rmdir /root/keys"])
    box.restart_sshd()


async def test_a_reinstalled_box_is_a_full_stop_that_nothing_was_sent_to(box: Box, reinstalled: None) -> None:
    before = box.run(["sh", "-c", "journalctl -u ssh --no-pager | grep -c 'Accepted\\|Failed' || true"]).stdout
    with pytest.raises(HostKeyChanged) as caught:
        await connect(box.target("ops"))
    assert shown_by_ssh_keygen(box.known_hosts) in str(caught.value)
    after = box.run(["sh", "-c", "journalctl -u ssh --no-pager | grep -c 'Accepted\\|Failed' || true"]).stdout
    assert after == before


async def test_a_key_the_box_does_not_know_is_a_refused_login(box: Box, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(wrong)
    with pytest.raises(LoginRefused, match="does not let ops in"):
        await connect(replace(box.target("ops"), identity_files=(wrong,)))
