"""An SSH server in the test's own loop: it runs real commands, and can be told to misbehave."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from console.box.prompts import HostKeyQuestion


@dataclass
class EmbeddedBox:
    """Listens on loopback. `connections` are its live ones; `logins` the users that got as far as authentication."""

    folder: Path  # the home of every login
    host_keys: list[asyncssh.SSHKey]
    client_key: asyncssh.SSHKey
    password: str | None = None
    dialogue: list[tuple[str, str]] = field(default_factory=list)
    """Keyboard-interactive: questions, one at a time, and the answers that are right."""
    host_certificates: list[asyncssh.SSHCertificate] = field(default_factory=list)
    greeting: bytes = b""  # printed by the login shell before anything else
    deaf: bool = False  # answers no request for a session
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    logins: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def port(self) -> int:
        assert self.acceptor is not None
        return int(self.acceptor.get_port())

    async def listen(self, port: int = 0) -> None:
        sessions: dict[str, Any] = {} if self.deaf else {"process_factory": self._run, "sftp_factory": True}
        self.acceptor = await asyncssh.listen(
            "127.0.0.1",
            port,
            server_factory=lambda: _Server(self),
            server_host_keys=self.host_keys,
            server_host_certs=self.host_certificates,
            encoding=None,
            reuse_address=True,
            **sessions,
        )

    async def stop(self) -> None:
        """Listen no more, and break what is open."""
        if self.acceptor is not None:
            self.acceptor.close()
            await self.acceptor.wait_closed()
        self.drop_all()

    def drop_all(self) -> None:
        """Break every connection, as a cut cable with a reset would."""
        for connection in tuple(self.connections):
            connection.abort()

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        assert process.command is not None
        self.commands.append(process.command)
        process.stdout.write(self.greeting)
        child = await asyncio.create_subprocess_exec(
            *("sh", "-c", process.command),
            env={"HOME": str(self.folder), "PATH": "/usr/local/bin:/usr/bin:/bin"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        feeding = asyncio.create_task(_feed(process, child))
        ended = asyncio.create_task(_pump_out(process, child))
        gone = asyncio.create_task(process.wait_closed())
        try:
            await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and ended.exception() is None:
                status = ended.result()
                if status < 0:
                    process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
                else:
                    process.exit(status)
        finally:
            for task in (feeding, ended, gone):
                task.cancel()
            if child.returncode is None:
                child.kill()
                await child.wait()


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    """Pass on input and signals."""
    assert child.stdin is not None
    while True:
        try:
            data = await process.stdin.read(65536)
        except asyncssh.SignalReceived as received:
            child.send_signal(getattr(signal, f"SIG{received.signal}"))
            continue
        if not data:
            child.stdin.close()
            return
        child.stdin.write(data)
        await child.stdin.drain()


async def _pump_out(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> int:
    """Pass on what the command prints, then give its status."""

    async def pump(source: asyncio.StreamReader | None, sink: asyncssh.SSHWriter[bytes]) -> None:
        assert source is not None
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()

    await asyncio.gather(pump(child.stdout, process.stdout), pump(child.stderr, process.stderr))
    return await child.wait()


class _Server(asyncssh.SSHServer):
    def __init__(self, box: EmbeddedBox) -> None:
        self._box = box

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        self._box.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._box.connections.discard(self._conn)

    def begin_auth(self, username: str) -> bool:
        self._box.logins.append(username)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key.public_data == self._box.client_key.public_data

    def password_auth_supported(self) -> bool:
        return self._box.password is not None

    def validate_password(self, username: str, password: str) -> bool:
        return password == self._box.password

    def kbdint_auth_supported(self) -> bool:
        return bool(self._box.dialogue)

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        self._step = 0
        return self._question()

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> Any:
        if list(responses) != [self._box.dialogue[self._step][1]]:
            return False
        self._step += 1
        return True if self._step == len(self._box.dialogue) else self._question()

    def _question(self) -> Any:
        return "Login", f"step {self._step + 1}", "", [(self._box.dialogue[self._step][0], False)]

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True

    async def session_requested(self) -> Any:
        await asyncio.Event().wait()  # only asked when the box is deaf


@dataclass
class Operator:
    """Somebody at the console, with the answers ready."""

    trusts: bool = False
    secrets: list[str | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def trust_host_key(self, question: HostKeyQuestion) -> bool:
        self.asked.append(question.fingerprint)
        return self.trusts

    async def secret(self, title: str, prompt: str) -> str | None:
        self.asked.append(title)
        return self.secrets.pop(0)
