"""What the doctor says of the way to the box: the link, the host keys, the two clocks, and SSH options without effect."""

from __future__ import annotations

import time
from dataclasses import dataclass

from console.box.check import Check
from console.box.connection import Connection
from console.box.skipped_options import SkippedOption, skipped_options
from console.box.target import Target

SLOW_LINK_MS = 300.0
CLOCKS_APART_S = 5.0


@dataclass(frozen=True)
class LinkFindings:
    """What was seen of the way to the box."""

    user: str
    greeting: bytes = b""
    """What the login shell prints before any command's output."""
    latency_ms: float | None = None
    way: str = ""
    """`ops@10.0.0.7:22 through ops@jump:22`."""
    host_key: str = ""
    """Type and fingerprint of the key that the box proved."""
    clock_ahead_s: float | None = None
    """How far the box's clock is ahead of this machine's."""
    skipped: tuple[SkippedOption, ...] = ()


async def look_at_link(connection: Connection) -> LinkFindings:
    """Measure the round trip and the clocks, and read the SSH config of this machine. Raises LinkError."""
    before_s = time.time()
    shown = await connection.run(["date", "+%s.%N"])
    after_s = time.time()
    said = shown.stdout.decode("ascii", "replace").strip()
    target = connection.target
    return LinkFindings(
        user=connection.facts.user,
        greeting=connection.facts.greeting,
        latency_ms=connection.state.latency_ms,
        way=way_to(target),
        host_key=connection.host_key,
        clock_ahead_s=float(said) - (before_s + after_s) / 2 if said.replace(".", "", 1).isdigit() else None,
        skipped=skipped_options(target.ssh_config, target.ssh_name, target.user, target.port),
    )


def way_to(target: Target) -> str:
    """Who logs in where, and through which hosts."""
    hops = ", ".join(f"{hop.user}@{hop.address}:{hop.port}" for hop in target.jumps)
    proxy = " through a ProxyCommand" if target.proxy_command else f" through {hops}" if hops else ""
    return f"{target.user}@{target.address}:{target.port}{proxy}"


def judge_link(found: LinkFindings) -> list[Check]:
    """The checks of link, keys, clocks and SSH config."""
    latency = found.latency_ms
    speed = f"{found.way}: connected" if found.way else "connected"
    speed += "" if latency is None else f", {latency:.0f} ms a round trip"
    slow = latency is not None and latency > SLOW_LINK_MS
    checks = [Check("link", "ssh", "warn" if slow else "pass", speed, "figures will come late" if slow else None)]
    if found.host_key:
        checks.append(Check("keys", "host key", "pass", f"{found.host_key}, as expected"))
    if found.greeting:
        checks.append(
            Check(
                "link",
                "login shell",
                "fail",
                f"prints {found.greeting[:60]!r} before every command",
                f"let the shell's start files of {found.user} print nothing when there is no terminal",
            )
        )
    apart = found.clock_ahead_s
    if apart is not None:
        way = "ahead of" if apart > 0 else "behind"
        wrong = abs(apart) > CLOCKS_APART_S
        text = f"{abs(apart):.1f} s {way} this machine's" if wrong else "agrees with this machine's"
        mend = "let both machines keep time: sudo timedatectl set-ntp true" if wrong else None
        checks.append(Check("link", "clock", "warn" if wrong else "pass", text, mend))
    return [*checks, *(_skipped(option) for option in found.skipped)]


def _skipped(option: SkippedOption) -> Check:
    return Check(
        "link",
        option.name,
        "warn" if option.matters else "pass",
        f"{option.value} ({option.where}) has no effect here: {option.effect}",
        option.mend if option.matters else None,
    )
