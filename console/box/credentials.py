"""Who we are to the box: keys, passphrases, passwords; asyncssh's questions during a login, answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from console.box.errors import KeyFileError
from console.box.prompts import Prompts
from console.box.target import Target
from console.box.trust import KeyWitness

TRIES = 3


@dataclass
class Credentials:
    """What the operator gave during this session, kept in memory so that a reconnect need not ask again."""

    prompts: Prompts | None = None
    accept_host_key: str | None = None  # a fingerprint that may be pinned without asking
    unlocked: dict[Path, asyncssh.SSHKey] = field(default_factory=dict)
    passwords: dict[tuple[str, str], str] = field(default_factory=dict)  # (user, host) -> one that was taken


class LoginClient(KeyWitness):
    """asyncssh's questions during one login, answered from the credentials or by the operator."""

    def __init__(self, target: Target, credentials: Credentials) -> None:
        super().__init__()
        self.lost: Exception | None = None
        self.deadline: asyncio.Timeout | None = None
        self.login_s = 0.0
        self._connection: asyncssh.SSHClientConnection | None = None
        self._target = target
        self._credentials = credentials
        self._files = _sort_keys(target)
        self._locked = list(self._files.locked)
        self._password_tries = 0
        if target.only_these_keys and self._locked and credentials.prompts is None:
            path = self._locked[0]
            if path not in credentials.unlocked:
                raise KeyFileError(
                    "the key is locked by a passphrase, and there is nobody to ask for it",
                    where=str(path),
                    mend="load it into an agent with ssh-add, or run the command on a terminal",
                )

    @property
    def keys(self) -> dict[str, Any]:
        """asyncssh's options for the keys that need no question."""
        usable: list[Any] = [str(path) for path in self._files.usable]
        usable += [
            _with_certificate(path, self._credentials.unlocked)
            for path in self._locked
            if path in self._credentials.unlocked
        ]
        self._locked = [path for path in self._locked if path not in self._credentials.unlocked]
        if self._target.only_these_keys:
            return {"client_keys": usable or None, "agent_path": None, "agent_identities": None}
        options: dict[str, Any] = {"client_keys": usable, "ignore_encrypted": True}
        if self._target.identities_only:
            options["agent_identities"] = _public_halves((*self._files.usable, *self._files.locked)) or [b""]
        return options

    def offered(self) -> str:
        """What was tried, for the message of a refused login."""
        names = [str(path) for path in self._files.usable]
        names += [
            f"{path} (locked: no passphrase given)"
            for path in self._files.locked
            if path not in self._credentials.unlocked
        ]
        if not self._target.only_these_keys:
            names.append("the keys of the agent")
        return ", ".join(names) or "no key at all"

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn

    @property
    def greeted(self) -> bool:
        """Whether an SSH server has answered at all: its version is the first thing it says."""
        return self._connection is not None and self._connection.get_extra_info("server_version") is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc

    async def public_key_auth_requested(self) -> Any:
        """Called when the agent's and the open keys were all refused: unlock the next one, if there is anyone to ask."""
        while self._locked and self._credentials.prompts is not None:
            path = self._locked.pop(0)
            key = await self._unlock(path)
            if key is not None:
                self._credentials.unlocked[path] = key
                return [_with_certificate(path, self._credentials.unlocked)]
        return None

    async def _unlock(self, path: Path) -> asyncssh.SSHKey | None:
        for _ in range(TRIES):
            phrase = await self._ask(f"Key {path}", "Passphrase: ")
            if phrase is None:
                return None
            with self._clock_stopped(), contextlib.suppress(asyncssh.KeyEncryptionError, asyncssh.KeyImportError):
                # In a thread: bcrypt takes its time by design. A wrong passphrase is asked for again.
                return await asyncio.to_thread(asyncssh.read_private_key, path, phrase)
        return None

    async def password_auth_requested(self) -> str | None:
        place = (self._target.user, self._target.address)
        self._password_tries += 1
        if self._password_tries == 1 and place in self._credentials.passwords:
            return self._credentials.passwords[place]
        self._credentials.passwords.pop(place, None)
        if self._password_tries > TRIES:
            return None
        password = await self._ask(f"{self._target.user}@{self._target.address}", "Password: ")
        if password is not None:
            self._credentials.passwords[place] = password
        return password

    def kbdint_auth_requested(self) -> str | None:
        return None if self._credentials.prompts is None else ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        answers: list[str] = []
        title = " ".join(part for part in (name, instructions) if part) or f"{self._target.user}@{self._target.address}"
        for prompt, _ in prompts:
            answer = await self._ask(title, prompt)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    async def _ask(self, title: str, prompt: str) -> str | None:
        if self._credentials.prompts is None:
            return None
        with self._clock_stopped():
            return await self._credentials.prompts.secret(title, prompt)

    @contextlib.contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        """The limit of the login is for the box, not for a person's typing."""
        if self.deadline is None:
            yield
            return
        self.deadline.reschedule(None)
        try:
            yield
        finally:
            self.deadline.reschedule(asyncio.get_running_loop().time() + self.login_s)


@dataclass(frozen=True)
class _KeyFiles:
    usable: tuple[Path, ...]  # open private keys, and public halves whose private key the agent holds
    locked: tuple[Path, ...]  # encrypted


def _sort_keys(target: Target) -> _KeyFiles:
    """The target's key files by what they need. Raises KeyFileError for one that is named and cannot serve."""
    usable: list[Path] = []
    locked: list[Path] = []
    for path in target.identity_files:
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            if target.only_these_keys:
                raise KeyFileError(
                    "no such key file", where=str(path), mend=f"correct the key of {target.name}"
                ) from error
            continue  # OpenSSH passes over identity files that are not there
        except OSError as error:
            raise KeyFileError(
                f"cannot be read: {error.strerror}", where=str(path), mend="check its permissions"
            ) from error
        try:
            asyncssh.import_private_key(data)
            usable.append(path)
        except asyncssh.KeyImportError as error:
            if "assphrase" in str(error):
                locked.append(path)
            elif not target.only_these_keys and _is_public_key(data):
                usable.append(path)
            else:
                raise KeyFileError(
                    f"not a private key ({error})", where=str(path), mend="name the private key, without .pub"
                ) from error
    return _KeyFiles(tuple(usable), tuple(locked))


def _is_public_key(data: bytes) -> bool:
    try:
        asyncssh.import_public_key(data)
    except asyncssh.KeyImportError:
        return False
    return True


def _public_halves(paths: Sequence[Path]) -> list[bytes]:
    """What an agent's keys are compared with: PATH.pub, or the public half that stands in the key file itself."""
    found: list[bytes] = []
    for path in paths:
        public = path.with_name(f"{path.name}.pub")
        with contextlib.suppress(
            asyncssh.KeyImportError, OSError
        ):  # an old format that hides it: not in the agent then
            found.append(asyncssh.read_public_key(public if public.exists() else path).public_data)
    return found


def _with_certificate(path: Path, unlocked: dict[Path, asyncssh.SSHKey]) -> Any:
    """An unlocked key as asyncssh takes it, paired with `PATH-cert.pub` where that exists."""
    certificate = path.with_name(f"{path.name}-cert.pub")
    return (unlocked[path], str(certificate)) if certificate.exists() else unlocked[path]
