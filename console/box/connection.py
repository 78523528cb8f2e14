"""One SSH connection to one box: commands, streams, files and a forwarded port, over drops and reconnects.

Nothing is ever replayed. What was under way when the link broke has an unknown outcome, and whoever started it finds
out by looking.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import asyncssh

from console.box import transfer
from console.box.credentials import Credentials
from console.box.errors import BoxError, CommandTimedOut, LinkError, LinkLost, SessionRefused, TransferError
from console.box.facts import FACTS_ARGV, BoxFacts, parse_facts
from console.box.forwards import Forwards
from console.box.link import LinkKeeper
from console.box.prompts import Prompts
from console.box.stream import Stream, signal_name, stop_process
from console.box.target import Target
from console.box.timing import DEFAULT_TIMING, Timing
from console.box.values import Completed, LinkState

ENVIRONMENT = ("LC_ALL=C.UTF-8", "SYSTEMD_COLORS=0", "SYSTEMD_PAGER=cat")
COMMANDS_AT_ONCE = 6  # with SFTP and a journal stream, below sshd's MaxSessions of 10
CLOSING = "SSH connection closed"  # the library's word for a connection that is just going down
TRANSFER_S = 30.0
SLOWEST_BYTES_PER_S = 50_000  # a transfer slower than this is given up


async def connect(
    target: Target,
    prompts: Prompts | None = None,
    *,
    accept_host_key: str | None = None,
    keep_trying: bool = False,
    timing: Timing = DEFAULT_TIMING,
) -> Connection:
    """A live Connection to `target`.

    `prompts` asks the operator about an unknown host key, passphrases and passwords; without it nothing is asked, and
    what would need an answer fails. `accept_host_key` is a fingerprint (`SHA256:…`) to pin without asking, matched
    exactly. With `keep_trying`, a box that cannot be reached now gives a Connection in state LOST that goes on trying.

    Raises BoxError: exit status 2 for an unknown host, and for a host key, key file or login that is refused; 5 for no
    connection.
    """
    connection = Connection(target, Credentials(prompts, accept_host_key), timing)
    try:
        await connection.link.start(keep_trying)
    except BaseException:
        await connection.close()
        raise
    return connection


class Connection:
    """Made by `connect`. Close it, or use it as an async context manager."""

    def __init__(self, target: Target, credentials: Credentials, timing: Timing) -> None:
        self.target = target
        self.link = LinkKeeper(target, credentials, timing, self._prepare, self._ping)
        self._timing = timing
        self._facts: BoxFacts | None = None
        self._sftp: tuple[asyncssh.SSHClientConnection, asyncssh.SFTPClient] | None = None
        self._sftp_lock = asyncio.Lock()
        self._forwards = Forwards(target.name)
        self._slots = asyncio.Semaphore(COMMANDS_AT_ONCE)

    # The link

    @property
    def state(self) -> LinkState:
        return self.link.state

    def on_state(self, callback: Callable[[LinkState], None]) -> Callable[[], None]:
        """Call `callback` with every new LinkState; the function returned ends that."""
        return self.link.on_state(callback)

    def reconnect(self) -> None:
        """Try again at once instead of waiting for the next attempt."""
        self.link.reconnect()

    async def close(self) -> None:
        """End the connection within about a second, whatever state the link is in."""
        await self.link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What the box is

    @property
    def facts(self) -> BoxFacts:
        """The box as it was found at the last login. Raises LinkError before the first."""
        if self._facts is None:
            raise LinkError("not connected yet", where=self.target.name)
        return self._facts

    @property
    def home(self) -> str:
        """The home folder of the login, absolute."""
        return self.facts.home

    @property
    def host_key(self) -> str:
        """Type and fingerprint of the key that the box proved at the last login. Raises LinkError while there is none."""
        key = self.link.ssh().get_server_host_key()
        return f"{key.get_algorithm()} {key.get_fingerprint()}" if key is not None else "a key checked by certificate"

    @property
    def uid(self) -> int:
        return self.facts.uid

    async def _prepare(self, ssh: asyncssh.SSHClientConnection) -> None:
        """After each login: look at the box, and put the forwards up again."""
        found = await self._run_on(ssh, FACTS_ARGV, None, self._timing.login_s)
        if found.exit_status is None and found.signal is None:
            raise LinkLost("the link broke right after the login", where=self.target.name)
        self._facts = parse_facts(found.stdout, self.target.name)
        await self._forwards.renew(ssh)

    async def _ping(self, ssh: asyncssh.SSHClientConnection) -> None:
        try:
            await (await self._sftp_on(ssh)).realpath(".")
        except transfer.SESSION_ENDED:
            self._sftp = None  # the next one opens a new session
            raise

    # Commands

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout_s: float = 20.0) -> Completed:
        """Run a command to its end.

        `exit_status` is None where the outcome is unknown: a signal ended it (`signal` says which) or the link broke.
        Raises LinkError if it could not be started, CommandTimedOut after `timeout_s`; it is then told to stop, which
        sshd does not pass on for root logins, so that long jobs belong in units of their own.
        """
        return await self._run_on(self.link.ssh(), argv, input, timeout_s)

    async def _run_on(
        self, ssh: asyncssh.SSHClientConnection, argv: Sequence[str], input: bytes | None, timeout_s: float
    ) -> Completed:
        async with self._slots:
            process = await self._open(ssh, argv, takes_input=input is not None)
            try:
                async with asyncio.timeout(timeout_s):
                    stdout, stderr = await process.communicate(input)
            except TimeoutError as error:
                raise CommandTimedOut(
                    f"{argv[0]} did not finish within {timeout_s:g} s",
                    where=self.target.name,
                    mend="it may still be running there",
                ) from error
            except (OSError, asyncssh.Error) as error:
                if not ssh.is_closed():
                    raise BoxError(f"{argv[0]} took no input: {error}", where=self.target.name) from error
                stdout, stderr = b"", b""  # the link broke while input was sent: the outcome is unknown
            finally:
                stop_process(process)
        signal = signal_name(process)
        return Completed(
            argv=tuple(argv),
            exit_status=None if signal else process.exit_status,
            stdout=stdout or b"",
            stderr=stderr or b"",
            signal=signal,
        )

    @contextlib.asynccontextmanager
    async def stream(self, argv: Sequence[str]) -> AsyncIterator[Stream]:
        """Run a command and follow its output; leaving the context tells it to stop.

        Raises LinkError if it could not be started, LinkLost from the iteration when the link breaks.
        """
        process = await self._open(self.link.ssh(), argv, takes_input=False)
        stream = Stream(process, self.target.name)
        try:
            yield stream
        finally:
            stream.stop()

    async def _open(
        self, ssh: asyncssh.SSHClientConnection, argv: Sequence[str], *, takes_input: bool
    ) -> asyncssh.SSHClientProcess[bytes]:
        stdin = asyncssh.PIPE if takes_input else asyncssh.DEVNULL
        try:
            async with asyncio.timeout(self._timing.open_s):
                return await ssh.create_process(self._command_line(argv), stdin=stdin, encoding=None, request_pty=False)
        except TimeoutError as error:
            raise self._silent() from error
        except asyncssh.ChannelOpenError as error:
            if ssh.is_closed() or error.reason == CLOSING:
                raise LinkLost("the link broke", where=self.target.name) from error
            raise SessionRefused(
                f"the box refuses one more session ({error.reason})",
                where=self.target.name,
                mend="see MaxSessions there",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise LinkLost(f"the link broke: {error}", where=self.target.name) from error

    def _silent(self) -> LinkLost:
        return LinkLost(
            f"no answer within {self._timing.open_s:g} s", where=self.target.name, mend="the link may be half open"
        )

    def _command_line(self, argv: Sequence[str]) -> str:
        """The one place where a list becomes a line for the login shell over there.

        `exec` so that signals reach the program and not a shell; the variables go inline, since servers refuse most of
        what a client asks them to set.
        """
        variables = list(ENVIRONMENT)
        if self._facts is not None and (self._facts.has_runtime_dir or "--user" in argv):
            variables.append(f"XDG_RUNTIME_DIR={self._facts.runtime_dir}")
        return "exec " + shlex.join(["env", *variables, *argv])

    # Files

    async def upload(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write `data` to `path` there, atomically and checked. `path` is absolute, or relative to the home folder."""
        async with self._files(path, len(data)) as sftp:
            await transfer.put_file(sftp, data, path, mode)

    async def upload_tree(
        self,
        files: Mapping[str, bytes],
        folder: str,
        *,
        mode: int = 0o600,
        executable: frozenset[str] = frozenset(),
    ) -> None:
        """Write `files` (relative path -> contents) below `folder`, sent as one tar stream and checked by hash.

        A folder that is not there yet appears complete, in one step; in one that is there, each file is replaced in
        one step. Folders are 0700, `executable` files get the owner's x. Raises TransferError.
        """
        data = transfer.pack(files, mode, executable)
        part = transfer.part_name(folder)
        allowed_s = TRANSFER_S + len(data) / SLOWEST_BYTES_PER_S
        try:
            await self._must(["mkdir", "-p", "-m", "700", "--", part], folder)
            await self._must(["tar", "-x", "-p", "-C", part, "--no-same-owner"], folder, data, allowed_s)
            await self._must(
                ["env", "-C", part, "sha256sum", "--check", "--strict", "--quiet"],
                folder,
                transfer.checksums(files),
                allowed_s,
            )
            async with self._files(folder) as sftp:
                await transfer.move_tree(sftp, part, folder, files)
        finally:
            with contextlib.suppress(BoxError):  # what went wrong before is what the operator should read
                await self.run(["rm", "-rf", "--", part])

    async def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """At most `limit` bytes of a file there, from `offset` on; b"" at its end. Raises NoSuchFile, TransferError."""
        if limit is None:
            async with self._files(path) as sftp:
                size = (await sftp.stat(path)).size or 0
        async with self._files(path, size if limit is None else limit) as sftp:
            return await transfer.read_file(sftp, path, offset, limit)

    async def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`; a dangling link counts as none."""
        async with self._files(path) as sftp:
            return await sftp.exists(path)

    async def _must(self, argv: Sequence[str], path: str, input: bytes | None = None, timeout_s: float = 20.0) -> None:
        done = await self.run(argv, input=input, timeout_s=timeout_s)
        if done.exit_status is None and done.signal is None:
            raise LinkLost("the link broke during an upload", where=path)
        if done.exit_status != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise TransferError(f"{argv[0]} failed there: {said[-1] if said else done.exit_status}", where=path)

    @contextlib.asynccontextmanager
    async def _files(self, path: str, size: int = 0) -> AsyncIterator[asyncssh.SFTPClient]:
        """An SFTP session for work on `path`, bounded in time; its errors become TransferError or LinkLost."""
        ssh = self.link.ssh()
        try:
            sftp = await self._sftp_on(ssh)
            async with asyncio.timeout(TRANSFER_S + size / SLOWEST_BYTES_PER_S):
                yield sftp
        except TimeoutError as error:
            raise TransferError(
                "the transfer takes too long", where=path, mend="is the disk or the network stuck?"
            ) from error
        except (asyncssh.Error, OSError) as error:
            if isinstance(error, transfer.SESSION_ENDED):
                self._sftp = None  # the next one opens a new session
            if ssh.is_closed() or isinstance(error, OSError | asyncssh.DisconnectError):
                raise LinkLost("the link broke during a file transfer", where=path) from error
            raise transfer.transfer_error(error, path) from error

    async def _sftp_on(self, ssh: asyncssh.SSHClientConnection) -> asyncssh.SFTPClient:
        """The link's one SFTP session, opened when first needed."""
        async with self._sftp_lock:
            if self._sftp is None or self._sftp[0] is not ssh:
                try:
                    async with asyncio.timeout(self._timing.open_s):
                        self._sftp = ssh, await ssh.start_sftp_client()
                except TimeoutError as error:
                    raise self._silent() from error
            return self._sftp[1]

    # Ports

    async def forward(self, port: int) -> int:
        """A port on this machine's loopback that leads to 127.0.0.1:`port` on the box.

        It is the same one for the life of the connection where that is possible, put up again after each reconnect;
        ask again before each use. Nothing listens on it while the link is down. Raises LinkError.
        """
        return await self._forwards.local_port(self.link.ssh(), port)
