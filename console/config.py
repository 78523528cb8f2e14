"""Where the console keeps what it knows of its hosts, and how a name becomes a Target.

Names are looked up in this order: `demo`, the user's hosts.toml, then whatever OpenSSH's client would take.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from console.box.ssh_config import aliases, read_settings
from console.box.target import Target
from console.demo_file import DemoBox, read_demo
from console.errors import UsageError
from console.folders import APPLICATION, home_folder, user_folder
from console.hosts_file import HostEntry, read_hosts

DEMO_NAME = "demo"


@dataclass(frozen=True)
class Places:
    """The files the console reads and writes on the operator's machine."""

    hosts: Path  # hosts.toml, written by the operator
    known_hosts: Path  # host keys the operator consented to
    demo: Path  # exists while `ddtree demo` runs
    state: Path  # folder for runs, history and the like
    ssh_config: tuple[Path, ...]  # user's first, then the system's


def places(environ: Mapping[str, str] = os.environ) -> Places:
    """The usual places, by the XDG base directory rules."""
    config = user_folder("XDG_CONFIG_HOME", ".config", environ)
    state = user_folder("XDG_STATE_HOME", ".local/state", environ)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return Places(
        hosts=config / "hosts.toml",
        known_hosts=config / "known_hosts",
        demo=(Path(runtime) / APPLICATION if Path(runtime).is_absolute() else state) / "demo.json",
        state=state,
        ssh_config=(home_folder(environ) / ".ssh/config", Path("/etc/ssh/ssh_config")),
    )


def host_names(where: Places | None = None) -> tuple[str, ...]:
    """Every host there is a name for: the running demo, hosts.toml, SSH aliases, in that order."""
    where = where or places()
    demo = (DEMO_NAME,) if read_demo(where.demo) else ()
    return tuple(dict.fromkeys((*demo, *read_hosts(where.hosts), *aliases(where.ssh_config))))


def resolve(name: str, where: Places | None = None) -> Target:
    """The Target that `name` stands for. No network is touched: a name that leads nowhere is found out on connecting.

    `name` is `demo`, a table in hosts.toml, an SSH alias, or `[user@]host[:port]` (IPv6 in brackets where a port
    follows). Raises UsageError for a name that cannot be one, and for config files that cannot be read.
    """
    where = where or places()
    if name == DEMO_NAME:
        return _demo_target(where)
    hosts = read_hosts(where.hosts)
    if name in hosts:
        return _listed_target(name, hosts[name], where)
    return _typed_target(name, tuple(hosts), where)


def _demo_target(where: Places) -> Target:
    demo: DemoBox | None = read_demo(where.demo)
    if demo is None:
        raise UsageError("no demo is running", where=DEMO_NAME, mend="start one with `ddtree demo`")
    return Target(
        name=DEMO_NAME,
        ssh_name=demo.address,
        address=demo.address,
        port=demo.port,
        user=demo.user,
        own_known_hosts=demo.known_hosts,
        identity_files=(demo.key,),
        only_these_keys=True,
        tag="DEMO",
        scope="supervisor",
    )


def _listed_target(name: str, entry: HostEntry, where: Places) -> Target:
    target = _ssh_target(entry.address or name, entry.user, entry.port, where)
    if entry.key is not None:
        target = replace(target, identity_files=(entry.key,), only_these_keys=True)
    return replace(
        target,
        name=name,
        tag=entry.tag or ("PROD" if entry.production else None),
        colour="red" if entry.production else entry.colour,
        scope=entry.scope,
        unit=entry.unit,
        production=entry.production,
        read_only=entry.read_only,
    )


def _typed_target(name: str, hosts: tuple[str, ...], where: Places) -> Target:
    known = aliases(where.ssh_config)
    if name in known:
        return replace(_ssh_target(name, None, None, where), name=name)
    user, host, port = split_host(name)
    near = difflib.get_close_matches(host, (*hosts, *known), n=1)
    return replace(
        _ssh_target(host, user, port, where),
        name=name,
        listed=host in known,
        near=near[0] if near else None,
    )


def split_host(name: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]` in its parts; an address with more than one colon and no brackets is IPv6 without a port."""
    text = name.removeprefix("ssh://").rstrip("/")
    user, at, rest = text.rpartition("@")
    match = re.fullmatch(
        r"\[([^\]]+)\](?::(\d+))?|([^:\[\]]+)(?::(\d+))?|((?:[0-9A-Fa-f]*:){2,}[0-9A-Fa-f:.]*(?:%\w+)?)", rest
    )
    if match is None or (at and not user) or re.search(r"[\s\x00-\x1f\ud800-\udfff]|^-|@-", name):
        raise UsageError(f"{name!r} is no host name", mend="write an alias, user@host or user@host:port")
    host = match[1] or match[3] or match[5]
    digits = match[2] or match[4]
    port = int(digits) if digits else None
    if port is not None and not 1 <= port <= 65535:
        raise UsageError(f"port {port} is outside 1..65535", where=name)
    return user or None, host, port


def _ssh_target(host: str, user: str | None, port: int | None, where: Places, depth: int = 0) -> Target:
    """A Target from the SSH config alone, its jump hosts resolved the same way."""
    if depth > 8:
        raise UsageError("more than eight ProxyJump hops", where=host, mend="the SSH config jumps in a circle")
    files = tuple(file for file in where.ssh_config if os.access(file, os.R_OK))
    settings = read_settings(files, host, user, port)
    jumps: list[Target] = []
    for index, hop in enumerate(settings.proxy_jump):
        hop_user, hop_host, hop_port = split_host(hop)
        target = _ssh_target(hop_host, hop_user, hop_port, where, depth + 1)
        jumps += [*target.jumps, replace(target, jumps=())] if index == 0 else [replace(target, jumps=())]
    return Target(
        name=host,
        ssh_name=host,
        address=settings.address,
        port=settings.port,
        user=settings.user,
        own_known_hosts=where.known_hosts,
        identity_files=settings.identity_files,
        identities_only=settings.identities_only,
        known_hosts=settings.known_hosts,
        ssh_config=files,
        host_key_alias=settings.host_key_alias,
        jumps=tuple(jumps),
        proxy_command=settings.proxy_command,
        connect_s=settings.connect_s,
    )
