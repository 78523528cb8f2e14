"""A process that no signal ends, as one that spins inside a driver: a stand-in, since none can be made on purpose."""

from __future__ import annotations

import signal

import pytest

from console.agent import apply


def test_a_process_that_stays_after_kill_needs_a_reboot_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(apply, "started_at", lambda pid: "123")
    monkeypatch.setattr(apply.os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(apply, "STRAY_END_S", 0.02)
    with pytest.raises(apply.Refused, match="process 811 does not end, even when killed: it may need a reboot"):
        apply.end_process(811, "123")
    assert sent == [signal.SIGTERM, signal.SIGKILL]
