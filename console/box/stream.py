"""A command on the box whose output is followed line by line while it runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncssh

from console.box.errors import LinkLost

CHUNK_BYTES = 65536
STDERR_TAIL_BYTES = 8192
LONGEST_LINE_BYTES = 16 * 1024 * 1024


class LineSplitter:
    """Bytes in, whole lines out. What follows the last newline is kept for the next call and never given out alone:
    a line that was cut off by a broken link is no line."""

    def __init__(self, longest: int = LONGEST_LINE_BYTES) -> None:
        self.dropped = 0  # lines longer than `longest`, given up so that memory stays bounded
        self._longest = longest
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by `data`, without their newline."""
        self._rest += data
        end = self._rest.rfind(b"\n", max(0, len(self._rest) - len(data)))
        if end < 0:
            if len(self._rest) > self._longest:
                self._rest.clear()
                self._skipping = True
            return []
        lines = bytes(self._rest[:end]).split(b"\n")
        del self._rest[: end + 1]
        if self._skipping:
            del lines[0]
            self.dropped += 1
            self._skipping = False
        return lines


class Stream:
    """The standard output of a running command.

    `async for line in stream` gives bytes lines without their newline, only lines that were whole; it ends when the
    command closes its output, and raises LinkLost when the link breaks. `stderr_tail` holds the last 8 KiB of
    standard error; `exit_status` is None until the command has ended, and stays None if its outcome is unknown.
    """

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], where: str) -> None:
        self.stderr_tail = b""
        self.exit_status: int | None = None
        self.signal: str | None = None
        self._process = process
        self._where = where
        self._splitter = LineSplitter()
        # Standard error must be read all along, or its window fills and the command stalls.
        self._stderr = asyncio.create_task(self._read_stderr())

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """The same lines, as many at a time as arrived together."""
        try:
            while data := await self._process.stdout.read(CHUNK_BYTES):
                lines = self._splitter.feed(data)
                if lines:
                    yield lines
            await self._process.wait_closed()
        except (asyncssh.Error, OSError) as error:
            raise LinkLost(f"the link broke while following a command: {error}", where=self._where) from error
        await self._stderr
        self.signal = signal_name(self._process)
        self.exit_status = None if self.signal else self._process.exit_status
        if self.exit_status is None and self.signal is None:
            raise LinkLost("the link broke while following a command", where=self._where)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for lines in self.batches():
            for line in lines:
                yield line

    async def _read_stderr(self) -> None:
        try:
            while data := await self._process.stderr.read(CHUNK_BYTES):
                self.stderr_tail = (self.stderr_tail + data)[-STDERR_TAIL_BYTES:]
        except (asyncssh.Error, OSError):
            return  # the reader of standard output meets the same break and reports it

    def stop(self) -> None:
        """Tell the command to end and close the channel; waits for nothing, since a dead link never answers."""
        self._stderr.cancel()
        stop_process(self._process)


def signal_name(process: asyncssh.SSHClientProcess[bytes]) -> str | None:
    """`TERM` and the like, if a signal ended the command."""
    found = process.exit_signal
    return str(found[0]) if found else None


def stop_process(process: asyncssh.SSHClientProcess[bytes]) -> None:
    """Best effort: sshd passes no signals on for root logins, but a command that reads or writes meets a closed pipe."""
    if process.exit_status is None and process.exit_signal is None:
        with contextlib.suppress(OSError):  # the channel is closed already: there is nothing left to tell
            process.terminate()
    process.close()
