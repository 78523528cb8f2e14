"""Datagrams to the service manager, and the words for what the box reports."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from engine.host import throttle_words
from engine.notify import Notifier
from engine.server.listen import address_of, listen, owner_of


def receiver(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind("\0" + address[1:] if address.startswith("@") else address)
    manager.settimeout(5.0)
    return manager


def test_an_abstract_socket_is_reached_too() -> None:
    address = f"@ddtree-test-{os.getpid()}"
    with receiver(address) as manager:
        Notifier(address).ready("serving")
        assert manager.recv(999) == b"READY=1\nSTATUS=serving"


def test_pings_come_at_half_the_watchdogs_time_and_only_after_readiness(tmp_path: Path) -> None:
    now = [100.0]
    with receiver(str(tmp_path / "s")) as manager:
        notifier = Notifier(str(tmp_path / "s"), watchdog_s=10.0, clock=lambda: now[0])
        notifier.alive()
        notifier.ready("serving")
        for seconds in (0.0, 4.9, 0.2, 4.9, 0.1):
            now[0] += seconds
            notifier.alive()
        notifier.stopping("finishing", 23.0)
        got = [manager.recv(999).decode().splitlines()[0] for _ in range(5)]
    assert got == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_manager_that_has_gone_stops_nothing(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "nobody")).ready("serving")
    Notifier(None, watchdog_s=1.0).ready("serving")


def test_a_watchdog_meant_for_another_process_is_not_fed(tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "s"), "WATCHDOG_USEC": "2000000"}
    assert Notifier.from_environment(environment).idle_s == 1.0
    assert Notifier.from_environment({**environment, "WATCHDOG_USEC": "500000"}).idle_s == 0.25
    assert Notifier.from_environment({**environment, "WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}).idle_s == 1.0


def test_clock_reasons_become_words_and_idling_is_none_of_them() -> None:
    assert throttle_words(0x4 | 0x40) == "power cap, hardware thermal"
    assert throttle_words(0x1) is None
    assert throttle_words(None) is None


def test_a_listener_knows_its_address_and_its_owner() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"127.0.0.1:{port}"
        assert owner_of(port).startswith(f"pid {os.getpid()} (")
