"""The console without a screen: one plain line an event, in order, for screen readers, pipes and dumb terminals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from console.errors import ExitCode
from console.host import Host
from console.snapshot import Snapshot
from console.verbs.samples import rates_in_words
from console.verbs.verb import Session
from console.verbs.words import printable


async def watch_plainly(host: Host, session: Session) -> ExitCode:
    """Say each event of `host` until interrupted."""
    before: Snapshot | None = None
    async for snapshot in host.snapshots():
        for line in news(before, snapshot):
            session.say({}, f"{datetime.now():%H:%M:%S} {host.name} {line}")
        before = snapshot
    return ExitCode.DONE


def news(before: Snapshot | None, now: Snapshot) -> Iterator[str]:
    """What `now` tells that `before` did not: link, service, settings, figures, alarms raised and over."""
    if before is None or before.link.name != now.link.name:
        reason = f", {printable(now.link.reason)}" if now.link.reason and now.link.name != "LIVE" else ""
        yield f"link {now.link.name}{reason}"
    service, was = now.service, before.service if before else None
    if service and (was is None or (was.state, was.status_text) != (service.state, service.status_text)):
        text = f", {printable(service.status_text)}" if service.status_text else ""
        yield f"service {service.state}{text}"
    old_settings = before.settings if before else {}
    for name, value in now.settings.items():
        if old_settings and old_settings.get(name) != value:
            yield f"setting {name} is now {value}"
    if now.sample and (before is None or before.sample is not now.sample):
        yield rates_in_words(now.sample)
    known = {alarm.code for alarm in before.alarms} if before else set()
    for alarm in now.alarms:
        if alarm.code not in known:
            yield f"alarm: {alarm.sentence}"
    still = {alarm.code for alarm in now.alarms}
    for alarm in before.alarms if before else ():
        if alarm.code not in still:
            yield f"over: {alarm.sentence}"
