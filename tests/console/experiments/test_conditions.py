"""What differs between two runs counts whether anybody set it or not: a default that a release flipped, for one."""

from __future__ import annotations

from typing import Any

from console.experiments.conditions import changes_since, conditions_of


def events(version: str, **settings: Any) -> list[dict[str, Any]]:
    return [
        {"type": "hello", "playbook": "diagnose", "version": "1.0.0", "params": {"tokens": 64}},
        {
            "type": "env",
            "engine": "sglang",
            "version": version,
            "model": "m",
            "settings": {"mode": "eagle", **settings},
        },
    ]


def test_a_default_that_another_release_flips_is_listed_although_no_flag_differs() -> None:
    before = conditions_of("diagnose", "1.0.0", "gpu-01", events("0.5.4", attention="fa3"))
    reference = {"conditions": dict(before.hard)}
    found = changes_since(reference, "diagnose", events("0.5.5", attention="triton"))
    assert [str(one) for one in found] == ["version: 0.5.4 -> 0.5.5", "attention: fa3 -> triton"]
    appeared = changes_since(reference, "diagnose", events("0.5.4", attention="fa3", split=8))
    assert [str(one) for one in appeared] == ["split: not said -> 8"]
    assert changes_since(reference, "diagnose", events("0.5.4", attention="fa3")) == ()
