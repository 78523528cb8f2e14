"""What OpenSSH's own config files say of a host."""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from asyncssh.config import ConfigParseError, SSHClientConfig

from console.box.errors import SshConfigError

DEFAULT_PORT = 22
DEFAULT_KEYS = tuple(f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk"))
DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
DEFAULT_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True)
class SshSettings:
    """The settings of one host that this console needs before it connects."""

    address: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_only: bool
    known_hosts: tuple[Path, ...]
    host_key_alias: str | None
    proxy_jump: tuple[str, ...]
    proxy_command: bool
    connect_s: float | None
    """ConnectTimeout, where the config sets one."""


def read_settings(files: Sequence[Path], host: str, user: str | None, port: int | None) -> SshSettings:
    """The settings for `host`, from `files` in order of precedence; `user` and `port` win where given.

    Raises SshConfigError with file and line for a config that cannot be read.
    """
    try:
        config = SSHClientConfig.load(
            None, list(files), False, False, False, getpass.getuser(), user or (), host, port or ()
        )
    except (ConfigParseError, OSError, UnicodeDecodeError) as error:
        raise unreadable(files, error) from error

    def strings(option: str, default: Sequence[str]) -> tuple[str, ...]:
        return tuple(cast("Sequence[str]", config.get(option, default)))

    def string(option: str) -> str | None:
        return cast("str | None", config.get(option))

    known_hosts = strings("UserKnownHostsFile", DEFAULT_KNOWN_HOSTS) + strings(
        "GlobalKnownHostsFile", DEFAULT_GLOBAL_KNOWN_HOSTS
    )
    jump = string("ProxyJump")
    return SshSettings(
        address=string("Hostname") or host,
        port=cast("int", config.get("Port", DEFAULT_PORT)),
        user=string("User") or getpass.getuser(),
        identity_files=tuple(Path(name).expanduser() for name in strings("IdentityFile", DEFAULT_KEYS)),
        identities_only=cast("bool", config.get("IdentitiesOnly", False)),
        known_hosts=tuple(Path(name).expanduser() for name in known_hosts),
        host_key_alias=string("HostKeyAlias"),
        proxy_jump=tuple(hop.strip() for hop in jump.split(",")) if jump else (),
        # OpenSSH takes whichever of the two stands first; with both, the jump is the safer reading.
        proxy_command=not jump and string("ProxyCommand") is not None,
        connect_s=cast("int", config.get("ConnectTimeout", 0)) or None,
    )


def unreadable(files: Sequence[Path], error: Exception) -> SshConfigError:
    """What reading `files` failed on, in the operator's words: the file, and the line where one is meant."""
    if isinstance(error, OSError):
        return SshConfigError(f"cannot be read: {error.strerror or error}", where=f"SSH config: {error.filename}")
    if not isinstance(error, UnicodeDecodeError):
        return SshConfigError(str(error), where="SSH config", mend="correct that line")
    for file in files:  # the library does not say which one
        line = _line_that_is_no_text(file)
        if line is not None:
            return SshConfigError(
                "is not UTF-8 text", where=f"SSH config: {file} line {line}", mend="correct that line"
            )
    return SshConfigError("a file that it includes is not UTF-8 text", where=f"SSH config: {files[0]}")


def _line_that_is_no_text(file: Path) -> int | None:
    try:
        data = file.read_bytes()
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data.count(b"\n", 0, error.start) + 1
    except OSError:
        return None  # absent, which is no fault
    return None


def aliases(files: Sequence[Path]) -> tuple[str, ...]:
    """Host names that stand in `Host` lines without wildcards, in the order of the files, `Include` followed."""
    found: dict[str, None] = {}
    for file in files:
        for name in _aliases_in(file, depth=0):
            found.setdefault(name)
    return tuple(found)


def _aliases_in(file: Path, depth: int) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []  # absent or closed to us: it names no host we could use
    names: list[str] = []
    for line in text.splitlines():
        keyword, _, rest = re.sub(r"^\s*(\w+)\s*=?\s*", r"\1 ", line).partition(" ")
        words = rest.replace('"', "").split()
        if keyword.lower() == "host":
            names += [word for word in words if not set(word) & set("*?!")]
        elif keyword.lower() == "include" and depth < 16:  # OpenSSH's own limit
            for pattern in words:
                path = Path(pattern).expanduser()
                base, glob = (
                    (Path(path.anchor), str(path.relative_to(path.anchor)))
                    if path.anchor
                    else (Path("~/.ssh").expanduser(), pattern)
                )
                for included in sorted(base.glob(glob)):
                    names += _aliases_in(included, depth + 1)
    return names
