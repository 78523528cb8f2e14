"""Files and commands of a system installation for a login that is not root: by `sudo -n`, as far as the box allows it.

What the login may do itself is done without sudo, and reading that was refused is not asked for again at once: each
refusal is an entry in the box's own log of break-in attempts.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Protocol

from console.box.connection import Connection
from console.box.errors import BoxError, NoSuchFile, NotAllowed, TransferError
from console.box.transfer import part_name
from console.box.values import Completed
from console.errors import ExitCode

SUDO = ("sudo", "-n")
"""Never asks for a password: there is nobody at that end to type one."""
ASK_AGAIN_S = 60.0
_REFUSALS = ("sudo:", "Sorry, user", "env: 'sudo'", "env: ‘sudo’")
_WARNINGS = ("unable to resolve host", "unable to send audit message", "setrlimit(")
"""What sudo says before it runs the command all the same."""


class SudoRefused(BoxError):
    """The box lets this login do nothing more as root."""

    exit_code = ExitCode.PRECONDITION


class Files(Protocol):
    """What a settings change asks of the box: a connection does it, as its login."""

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout_s: float = 20.0) -> Completed:
        """Run a command. Raises BoxError."""
        ...

    async def read(self, path: str) -> bytes:
        """A whole file. Raises NoSuchFile, TransferError."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`."""
        ...

    async def upload(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a file, atomically and checked. Raises TransferError."""
        ...


def refusal(done: Completed) -> str | None:
    """What sudo said when it was sudo that refused; None where it ran the command, however that ended."""
    if done.exit_status not in (1, 127):  # sudo's own statuses; the command's are passed on
        return None
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    own = [line for line in said if line.startswith(_REFUSALS) or "is not in the sudoers file" in line]
    grave = [line for line in own if not any(warning in line for warning in _WARNINGS)]
    return grave[-1] if grave else None


class AsRoot:
    """Files over a connection whose login is not root. See `Files`; raises SudoRefused with what mends it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._refused: tuple[float, SudoRefused] | None = None

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout_s: float = 20.0) -> Completed:
        """Run a command as root."""
        done = await self._connection.run([*SUDO, *argv], input=input, timeout_s=timeout_s)
        said = refusal(done)
        if said is None:
            self._refused = None
            return done
        user = self._connection.facts.user
        error = SudoRefused(
            f"{argv[0]} as root is refused: {said}",
            where=self._connection.target.name,
            mend=f"log in as root, or put this line in /etc/sudoers.d/ddtree there: {user} ALL=(root) NOPASSWD: ALL",
        )
        self._refused = (time.monotonic() + ASK_AGAIN_S, error)
        raise error

    async def read(self, path: str) -> bytes:
        """A whole file, as the login where it may."""
        try:
            return await self._connection.read(path)
        except NotAllowed:
            done = await self._look(["cat", "--", path])
        if done.exit_status != 0:
            kind = NoSuchFile if b"No such file" in done.stderr else TransferError
            raise kind("no such file or folder on the box" if kind is NoSuchFile else _said(done), where=path)
        return done.stdout

    async def exists(self, path: str) -> bool:
        """Whether there is a file or folder, as the login where it may look."""
        try:
            return await self._connection.exists(path)
        except NotAllowed:
            return (await self._look(["test", "-e", path])).exit_status == 0

    async def upload(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        """Beside it, read back, and then in its place by one rename."""
        try:
            await self._connection.upload(data, path, mode=mode)
            return
        except NotAllowed:
            part = part_name(path)
        await self._must(["install", "-m", f"{mode:o}", "--", "/dev/stdin", part], path, data)
        written = await self._must(["sha256sum", "--", part], path)
        if written.split()[0].decode() != hashlib.sha256(data).hexdigest():
            raise TransferError("what was written is not what was sent", where=path, mend="is the disk full?")
        await self._must(["mv", "-T", "--", part, path], path)

    async def _look(self, argv: Sequence[str]) -> Completed:
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise self._refused[1]
        return await self.run(argv)

    async def _must(self, argv: Sequence[str], path: str, input: bytes | None = None) -> bytes:
        done = await self.run(argv, input=input)
        if done.exit_status != 0:
            raise TransferError(_said(done), where=path)
        return done.stdout


def _said(done: Completed) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"{done.argv[len(SUDO)]} gave {done.exit_status}"
