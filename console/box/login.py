"""From a Target to a logged-in SSH connection: hop by hop, host keys first, then keys, then what the operator types."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncssh

from console.box import trust
from console.box.credentials import Credentials, LoginClient
from console.box.errors import BoxError, HostKeyUnknown, HostUnknown, LinkError, LoginRefused, SshConfigError
from console.box.target import Target
from console.box.timing import Timing


@dataclass(frozen=True)
class Link:
    """A logged-in connection and the hops it goes through."""

    ssh: asyncssh.SSHClientConnection
    client: LoginClient
    hops: tuple[asyncssh.SSHClientConnection, ...] = ()

    @property
    def reason(self) -> str:
        """Why it ended, for a link that did."""
        return str(self.client.lost or "") or "the box closed the connection"

    def abort(self) -> None:
        """Drop it at once, without a word to the box; the hops after it."""
        self.ssh.abort()
        for hop in reversed(self.hops):
            hop.abort()


async def log_in(target: Target, credentials: Credentials, timing: Timing) -> Link:
    """Connect to `target` through its jump hosts. Raises BoxError, always as one clear line."""
    link: Link | None = None
    try:
        for hop in (*target.jumps, target):
            ssh, client = await _through_trust(hop, link.ssh if link else None, credentials, timing)
            link = Link(ssh, client, (*link.hops, link.ssh) if link else ())
    except BaseException:
        if link is not None:
            link.abort()
        raise
    assert link is not None  # the target itself is always a hop
    return link


async def _through_trust(
    target: Target, tunnel: asyncssh.SSHClientConnection | None, credentials: Credentials, timing: Timing
) -> tuple[asyncssh.SSHClientConnection, LoginClient]:
    """Log in; if the host key is new and the operator consents, pin it and log in with exactly that key."""
    known = trust.read_known_keys(target)
    client = LoginClient(target, credentials)
    try:
        return await _attempt(target, known, client, tunnel, timing), client
    except asyncssh.HostKeyNotVerifiable as error:
        verdict = trust.judge(target, known, client.shown, error.reason)
    key = client.shown
    if not isinstance(verdict, HostKeyUnknown) or key is None or not await _consent(target, key, credentials):
        raise verdict
    trust.pin(target, key)
    only = trust.KnownKeys((trust.KnownKey(key, "trusted", target.own_known_hosts, 0),))
    client = LoginClient(target, credentials)
    try:
        return await _attempt(target, only, client, tunnel, timing), client
    except asyncssh.HostKeyNotVerifiable as error:
        raise trust.judge(target, only, client.shown, error.reason) from error


async def _consent(target: Target, key: asyncssh.SSHKey, credentials: Credentials) -> bool:
    if credentials.accept_host_key is not None:
        return credentials.accept_host_key == trust.fingerprint(key)
    if credentials.prompts is None:
        return False
    return await credentials.prompts.trust_host_key(trust.question(target, key))


async def _attempt(
    target: Target,
    known: trust.KnownKeys,
    client: LoginClient,
    tunnel: asyncssh.SSHClientConnection | None,
    timing: Timing,
) -> asyncssh.SSHClientConnection:
    """One handshake and login. Lets HostKeyNotVerifiable through; everything else becomes a BoxError."""
    where = f"{target.name} ({target.user}@{target.address}:{target.port})"
    route: dict[str, Any] = {"tunnel": tunnel}
    sock: socket.socket | None = None
    try:
        if tunnel is not None:
            route["proxy_command"] = None
        elif not target.proxy_command:
            sock = await _open_socket(target, timing)
            route |= {"sock": sock, "proxy_command": None}
        async with (
            asyncio.timeout(max(timing.login_s, target.connect_s or 0.0)) as deadline,
            _first_word_within(target.connect_s, client, deadline),
        ):
            client.deadline = deadline
            client.login_s = timing.login_s
            ssh = await asyncssh.connect(
                target.ssh_name,
                target.port,
                username=target.user,
                config=list(target.ssh_config) or None,
                client_factory=lambda: client,
                known_hosts=lambda host, addr, port: known.for_handshake(),
                server_host_key_algs=trust.host_key_algorithms(known),
                connect_timeout=None,  # asyncssh counts the login into it; the two limits here are apart
                login_timeout=0,
                keepalive_interval=timing.keepalive_s,
                keepalive_count_max=timing.keepalive_count,
                agent_forwarding=False,
                x11_forwarding=False,
                command=None,  # RemoteCommand and RequestTTY in the config are for people's own sessions
                request_pty=False,
                encoding=None,
                **client.keys,
                **route,
            )
            sock = None  # asyncssh owns it now
            return ssh
    except asyncssh.HostKeyNotVerifiable:
        raise
    except asyncssh.PermissionDenied as error:
        raise LoginRefused(
            f"the box does not let {target.user} in; offered {client.offered()}",
            where=where,
            mend="check the user name, and that the key's public half is in authorized_keys there",
        ) from error
    except TimeoutError as error:
        if not client.greeted:
            limit_s = target.connect_s or timing.login_s
            mend = _look_at_proxy(target) or "does sshd run there, on that port?"
            raise LinkError(f"no SSH server answered within {limit_s:g} s", where=where, mend=mend) from error
        raise LinkError(
            f"no SSH login within {timing.login_s:g} s", where=where, mend="see the box's load and sshd's log"
        ) from error
    except asyncssh.ConfigParseError as error:
        raise SshConfigError(str(error), where="SSH config", mend="correct that line") from error
    except (asyncssh.Error, OSError, ValueError) as error:
        raise LinkError(f"the SSH connection failed: {error}", where=where, mend=_look_at_proxy(target)) from error
    finally:
        if sock is not None:
            sock.close()


@contextlib.asynccontextmanager
async def _first_word_within(
    seconds: float | None, client: LoginClient, deadline: asyncio.Timeout
) -> AsyncIterator[None]:
    """End a login in which no SSH server says anything for so long, whatever way leads to it; None: no such limit."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not client.greeted:
            deadline.reschedule(loop.time())

    timer = loop.call_later(seconds, look) if seconds is not None else None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _look_at_proxy(target: Target) -> str | None:
    if not target.proxy_command:
        return None
    return "see what the ProxyCommand of the SSH config says when it is run by hand"


async def _open_socket(target: Target, timing: Timing) -> socket.socket:
    """A TCP connection to the target's address, each of its IP addresses tried in turn."""
    loop = asyncio.get_running_loop()
    where = f"{target.name} ({target.address}:{target.port})"
    limit_s = target.connect_s or timing.connect_s
    try:
        async with asyncio.timeout(limit_s):
            found = await loop.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)
            refusal: OSError | None = None
            for family, kind, protocol, _, address in found:
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, address)
                    return sock
                except OSError as error:
                    refusal = error
                    sock.close()
                except BaseException:
                    sock.close()
                    raise
            raise refusal or OSError("the name has no address")
    except TimeoutError as error:
        raise LinkError(
            f"no answer within {limit_s:g} s", where=where, mend="is the box up, and the network between?"
        ) from error
    except (socket.gaierror, UnicodeError) as error:
        raise _unresolved(target, error) from error
    except ConnectionRefusedError as error:
        raise LinkError("connection refused", where=where, mend="does sshd run there, on that port?") from error
    except OSError as error:
        raise LinkError(error.strerror or str(error), where=where) from error


def _unresolved(target: Target, error: Exception) -> BoxError:
    no_such_name = not isinstance(error, socket.gaierror) or error.errno in (socket.EAI_NONAME, _EAI_NODATA)
    if target.listed and not no_such_name:
        return LinkError(
            f"the name {target.address} could not be looked up ({error})",
            where=target.name,
            mend="is the name server reachable?",
        )
    mend = f"did you mean {target.near}?" if target.near else "give an SSH alias, user@host, or a name from hosts.toml"
    return HostUnknown(f"no such host: the name {target.address} does not resolve", where=target.name, mend=mend)


_EAI_NODATA = getattr(socket, "EAI_NODATA", socket.EAI_NONAME)
