"""An SSH server on this machine's loopback that stands for a box: commands, files and forwarded ports, for one key only.

Every process started through it carries a mark in its environment, so that the end of the demo can find whatever is
still running, detached or not.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncssh

MARK = "DDTREE_DEMO"
CHUNK_BYTES = 65536


class DemoServer:
    """Listens once `listen` returned; `home` is the home folder of its only user."""

    def __init__(self, home: Path, user: str) -> None:
        self.home = home
        self.user = user
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = 0
        self._mark = secrets.token_hex(8)
        self._acceptor: asyncssh.SSHAcceptor | None = None

    async def listen(self) -> None:
        """Begin to listen, on 127.0.0.1 and a free port."""
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=lambda: _OneKey(self.user, self.client_key),
            server_host_keys=[self.host_key],
            process_factory=self._run,
            sftp_factory=self._sftp,
            encoding=None,
            allow_pty=False,
            agent_forwarding=False,
        )
        self.port = self._acceptor.get_port()

    async def close(self) -> None:
        """Listen no more, end every connection, and end every process that was started through them."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        while pids := self._marked():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it ended by itself
            await asyncio.sleep(0.05)

    def _marked(self) -> list[int]:
        """Processes that carry this server's mark and are not dead yet."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):  # empty for those that are dead
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # gone, or another user's
        return found

    def _environment(self) -> Mapping[str, str]:
        """A login's environment: this user's, with the demo's home, and without what belongs to a session or to XDG's
        folders. The cache stays the user's own, so that the model is fetched once."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "SSH_", "PYTHON"))}
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return {**kept, "HOME": str(self.home), "XDG_CACHE_HOME": cache, MARK: self._mark}

    def _sftp(self, channel: asyncssh.SSHServerChannel[bytes]) -> asyncssh.SFTPServer:
        return _HomeFiles(channel, self.home)

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """One command by `sh -c`, as sshd runs it; it ends with its channel."""
        if process.command is None:
            process.stderr.write(b"the demo has no interactive shell\n")
            process.exit(1)
            return
        child = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", process.command),
            cwd=self.home,
            env=self._environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        feeding = asyncio.create_task(_feed(process, child, child.stdin))
        outputs = [(child.stdout, process.stdout), (child.stderr, process.stderr)]
        pumps = [asyncio.create_task(_pump(source, sink)) for source, sink in outputs]
        pumped = asyncio.create_task(asyncio.wait(pumps))
        gone = asyncio.create_task(process.wait_closed())
        try:
            either: list[asyncio.Future[Any]] = [pumped, gone]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if pumped.done() and not gone.done():
                _tell_exit(process, await child.wait())
        finally:
            tasks = [feeding, *pumps, pumped, gone]
            for task in tasks:
                task.cancel()
            if child.returncode is None:
                child.terminate()
            await child.wait()
            _check_ends(await asyncio.gather(*tasks, return_exceptions=True))


def _check_ends(ends: Sequence[object]) -> None:
    """Being cancelled and losing the client are how tasks end here; anything else is a fault of ours."""
    for end in ends:
        if isinstance(end, Exception) and not isinstance(end, (OSError, asyncssh.Error)):
            raise end


def _tell_exit(process: asyncssh.SSHServerProcess[bytes], status: int) -> None:
    if status < 0:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
    else:
        process.exit(status)


async def _feed(
    process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process, stdin: asyncio.StreamWriter
) -> None:
    """What the client sends, input and signals, to the command."""
    try:
        while True:
            try:
                data = await process.stdin.read(CHUNK_BYTES)
            except asyncssh.SignalReceived as received:
                child.send_signal(signal.Signals[f"SIG{received.signal}"])
                continue
            if not data:
                return
            stdin.write(data)
            await stdin.drain()
    except (ConnectionError, ProcessLookupError):
        return  # the command reads no more, or has ended
    finally:
        stdin.close()


async def _pump(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()


class _OneKey(asyncssh.SSHServer):
    """Lets one user in, with one key; forwards to loopback only."""

    def __init__(self, user: str, key: asyncssh.SSHKey) -> None:
        self._user = user
        self._key = key

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._user and key.public_data == self._key.public_data

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in ("127.0.0.1", "::1", "localhost")


class _HomeFiles(asyncssh.SFTPServer):
    """Files as the user sees them; relative paths begin in the demo's home."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        return posixpath.join(self._home, path)
