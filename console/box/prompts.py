"""What the SSH layer may ask of the person at the console. The CLI asks on the terminal, the TUI with dialogs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class HostKeyQuestion:
    """A host key that was never seen before: what to show before asking for consent."""

    host: str
    address: str
    port: int
    key_type: str  # "ssh-ed25519"
    fingerprint: str  # "SHA256:…"


class Prompts(Protocol):
    """Questions to the operator. Answers are kept in memory for the life of a connection, never on disk."""

    async def trust_host_key(self, question: HostKeyQuestion) -> bool:
        """True: pin exactly this key and go on. False: stop."""
        ...

    async def secret(self, title: str, prompt: str) -> str | None:
        """A passphrase, password or one-time code, typed without echo; None: the operator gave up."""
        ...
