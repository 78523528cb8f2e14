"""Under which conditions a run measured, and whether two runs may be compared (measurement.md 4.8).

A hard key that differs is either the one factor under test or the reason not to compare; a soft one is a warning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from console.experiments.reading import environment_of

# Fields of the env event.
_ENVIRONMENT = ("engine", "version", "release", "model", "model_sha", "drafter", "drafter_sha", "block_size", "gpu")
_WEIGHTS = ("model_sha", "drafter_sha")
_UNDER_ONE_NAME = {"model_sha": "model", "drafter_sha": "drafter", "release": "version"}
"""Keys that tell things of one name apart, and the key of that name. Engines that are not ours do not tell them."""
_SETTINGS_ASIDE = frozenset({"path", "drafter", "host", "port", "api_key_file", "interval_s", "context_length", "pages",
                             "memory_fraction", "max_running_requests"})  # fmt: skip
"""Settings that change neither a step nor a commit length of one request; model and drafter are keys of their own."""
_WORK = ("playbook", "playbook_version", "text", "sampling", "method", "bonus")
"""Keys that say what was measured. They can be no factor: where they differ, two different things were measured."""
_SOFT = ("driver", "versions", "clocks", "context_length", "max_running_requests", "prompts_sha", "host")
_WORK_PARAMS = ("kind", "first", "second", "prompt", "tokens", "seed")


@dataclass(frozen=True)
class Conditions:
    """What has to be equal (`hard`) and what should be (`soft`), by name."""

    hard: Mapping[str, Any]
    soft: Mapping[str, Any]

    @property
    def key(self) -> str:
        """One word for all hard keys: runs that have it in common measured the same thing the same way."""
        text = json.dumps(dict(self.hard), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Difference:
    """A key that two runs do not share, with both values."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} -> {_shown(self.after)}"

    def to_json(self) -> dict[str, Any]:
        """`{"key", "before", "after"}`."""
        return {"key": self.key, "before": self.before, "after": self.after}


def conditions_of(playbook: str, version: str, host: str, events: Sequence[Mapping[str, Any]]) -> Conditions:
    """The conditions of a run, from its own events."""
    environment = environment_of(events)
    settings: Mapping[str, Any] = environment.get("settings") or {}
    hello: Mapping[str, Any] = next((event for event in events if event.get("type") == "hello"), {})
    params: Mapping[str, Any] = hello.get("params") or {}
    summary: Mapping[str, Any] = next(
        (e.get("stats") or {} for e in reversed(events) if e.get("type") == "summary"), {}
    )
    hard: dict[str, Any] = {
        "playbook": playbook,
        "playbook_version": version.split(".")[0],
        "text": {name: params[name] for name in _WORK_PARAMS if name in params},
        "sampling": environment.get("sampling", "greedy"),
        "method": environment.get("method", "full, on the box"),
        "bonus": "included",
        **{name: environment.get(name) for name in _ENVIRONMENT},
        "drafter": _folder_name(environment.get("drafter")),
        **{name: value for name, value in settings.items() if name not in _SETTINGS_ASIDE},
    }
    soft: dict[str, Any] = {
        "host": host,
        "prompts_sha": summary.get("prompts_sha"),
        **{name: environment.get(name) for name in ("driver", "versions", "clocks")},
        **{name: settings.get(name) for name in ("context_length", "max_running_requests")},
    }
    return Conditions(hard, soft)


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every key whose value is not the same on both sides; one that only one side has counts, with None.

    Weights and release count where both sides tell them and their names are the same: another model is one difference,
    not two.
    """
    names = [*before, *(name for name in after if name not in before)]
    found = {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}
    told_already = {
        key for key, name in _UNDER_ONE_NAME.items() if key in found and (name in found or None in found[key])
    }
    return tuple(Difference(name, *both) for name, both in found.items() if name not in told_already)


def changes_since(
    reference: Mapping[str, Any], playbook: str, events: Sequence[Mapping[str, Any]]
) -> tuple[Difference, ...]:
    """Hard keys in which a run differs from the golden one that it was given."""
    hello: Mapping[str, Any] = next((event for event in events if event.get("type") == "hello"), {})
    now = conditions_of(playbook, str(hello.get("version", "0")), "", events)
    return differing(reference.get("conditions") or {}, json.loads(json.dumps(dict(now.hard), default=str)))


def change_lines(before: str, differences: Sequence[Difference]) -> list[str]:
    """What is other than in an earlier run, a line each; none where nothing is."""
    return [f"changed since {before}: {difference}" for difference in differences]


def refusal(differences: Sequence[Difference]) -> str | None:
    """Why two runs with these hard differences may not be compared; None where they may.

    One differing key is the factor under test, unless it says that other work was done, or that what has one name is
    two things.
    """
    work = [difference for difference in differences if difference.key in _WORK]
    if work:
        return f"other work was measured: {'; '.join(map(str, work))}"
    weights = [difference for difference in differences if difference.key in _WEIGHTS]
    if weights:
        told = "; ".join(map(str, weights))
        return f"other weights under one name, which would have to have two to be the factor under test: {told}"
    if len(differences) > 1:
        names = "; ".join(map(str, differences))
        return f"{len(differences)} conditions differ, and only one may, the factor under test: {names}"
    return None


def _folder_name(path: Any) -> str | None:
    """A folder's own name: where a release lies changes with every release."""
    return PurePosixPath(str(path)).name if path else None


def _shown(value: Any) -> str:
    if value is None:
        return "not said"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items()) or "nothing"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
