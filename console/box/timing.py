"""How long things may take on a link, and when to try again after one broke."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Limits in seconds. Tests shorten them; nothing else should need to."""

    connect_s: float = 10.0
    """For the TCP connection, name look-up included."""
    login_s: float = 30.0
    """For the SSH handshake and login, not counting time the operator takes to answer a prompt."""
    open_s: float = 10.0
    """For the box to open one more channel on a link that is up."""
    keepalive_s: float = 5.0
    keepalive_count: int = 3
    """A link is given up after `keepalive_count` + 1 intervals without an answer (20 s)."""
    heartbeat_s: float = 5.0
    """Between two measurements of the round trip."""
    slow_s: float = 2.0
    """A round trip longer than this makes the link DEGRADED."""
    jump_s: float = 10.0
    """The wall clock running this far ahead of the monotonic one means that this machine was asleep."""
    first_retry_s: float = 0.5
    last_retry_s: float = 30.0
    healthy_s: float = 60.0
    """A link that lived this long makes the next retry start from `first_retry_s` again."""


DEFAULT_TIMING = Timing()


def retry_delays(timing: Timing, random_source: random.Random) -> Iterator[float]:
    """Seconds to wait before each attempt to reconnect: doubling up to the limit, with full jitter.

    Full jitter (anything from zero to the bound) keeps many consoles from storming a box that comes back.
    """
    bound = timing.first_retry_s
    while True:
        yield random_source.uniform(0.0, bound)
        bound = min(bound * 2.0, timing.last_retry_s)
