"""Host keys: which one is expected, what to say of one that is not, and writing down one that the operator accepts.

Strict always. asyncssh reports an unknown and a changed key alike, so the server's key is caught during the
handshake (`KeyWitness`) and judged here. No credential is sent before the key is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import asyncssh

from console.box.errors import HostKeyChanged, HostKeyError, HostKeyRevoked, HostKeyUnknown
from console.box.prompts import HostKeyQuestion
from console.box.target import Target
from console.private_file import write_private

Marker = Literal["trusted", "authority", "revoked"]


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that speaks of the host in question."""

    key: asyncssh.SSHKey
    marker: Marker
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class KnownKeys:
    """All that the known_hosts files say of one host."""

    entries: tuple[KnownKey, ...]

    def keys(self, marker: Marker) -> list[asyncssh.SSHKey]:
        return [entry.key for entry in self.entries if entry.marker == marker]

    def for_handshake(
        self,
    ) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]:
        """(trusted, authorities, revoked) in the form asyncssh takes; a revoked key is trusted nowhere."""
        revoked = self.keys("revoked")
        return (
            [key for key in self.keys("trusted") if key not in revoked],
            [key for key in self.keys("authority") if key not in revoked],
            revoked,
        )


def read_known_keys(target: Target) -> KnownKeys:
    """What the console's own file and the user's and system's known_hosts say of `target`.

    As in OpenSSH, a port other than 22 is looked up as `[host]:port` first, and by the bare name if that finds
    nothing. Lines that cannot be read are no lines.
    """
    lines = [
        (file, number, line)
        for file in dict.fromkeys((target.own_known_hosts, *target.known_hosts))
        for number, line in _lines(file)
    ]
    name = target.host_key_name
    entries: list[KnownKey] = []
    if target.port != 22:
        entries = list(_matching(lines, f"[{name}]:{target.port}"))
    return KnownKeys(tuple(entries or _matching(lines, name)))


def _lines(file: Path) -> list[tuple[int, str]]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []  # absent or closed to us: it vouches for nothing
    return list(enumerate(text.splitlines(), start=1))


def _matching(lines: Iterable[tuple[Path, int, str]], name: str) -> Iterable[KnownKey]:
    for file, number, line in lines:
        try:
            trusted, authorities, revoked, *_ = asyncssh.import_known_hosts(line).match(name, "", None)
        except ValueError:
            continue  # OpenSSH skips a line it cannot read as well
        found: tuple[tuple[Marker, Sequence[asyncssh.SSHKey]], ...] = (
            ("trusted", trusted),
            ("authority", authorities),
            ("revoked", revoked),
        )
        for marker, keys in found:
            yield from (KnownKey(key, marker, file, number) for key in keys)


class KeyWitness(asyncssh.SSHClient):
    """Keeps the host key a server showed when it was not among the expected ones, and trusts nothing by itself."""

    def __init__(self) -> None:
        self.shown: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.shown = key
        return False

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.shown = key
        return False


def host_key_algorithms(known: KnownKeys) -> str | Sequence[str]:
    """The order in which to ask for host key types: those already known first, then the rest in OpenSSH's order.

    The rest is asked for too, so that a server which now has another type of key is recognised as changed, instead of
    failing with "no matching host key type"; and in that order, so that the fingerprint of a new host is the one that
    `ssh` shows.
    """
    trusted, authorities, _ = known.for_handshake()
    if authorities:
        return "default"  # certificates before plain keys
    first = [algorithm.decode("ascii") for key in trusted for algorithm in key.sig_algorithms]
    return list(dict.fromkeys([*first, *_PLAIN_ALGORITHMS]))


_PLAIN_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-256",
    "rsa-sha2-512",
)


def fingerprint(key: asyncssh.SSHKey) -> str:
    """`SHA256:…`, as `ssh-keygen -l` prints it."""
    return key.get_fingerprint("sha256")


def key_type(key: asyncssh.SSHKey) -> str:
    """`ssh-ed25519` and the like."""
    return key.get_algorithm()


def judge(target: Target, known: KnownKeys, shown: asyncssh.SSHKey | None, reason: str) -> HostKeyError:
    """The error for a host key that asyncssh did not accept: `shown` is what the witness saw, `reason` asyncssh's text.

    asyncssh refuses a revoked key and a certificate that is out of date or made for another host before it asks
    the witness, so those come with nothing shown.
    """
    where = f"{target.name} ({target.address}:{target.port})"
    if shown is None:
        if "revoked" in reason:
            marks = [entry for entry in known.entries if entry.marker == "revoked"]
            places = ", ".join(f"{entry.place} {fingerprint(entry.key)}" for entry in marks)
            return HostKeyRevoked(
                f"its host key is marked revoked ({places})", where=where, mend="do not connect; ask who runs the box"
            )
        return HostKeyError(
            reason, where=where, mend="its host certificate is not valid for this name; ask who runs the box"
        )
    trusted = [entry for entry in known.entries if entry.marker in ("trusted", "authority")]
    if not trusted:
        return HostKeyUnknown(
            f"host key never seen before: {key_type(shown)} {fingerprint(shown)}",
            where=where,
            mend=f"compare it with the box's own, then --accept-host-key {fingerprint(shown)}",
            key_type=key_type(shown),
            fingerprint=fingerprint(shown),
        )
    expected = ", ".join(f"{key_type(entry.key)} {fingerprint(entry.key)} at {entry.place}" for entry in trusted)
    if key_type(shown) in {key_type(entry.key) for entry in trusted}:
        what = "HOST KEY CHANGED: another machine may be answering"
    else:
        what = "host known by another type of key than it shows now"
    return HostKeyChanged(
        f"{what}; expected {expected}; shown {key_type(shown)} {fingerprint(shown)}",
        where=where,
        mend="if the box was reinstalled, remove that line by hand and connect again",
    )


def question(target: Target, key: asyncssh.SSHKey) -> HostKeyQuestion:
    """What to show an operator who is asked to trust `key`."""
    return HostKeyQuestion(target.name, target.address, target.port, key_type(key), fingerprint(key))


def pin(target: Target, key: asyncssh.SSHKey) -> None:
    """Append `key` for `target` to the console's own known_hosts, whole or not at all, readable by the user alone."""
    name = target.host_key_name if target.port == 22 else f"[{target.host_key_name}]:{target.port}"
    line = f"{name} {key.export_public_key('openssh').decode('ascii').strip()}\n"
    file = target.own_known_hosts
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    write_private(file, old + ("\n" if old and not old.endswith("\n") else "") + line)
