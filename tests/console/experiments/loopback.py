"""An SSH server in the test's own loop whose commands run for real, and the engine that answers beside it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
import httpx


@dataclass(frozen=True)
class TinyEngine:
    """A running engine: its port, and what it says of itself."""

    port: int

    def requests(self) -> dict[str, int]:
        answer = httpx.get(f"http://127.0.0.1:{self.port}/server_info", trust_env=False, timeout=5)
        found: dict[str, int] = answer.json()["requests"]
        return found


class OneKey(asyncssh.SSHServer):
    def __init__(self, box: LoopbackBox) -> None:
        self._box = box

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._box.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return bool(key.public_data == self._box.key.public_data)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


@dataclass
class LoopbackBox:
    """An SSH server whose commands run for real, with `home` for a home folder. `drop` cuts every connection."""

    home: Path
    key: asyncssh.SSHKey
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def drop(self) -> None:
        for connection in self.connections:
            connection.abort()
        self.connections.clear()

    async def handle(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        assert process.command is not None
        self.commands.append(process.command)
        child = await asyncio.create_subprocess_exec(
            *("sh", "-c", process.command),
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        sent = bytearray()
        while data := await process.stdin.read(65536):
            sent += data
        stdout, stderr = await child.communicate(bytes(sent))
        process.stdout.write(stdout)
        process.stderr.write(stderr)
        process.exit(child.returncode or 0)
