"""Host keys: each way that one can be wrong has its own words, and no credential is sent before it is right."""

from __future__ import annotations

import base64
import hashlib
import hmac
import stat
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
from embedded_box import EmbeddedBox, Operator

from console.box.connection import connect
from console.box.errors import HostKeyChanged, HostKeyError, HostKeyRevoked, HostKeyUnknown
from console.box.target import Target
from console.box.trust import fingerprint, pin, read_known_keys


def line(target: Target, key: asyncssh.SSHKey, *, marker: str = "", name: str | None = None) -> str:
    name = name or f"[127.0.0.1]:{target.port}"
    return f"{marker}{name} {key.export_public_key().decode().strip()}\n"


def knowing(target: Target, *lines: str) -> Target:
    """The target, with a known_hosts file of these lines and nothing else."""
    target.own_known_hosts.write_text("".join(lines))
    return target


@pytest.fixture
def stranger(target: Target, tmp_path: Path) -> Target:
    """The embedded box as seen by somebody who was never there."""
    return replace(target, own_known_hosts=tmp_path / "config/known_hosts")


async def test_an_unknown_key_is_shown_and_nothing_is_sent(embedded: EmbeddedBox, stranger: Target) -> None:
    with pytest.raises(HostKeyUnknown) as caught:
        await connect(stranger)
    shown = fingerprint(embedded.host_keys[0])
    assert caught.value.exit_code == 2 and caught.value.fingerprint == shown
    assert "never seen" in str(caught.value) and f"--accept-host-key {shown}" in str(caught.value)
    assert str(caught.value).count("\n") == 0
    assert embedded.logins == [] and not stranger.own_known_hosts.exists()


async def test_consent_pins_the_key_so_that_nobody_is_asked_again(embedded: EmbeddedBox, stranger: Target) -> None:
    operator = Operator(trusts=True)
    async with await connect(stranger, operator):
        pass
    assert operator.asked == [fingerprint(embedded.host_keys[0])]
    assert stat.S_IMODE(stranger.own_known_hosts.stat().st_mode) == 0o600
    async with await connect(stranger):
        pass


async def test_without_consent_nothing_is_pinned(embedded: EmbeddedBox, stranger: Target) -> None:
    with pytest.raises(HostKeyUnknown):
        await connect(stranger, Operator(trusts=False))
    assert not stranger.own_known_hosts.exists() and embedded.logins == []


async def test_only_the_exact_fingerprint_is_accepted_on_the_command_line(
    embedded: EmbeddedBox, stranger: Target
) -> None:
    shown = fingerprint(embedded.host_keys[0])
    with pytest.raises(HostKeyUnknown):
        await connect(stranger, accept_host_key=shown[:-1])
    assert embedded.logins == []
    async with await connect(stranger, accept_host_key=shown):
        assert embedded.logins == ["ops"]


async def test_a_changed_key_is_a_full_stop_with_both_fingerprints(embedded: EmbeddedBox, target: Target) -> None:
    old = asyncssh.generate_private_key("ssh-ed25519")
    knowing(target, "# a comment\n", line(target, old))
    shown = fingerprint(embedded.host_keys[0])
    with pytest.raises(HostKeyChanged) as caught:
        await connect(target, Operator(trusts=True), accept_host_key=shown)
    said = str(caught.value)
    assert "CHANGED" in said and fingerprint(old) in said and shown in said and f"{target.own_known_hosts}:2" in said
    assert caught.value.exit_code == 2 and embedded.logins == []


async def test_a_host_known_by_another_type_of_key_is_told_so(embedded: EmbeddedBox, target: Target) -> None:
    other = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    with pytest.raises(HostKeyChanged) as caught:
        await connect(knowing(target, line(target, other)), Operator(trusts=True))
    assert "another type of key" in str(caught.value) and "ecdsa-sha2-nistp256" in str(caught.value)
    assert embedded.logins == []


async def test_the_known_type_is_asked_for_when_the_server_has_several(embedded: EmbeddedBox, target: Target) -> None:
    await embedded.stop()
    embedded.host_keys.append(asyncssh.generate_private_key("ecdsa-sha2-nistp256"))
    await embedded.listen()
    moved = knowing(replace(target, port=embedded.port))
    async with await connect(knowing(moved, line(moved, embedded.host_keys[1]))):
        assert embedded.logins == ["ops"]


async def test_a_new_host_is_shown_by_the_key_that_openssh_would_show(embedded: EmbeddedBox, target: Target) -> None:
    await embedded.stop()
    embedded.host_keys = [asyncssh.generate_private_key("ecdsa-sha2-nistp256"), *embedded.host_keys]
    await embedded.listen()
    with pytest.raises(HostKeyUnknown) as caught:
        await connect(knowing(replace(target, port=embedded.port)))
    assert caught.value.key_type == "ssh-ed25519"


async def test_a_revoked_key_is_refused_even_where_it_is_also_trusted(embedded: EmbeddedBox, target: Target) -> None:
    key = embedded.host_keys[0]
    knowing(target, line(target, key), line(target, key, marker="@revoked ", name="*"))
    with pytest.raises(HostKeyRevoked) as caught:
        await connect(target, Operator(trusts=True), accept_host_key=fingerprint(key))
    assert "revoked" in str(caught.value) and fingerprint(key) in str(caught.value)
    assert embedded.logins == []


async def test_a_host_certificate_of_a_known_authority_is_enough(embedded: EmbeddedBox, target: Target) -> None:
    authority = asyncssh.generate_private_key("ssh-ed25519")
    await embedded.stop()
    embedded.host_certificates = [
        authority.generate_host_certificate(embedded.host_keys[0], "box", principals=["127.0.0.1"])
    ]
    await embedded.listen()
    moved = replace(target, port=embedded.port)
    async with await connect(knowing(moved, line(moved, authority, marker="@cert-authority "))):
        assert embedded.logins == ["ops"]
    embedded.logins.clear()
    wrong = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(HostKeyError):
        await connect(knowing(moved, line(moved, wrong, marker="@cert-authority ")))
    assert embedded.logins == []


def test_hashed_names_patterns_and_bare_names_match_and_bad_lines_are_passed_over(
    target: Target, embedded: EmbeddedBox
) -> None:
    key = embedded.host_keys[0]
    salt = b"0123456789abcdefghij"
    name = f"[127.0.0.1]:{target.port}"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    hashed = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    junk = "this is no entry\n|1|broken\n@odd x ssh-ed25519 AAAA\n"
    for entry in (hashed, "[127.0.0.*]:*", "127.0.0.1"):
        found = read_known_keys(knowing(target, junk, line(target, key, name=entry)))
        assert [(known.marker, known.line) for known in found.entries] == [("trusted", 4)], entry


def test_an_entry_with_the_port_wins_over_the_bare_name(target: Target, embedded: EmbeddedBox) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519")
    knowing(target, line(target, other, name="127.0.0.1"), line(target, embedded.host_keys[0]))
    assert read_known_keys(target).keys("trusted") == [embedded.host_keys[0].convert_to_public()]


def test_pinning_keeps_what_was_there_and_mends_a_missing_newline(target: Target, embedded: EmbeddedBox) -> None:
    target.own_known_hosts.write_text("other ssh-ed25519 AAAA")
    pin(target, embedded.host_keys[0])
    assert target.own_known_hosts.read_text().splitlines()[0] == "other ssh-ed25519 AAAA"
    assert len(read_known_keys(target).entries) == 1


async def test_each_jump_hosts_key_is_checked(embedded: EmbeddedBox, target: Target, tmp_path: Path) -> None:
    stranger = replace(target, name="hop", own_known_hosts=tmp_path / "empty")
    with pytest.raises(HostKeyUnknown, match="hop"):
        await connect(replace(target, jumps=(stranger,)))
    assert embedded.logins == []
    async with await connect(replace(target, jumps=(target,))) as connection:
        assert embedded.logins == ["ops", "ops"] and len(embedded.connections) == 2
        assert (await connection.run(["echo", "through"])).stdout == b"through\n"
