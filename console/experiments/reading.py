"""What a run's events hold: the requests that count, the engine as it was found, the first event of a kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COMMON = ("v", "seq", "t", "m", "type")
"""Fields that every event has."""


def first_of(events: Iterable[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    """The first event of a type; empty where there is none."""
    return next((event for event in events if event.get("type") == kind), {})


def sample_rows(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The requests that count for a verdict, in their order."""
    samples = (event for event in events if event.get("type") == "sample" and isinstance(event.get("req"), Mapping))
    return [dict(event["req"]) for event in samples if event.get("counts", True)]


def environment_of(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The engine as the run found it; empty where it did not say."""
    return {name: value for name, value in first_of(events, "env").items() if name not in (*COMMON, "phase")}
