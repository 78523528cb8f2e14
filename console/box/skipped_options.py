"""Options of the SSH config that hold for a host and that the console's SSH library passes over in silence: those that it
does not know, and those that nobody knows, since they are misspelt."""

from __future__ import annotations

import difflib
import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncssh.config import ConfigParseError, SSHClientConfig
from asyncssh.pattern import WildcardPatternList

from console.box.ssh_config import unreadable


@dataclass(frozen=True)
class SkippedOption:
    """One option that OpenSSH would follow for this host. `matters`: without it a login or a check comes out differently."""

    name: str
    value: str
    where: str
    """File and line."""
    effect: str
    mend: str | None = None

    @property
    def matters(self) -> bool:
        return self.mend is not None

    @property
    def misspelt(self) -> bool:
        """Nobody knows such an option, OpenSSH as little as the console."""
        return self.name not in EFFECTS


# Name -> (what is done instead, what to do about it where it matters).
EFFECTS: dict[str, tuple[str, str | None]] = {
    "RevokedHostKeys": (
        "keys revoked in that file alone are not known to be",
        "mark them @revoked in a known_hosts file",
    ),
    "KnownHostsCommand": (
        "host keys are looked up in known_hosts files alone",
        "put the keys into a known_hosts file, or accept the key when it is shown",
    ),
    "VerifyHostKeyDNS": ("host keys in DNS are not asked for", "accept the key when it is shown"),
    "PubkeyAcceptedAlgorithms": (
        "keys of every type are offered",
        'name the one key to offer for this host in hosts.toml: key = "~/.ssh/…"',
    ),
    "PubkeyAcceptedKeyTypes": (
        "keys of every type are offered",
        'name the one key to offer for this host in hosts.toml: key = "~/.ssh/…"',
    ),
    "RequiredRSASize": ("short RSA keys are taken", "replace them by Ed25519 keys"),
    "SecurityKeyProvider": ("keys on a token need the agent", "load the key into ssh-agent"),
    "ProxyUseFdpass": ("the proxy cannot hand its socket over", "use ProxyJump, or a ProxyCommand that pipes"),
    "BindInterface": ("the route decides on the interface", "use BindAddress"),
    "StrictHostKeyChecking": ("host keys are always checked strictly", None),
    "UpdateHostKeys": ("known_hosts is not rewritten", None),
    "HashKnownHosts": ("the console's own known_hosts file is not hashed", None),
    "CheckHostIP": ("keys are looked up by name", None),
    "ControlMaster": ("the console keeps one connection of its own", None),
    "ControlPath": ("the console keeps one connection of its own", None),
    "ControlPersist": ("the console keeps one connection of its own", None),
    "AddKeysToAgent": ("passphrases are asked for once a session", None),
    "BatchMode": ("a console on a terminal asks, one without does not", None),
    "NumberOfPasswordPrompts": ("a password is asked for three times", None),
    "LocalForward": ("forwards are not put up", None),
    "RemoteForward": ("forwards are not put up", None),
    "DynamicForward": ("forwards are not put up", None),
    "LocalCommand": ("no command is run on this machine", None),
}


# Every other option of OpenSSH's client (10.0) and of the Debian and Apple builds of it: nothing that the console does.
HARMLESS = (
    "ChannelTimeout", "ClearAllForwardings", "ConnectionAttempts", "EnableEscapeCommandline", "EscapeChar",
    "ExitOnForwardFailure", "FingerprintHash", "ForkAfterAuthentication", "ForwardX11", "ForwardX11Timeout",
    "GatewayPorts", "GSSAPIClientIdentity", "GSSAPIKexAlgorithms", "GSSAPIRenewalForcesRekey",
    "GSSAPIServerIdentity", "GSSAPITrustDns", "HostbasedAcceptedAlgorithms", "IgnoreUnknown", "IPQoS",
    "KbdInteractiveDevices", "LogLevel", "LogVerbose", "NoHostAuthenticationForLocalhost", "ObscureKeystrokeTiming",
    "PermitLocalCommand", "PermitRemoteOpen", "RefuseConnection", "SessionType", "StdinNull", "StreamLocalBindMask",
    "StreamLocalBindUnlink", "SyslogFacility", "Tunnel", "TunnelDevice", "UseKeychain", "VersionAddendum",
    "VisualHostKey", "WarnWeakCrypto", "XAuthLocation",
)  # fmt: skip
# Those of old that it still takes, and that nobody means any more.
OBSOLETE = (
    "AFSTokenPassing", "Cipher", "CompressionLevel", "DSAAuthentication", "FallBackToRsh", "GlobalKnownHostsFile2",
    "HostbasedKeyTypes", "IdentityFile2", "KeepAlive", "KerberosAuthentication", "KerberosTgtPassing", "Protocol",
    "ProtocolKeepAlives", "RhostsAuthentication", "RhostsRSAAuthentication", "RSAAuthentication", "SetupTimeout",
    "SkeyAuthentication", "SmartcardDevice", "TISAuthentication", "UseBlacklistedKeys", "UsePrivilegedPort",
    "UseRoaming", "UseRsh", "UserKnownHostsFile2",
)  # fmt: skip


class _Handlers(dict[str, Any]):
    """What is done with each option, by its name in small letters; one that nobody knows is noted as well."""

    def __missing__(self, option: str) -> Any:
        return option, _NotingConfig.note_unknown


class _Blocks(set[str]):
    """Options that are read in blocks of other hosts, too: as OpenSSH, which refuses a whole file for one unknown name."""

    def __contains__(self, option: object) -> bool:
        return super().__contains__(option) or option not in _NotingConfig._handlers


class _NotingConfig(SSHClientConfig):
    """The library's own reader, Host, Match and Include and all, that notes what it would pass over."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.noted: dict[str, SkippedOption] = {}
        self._ignored: WildcardPatternList | None = None

    def note(self, option: str, args: list[str]) -> None:
        effect, mend = EFFECTS[option]
        found = SkippedOption(option, " ".join(args), f"{self._path} line {self._line_no}", effect, mend)
        self.noted.setdefault(option, found)  # the first one holds, as everywhere in these files
        args.clear()

    def pass_over(self, option: str, args: list[str]) -> None:
        args.clear()

    def ignore_unknown(self, option: str, args: list[str]) -> None:
        if self._ignored is None:
            self._ignored = WildcardPatternList(args[0].lower())
        args.clear()

    def note_unknown(self, option: str, args: list[str]) -> None:
        if self._ignored is None or not self._ignored.matches(option):  # it holds for lines below its own
            where = f"{self._path} line {self._line_no}"
            found = SkippedOption(option, " ".join(args), where, "there is no such option", _mend_unknown(option))
            self.noted.setdefault(where, found)
        args.clear()


def _mend_unknown(option: str) -> str:
    names = {name.lower(): name for name, _ in _NotingConfig._handlers.values() if name not in OBSOLETE}
    near = difflib.get_close_matches(option, names, n=1)
    return f"did you mean {names[near[0]]}?" if near else "take the line out, or name the option in IgnoreUnknown"


_NotingConfig._conditionals = _Blocks(SSHClientConfig._conditionals)
_NotingConfig._handlers = _Handlers(
    {
        **{name.lower(): (name, _NotingConfig.pass_over) for name in (*HARMLESS, *OBSOLETE)},
        **SSHClientConfig._handlers,
        **{name.lower(): (name, _NotingConfig.note) for name in EFFECTS},
        "ignoreunknown": ("IgnoreUnknown", _NotingConfig.ignore_unknown),
    }
)


def skipped_options(files: Sequence[Path], host: str, user: str | None, port: int | None) -> tuple[SkippedOption, ...]:
    """What `files` say for `host` that has no effect in the console, those that matter first.

    Raises SshConfigError with file and line for a config that cannot be read.
    """
    try:
        config = _NotingConfig.load(
            None, list(files), False, False, False, getpass.getuser(), user or (), host, port or ()
        )
    except (ConfigParseError, OSError, UnicodeDecodeError) as error:
        raise unreadable(files, error) from error
    assert isinstance(config, _NotingConfig)
    return tuple(sorted(config.noted.values(), key=lambda option: not option.matters))
