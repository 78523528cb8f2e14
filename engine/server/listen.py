"""The listening socket, and who has the port when it cannot be had."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

import psutil

from engine.errors import EngineError

UNIX = "unix:"
"""How a host begins that is a socket file."""


def listen(host: str, port: int) -> socket.socket:
    """A bound and listening socket; port 0 takes any free one. Host `unix:/path` is a socket file, and has no port.

    Raises EngineError that names a port's owner.
    """
    if host.startswith(UNIX):
        return _listen_at(Path(host.removeprefix(UNIX)))
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise EngineError(
            f"host {host}: {error.strerror}", where="[server]", mend="give an address of this machine"
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a service that just ended is free
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise EngineError(
                f"port {port} is in use by {owner_of(port)}", where="[server]", mend="stop it, or set another port"
            ) from error
        raise EngineError(f"cannot listen on {host}:{port} ({error.strerror})", where="[server]") from error
    listener.set_inheritable(False)
    return listener


def _listen_at(path: Path) -> socket.socket:
    """A socket file that its owner alone may use. One that a dead service left is taken away."""
    where = f"[server] host {UNIX}{path}"
    if not path.is_absolute():
        raise EngineError("a socket file is named by its whole path", where=where, mend="begin it with /")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        if path.is_socket():
            _refuse_living(path, where)
            path.unlink()
        listener.bind(str(path))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise EngineError(f"cannot listen there ({error.strerror or error})", where=where) from error
    except EngineError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.set_inheritable(False)
    return listener


def _refuse_living(path: Path, where: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        if asking.connect_ex(str(path)) == 0:
            raise EngineError("a service listens there already", where=where, mend="stop it, or name another file")


def address_of(listener: socket.socket) -> str:
    """`127.0.0.1:8765`, `[::1]:8765` or `unix:/path`."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"{UNIX}{name}"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def owner_of(port: int) -> str:
    """Who listens on a TCP port: pid, command and unit, as far as this user may see."""
    pids = {
        connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    }
    pid = next((pid for pid in pids if pid is not None), None)
    if pid is None:
        return "a process that this user may not see"
    try:
        command = " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
    except psutil.Error:
        command = "ended meanwhile"
    unit = _unit_of(pid)
    return f"pid {pid} ({command[:200]})" + (f", unit {unit}" if unit else "")


def _unit_of(pid: int) -> str | None:
    """The systemd unit whose control group holds the process; the innermost where units nest."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None  # gone, or no /proc
    units = re.findall(r"/([^/\s]+\.(?:service|scope))", groups)
    return units[-1] if units else None
