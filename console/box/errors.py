"""What can go wrong between here and the box, each as one line for the operator."""

from __future__ import annotations

from console.errors import ExitCode, OperatorError, UsageError


class BoxError(OperatorError):
    """Anything the box layer reports."""


class HostUnknown(UsageError, BoxError):
    """The name is no host: not in hosts.toml, not an SSH alias, and it does not resolve."""


class SshConfigError(UsageError, BoxError):
    """OpenSSH's config files cannot be read; the message names file and line."""


class HostKeyError(UsageError, BoxError):
    """The host key is not one we may talk to. Nothing was sent, no credential least of all."""


class HostKeyUnknown(HostKeyError):
    """Never seen before. Carries what has to be shown and accepted."""

    def __init__(self, what: str, *, where: str, mend: str, key_type: str, fingerprint: str) -> None:
        super().__init__(what, where=where, mend=mend)
        self.key_type = key_type
        self.fingerprint = fingerprint


class HostKeyChanged(HostKeyError):
    """Another key than the known one: a full stop, there is nothing to accept."""


class HostKeyRevoked(HostKeyError):
    """The key, or the authority that signed it, is marked revoked in known_hosts."""


class KeyFileError(UsageError, BoxError):
    """A private key file that is missing, unreadable, no key, or locked by a passphrase nobody gave."""


class LoginRefused(UsageError, BoxError):
    """The box answered and did not take any of the keys or passwords offered."""


class LinkError(BoxError):
    """The box could not be reached, or the link broke."""

    exit_code = ExitCode.NO_CONNECTION


class LinkLost(LinkError):
    """The link broke while something was under way; what was asked for may or may not have happened."""


class SessionRefused(BoxError):
    """The box is up and grants no further session on this connection."""


class CommandTimedOut(BoxError):
    """A command on the box took longer than it was allowed; it was told to stop, and may run on."""


class TransferError(BoxError):
    """A file could not be written, checked or read on the box."""


class NotAllowed(TransferError):
    """The login on the box may not read or write there."""


class NoSuchFile(TransferError):
    """The file to read is not there."""
