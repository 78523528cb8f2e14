"""Every settings generation on the box: what was changed, when, by whom, how it ended, and what is different."""

from __future__ import annotations

import json
from typing import Any

from console.deployment.base import Deployment
from console.deployment.change import Difference, Generation
from console.deployment.site import AGENT, Site, failed, read_base
from console.errors import UsageError

HELD = ("installed", "confirmed")
"""Outcomes of a generation that was in force."""


def differences(deployment: Deployment, old: str, new: str) -> tuple[Difference, ...]:
    """What changes in force between two settings files, in the table's order; a default spelled out is no difference."""
    before, after = deployment.values(old), deployment.values(new)
    return tuple(Difference(name, before[name], after[name]) for name in before if before[name] != after[name])


async def history(site: Site) -> tuple[Generation, ...]:
    """Every settings generation on the box, newest first, each with what it changed from the one in force before it."""
    found: list[Generation] = []
    in_force: str | None = None
    for entry in await read_generations(site):
        changed = differences(site.deployment, in_force, entry["text"]) if in_force is not None else ()
        found.append(
            Generation(
                number=entry["number"],
                sha=entry["sha"],
                when=entry["when"],
                who=entry["who"],
                outcome=entry["outcome"],
                request_id=entry["request_id"],
                differences=changed,
            )
        )
        if entry["outcome"] in HELD:
            in_force = entry["text"]
    return tuple(reversed(found))


async def diff(site: Site, old: int, new: int) -> tuple[Difference, ...]:
    """What is different between two generations, by their numbers. Raises UsageError for one that is not there."""
    texts = {entry["number"]: entry["text"] for entry in await read_generations(site)}
    for number in (old, new):
        if number not in texts:
            known = f"0 to {max(texts)}" if texts else "none yet"
            raise UsageError("no such generation", where=str(number), mend=f"there are {known}")
    return differences(site.deployment, texts[old], texts[new])


async def read_generations(site: Site) -> list[dict[str, Any]]:
    """agent/apply.py's history, oldest first, with each file's text."""
    await read_base(site)
    asked = await site.connection.run([site.python, "-", "--state", site.state, "history"], input=AGENT.read_bytes())
    if asked.exit_status != 0:
        raise failed("the history cannot be read", asked.stderr, asked.exit_status, site.connection.target.name)
    generations: list[dict[str, Any]] = json.loads(asked.stdout)
    return generations
