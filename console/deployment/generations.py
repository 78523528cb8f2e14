"""Every settings generation on the box: what was changed, when, by whom, how it ended, and what is different."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from console.deployment.base import Deployment
from console.deployment.change import Difference, Generation
from console.deployment.memory_window import Tried
from console.deployment.site import AGENT, Site, failed, read_base
from console.errors import UsageError

HIDDEN = "(hidden)"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
HELD = ("installed", "confirmed")
"""Outcomes of a generation that was in force."""


def differences(deployment: Deployment, old: str, new: str) -> tuple[Difference, ...]:
    """What changes in force between two settings files, in the table's order; a default spelled out is no difference.

    The engine's environment variables come behind the settings: None where one is not set.
    """
    before, after = deployment.values(old), deployment.values(new)
    changed = [Difference(name, before[name], after[name]) for name in before if before[name] != after[name]]
    set_before, set_after = deployment.environment(old), deployment.environment(new)
    for name in sorted({*set_before, *set_after}):
        if set_before.get(name) != set_after.get(name):
            pair = (set_before.get(name), set_after.get(name))
            changed.append(Difference(name, *(_shown(name, value) for value in pair)))
    return tuple(changed)


def _shown(name: str, value: str | None) -> str | None:
    return HIDDEN if value is not None and _SECRET.search(name) else value


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


def tried_fractions(deployment: Deployment, generations: Sequence[Mapping[str, Any]]) -> tuple[Tried, ...]:
    """The memory fractions that were asked for since settings last held, each with why it was taken back."""
    since: list[Tried] = []
    for entry in generations:
        if entry["outcome"] in HELD:
            since.clear()
        elif entry.get("reason"):
            since.append(Tried(float(deployment.values(entry["text"])["memory_fraction"]), str(entry["reason"])))
    return tuple(since)


async def read_generations(site: Site) -> list[dict[str, Any]]:
    """agent/apply.py's history, oldest first, with each file's text."""
    await read_base(site)
    asked = await site.files.run([site.python, "-", "--state", site.state, "history"], input=AGENT.read_bytes())
    if asked.exit_status != 0:
        raise failed("the history cannot be read", asked.stderr, asked.exit_status, site.connection.target.name)
    generations: list[dict[str, Any]] = json.loads(asked.stdout)
    return generations
