"""What differs between two runs counts whether anybody set it or not: a default that a release flipped, for one."""

from __future__ import annotations

from typing import Any

from console.experiments.conditions import changes_since, conditions_of, differing, refusal


def events(version: str, environment: dict[str, Any] | None = None, **settings: Any) -> list[dict[str, Any]]:
    return [
        {"type": "hello", "playbook": "diagnose", "version": "1.0.0", "params": {"tokens": 64}},
        {
            "type": "env",
            "engine": "sglang",
            "version": version,
            "model": "m",
            "settings": {"mode": "eagle", **settings},
            **(environment or {}),
        },
    ]


def between(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two runs whose environments have these fields."""
    ours, theirs = (conditions_of("diagnose", "1.0.0", "gpu-01", events("1", one)) for one in (before, after))
    return [str(one) for one in differing(ours.hard, theirs.hard)]


def test_a_default_that_another_release_flips_is_listed_although_no_flag_differs() -> None:
    before = conditions_of("diagnose", "1.0.0", "gpu-01", events("0.5.4", attention="fa3"))
    reference = {"conditions": dict(before.hard)}
    found = changes_since(reference, "diagnose", events("0.5.5", attention="triton"))
    assert [str(one) for one in found] == ["version: 0.5.4 -> 0.5.5", "attention: fa3 -> triton"]
    appeared = changes_since(reference, "diagnose", events("0.5.4", attention="fa3", split=8))
    assert [str(one) for one in appeared] == ["split: not said -> 8"]
    assert changes_since(reference, "diagnose", events("0.5.4", attention="fa3")) == ()


def test_other_weights_under_one_name_differ() -> None:
    ours = {"model_sha": "aa11", "drafter": "/models/d", "drafter_sha": "bb22"}
    assert between(ours, ours) == []
    assert between(ours, {**ours, "drafter": "/elsewhere/d"}) == []  # moved, not changed
    assert between(ours, {**ours, "drafter_sha": "cc33"}) == ["drafter_sha: bb22 -> cc33"]
    assert between(ours, {**ours, "model_sha": "dd44"}) == ["model_sha: aa11 -> dd44"]
    retrained, renamed = (
        refusal(differing({"drafter": "d", "drafter_sha": "bb22"}, {"drafter": name, "drafter_sha": "cc33"}))
        for name in ("d", "e")
    )
    assert retrained is not None and retrained.endswith("drafter_sha: bb22 -> cc33")
    assert renamed is None  # the drafter is the factor under test


def test_another_model_is_one_difference_and_weights_that_one_side_does_not_tell_are_none() -> None:
    assert between({"model_sha": "aa11"}, {"model": "n", "model_sha": "dd44"}) == ["model: m -> n"]
    drafted = {"drafter": "/models/d", "drafter_sha": "bb22"}
    assert between(drafted, {}) == ["drafter: d -> not said"]  # speculation without a drafter: one key
    assert between({}, {"model_sha": "aa11"}) == []  # measured before engines told it
    assert between({"release": "1-aa"}, {"release": "1-bb"}) == ["release: 1-aa -> 1-bb"]
    assert between({"release": "1-aa"}, {"version": "2", "release": "2-bb"}) == ["version: 1 -> 2"]
