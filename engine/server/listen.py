"""The listening socket, and who has the port when it cannot be had."""

from __future__ import annotations

import errno
import re
import socket
from pathlib import Path

import psutil

from engine.errors import EngineError


def listen(host: str, port: int) -> socket.socket:
    """A bound and listening socket; port 0 takes any free one. Raises EngineError that names a port's owner."""
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


def address_of(listener: socket.socket) -> str:
    """`127.0.0.1:8765` or `[::1]:8765`."""
    host, port = listener.getsockname()[:2]
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
