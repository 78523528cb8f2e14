"""Target: everything needed to reach one box, resolved once from the config files and handed around as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Scope = Literal["system", "user", "supervisor"]
DEFAULT_UNIT = "ddtree-engine.service"


@dataclass(frozen=True)
class Target:
    """One box and how to reach it. `console.config.resolve` makes it; a jump host is a Target of its own."""

    name: str
    """What the operator calls it; shown on every screen."""
    ssh_name: str
    """What `Host` blocks of the SSH config are matched against: an alias or an address."""
    address: str
    """Where TCP goes, and what the host key is looked up under (unless the config sets HostKeyAlias)."""
    port: int
    user: str
    own_known_hosts: Path
    """The console's own file; consent to a new host key is written here and nowhere else."""
    identity_files: tuple[Path, ...] = ()
    """Private keys to offer, those of them that exist."""
    only_these_keys: bool = False
    """True: offer `identity_files` and nothing else (no agent); each of them must exist."""
    identities_only: bool = False
    """True: of the agent's keys, offer only those that `identity_files` name."""
    known_hosts: tuple[Path, ...] = ()
    """Further known_hosts files, the user's and the system's; files that do not exist count as empty."""
    ssh_config: tuple[Path, ...] = ()
    """SSH config files in order of precedence; read again at every connect, so that edits count."""
    host_key_alias: str | None = None
    jumps: tuple[Target, ...] = ()
    """Hosts to go through, first hop first; each one's host key is checked like the box's own."""
    proxy_command: bool = False
    """True: the SSH config names a ProxyCommand, so that no TCP connection is made from here."""
    connect_s: float | None = None
    """The SSH config's ConnectTimeout: for the TCP connection, and for the first word of an SSH server on whatever way
    leads to it. None: the console's own limits."""
    listed: bool = True
    """The name stands in hosts.toml or in the SSH config (False: it was only typed)."""
    near: str | None = None
    """The nearest name that is known, offered when an unlisted name does not resolve."""
    tag: str | None = None
    colour: str | None = None
    scope: Scope | None = None
    """Which service manager to use; None: find out."""
    unit: str = DEFAULT_UNIT
    production: bool = False
    read_only: bool = False

    @property
    def host_key_name(self) -> str:
        """The name that the host key is looked up and pinned under, without the port."""
        return self.host_key_alias or self.address
