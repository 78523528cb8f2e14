"""The first start, when no host has been opened yet: what there is to open, and a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from console.box.ssh_config import aliases
from console.config import DEMO_NAME, Places, places
from console.demo_file import read_demo
from console.hosts_file import read_hosts

MOST_SHOWN = 20
"""Hosts that are listed; an SSH config may hold hundreds."""


@dataclass(frozen=True)
class Choice:
    """What was answered: a host to open, or a verb to do, on a host where it takes one."""

    verb: str | None
    host: str | None


@dataclass(frozen=True)
class Offer:
    """A host that has a name here, and where the name comes from."""

    name: str
    source: str


def offers(where: Places | None = None) -> tuple[Offer, ...]:
    """The hosts of hosts.toml, then the aliases of the SSH config. Raises UsageError for files that cannot be read."""
    where = where or places()
    listed = [Offer(name, "hosts.toml") for name in read_hosts(where.hosts)]
    named = {one.name for one in listed}
    return (*listed, *(Offer(name, "SSH config") for name in aliases(where.ssh_config) if name not in named))


def welcome_text(found: Sequence[Offer], *, demo_runs: bool) -> str:
    """The page, at most as wide as a small terminal."""
    width = max((len(one.name) for one in found[:MOST_SHOWN]), default=0)
    lines = [
        "ddtree watches, changes and measures LLM engines over SSH.",
        "No host has been opened yet. To begin:",
        "",
        "   d  the demo: it runs already"
        if demo_runs
        else "   d  the demo: a small engine on this machine, ended as you leave",
        *(f"  {number:>2}  {one.name:<{width}}  {one.source}" for number, one in enumerate(found[:MOST_SHOWN], 1)),
    ]
    if len(found) > MOST_SHOWN:
        lines.append(f"      and {len(found) - MOST_SHOWN} more, by name")
    return "\n".join(
        [
            *lines,
            "",
            "  user@host or user@host:port opens any other; hosts.toml names them.",
            "  doctor HOST (or its number) says what would stop it from working.",
            "",
        ]
    )


def read_answer(answer: str, found: Sequence[Offer]) -> Choice | None:
    """What a line typed means; None for an empty one, which leaves. Raises ValueError naming what cannot be."""
    words = answer.split()
    if not words or words == ["q"]:
        return None
    if words == ["d"]:
        return Choice("demo", None)
    verb = words[0] if words[0] == "doctor" else None
    names = words[1:] if verb else words
    if len(names) != 1:
        raise ValueError(f"{answer.strip()!r} is neither a line of the list, a host, nor doctor HOST")
    name = names[0]
    if name.isdigit():
        if not 1 <= int(name) <= min(len(found), MOST_SHOWN):
            raise ValueError(f"there is no line {name} in the list")
        name = found[int(name) - 1].name
    return Choice("demo", None) if name == DEMO_NAME and verb is None else Choice(verb, name)


def demo_runs(where: Places | None = None) -> bool:
    """Whether a demo of this operator runs."""
    return read_demo((where or places()).demo) is not None
