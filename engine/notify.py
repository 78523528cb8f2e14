"""Readiness and liveness for the service manager: sd_notify datagrams, as systemd and the supervisor read them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

LOADING_PHASE_S = 600
"""How long one phase of loading may take before the manager should give up on it."""


class Notifier:
    """Sends the service's state to $NOTIFY_SOCKET; without one, every message is simply not wanted.

    The watchdog is fed by whoever does the work (`alive`), never by a thread of its own, so that a stuck engine is
    seen. A datagram that cannot be delivered is dropped: the manager's watchdog is what notices, not the engine.
    """

    def __init__(
        self,
        address: str | None,
        *,
        watchdog_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address` begins with `@` for an abstract socket; `watchdog_s` is the manager's limit between two pings."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        if self._socket is not None:
            self._socket.setblocking(False)  # a full queue must not stop the decode loop
        self._ping_s = watchdog_s / 2 if watchdog_s else None
        self._clock = clock
        self._pinged_s = float("-inf")
        self._is_ready = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Notifier:
        """The manager's wishes from NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        usec = environment.get("WATCHDOG_USEC", "")
        meant_for_us = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if usec.isdecimal() and meant_for_us else None
        return cls(environment.get("NOTIFY_SOCKET") or None, watchdog_s=watchdog_s or None)

    @property
    def idle_s(self) -> float:
        """How long an idle engine may sleep between two calls of `alive`."""
        return min(self._ping_s or 1.0, 1.0)

    def loading(self, phase: str) -> None:
        """A phase of loading has begun; asks for time to finish it."""
        self._send(f"STATUS={phase}\nEXTEND_TIMEOUT_USEC={LOADING_PHASE_S * 1_000_000}")

    def ready(self, status: str) -> None:
        """A real token was generated."""
        self._is_ready = True
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """One line for the manager's status."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """The engine's loop came round: pings when half the watchdog's time has passed, after readiness."""
        if self._ping_s is None or not self._is_ready:
            return
        now = self._clock()
        if now - self._pinged_s >= self._ping_s:
            self._pinged_s = now
            self._send("WATCHDOG=1")

    def stopping(self, status: str, within_s: float) -> None:
        """No new work from here on; what runs may take `within_s` more seconds."""
        self._send(f"STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={int(within_s * 1_000_000)}")

    def _send(self, message: str) -> None:
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:
            return  # gone or full; see the class
