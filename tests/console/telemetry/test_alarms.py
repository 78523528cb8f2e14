"""Each alarm of screens.md sounds when it must, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from console.telemetry.alarms import Facts, alarms_of
from console.telemetry.sample import Sample


def windows(commit: float, count: int = 4, **more: object) -> tuple[Sample, ...]:
    one = Sample("decode", "bundled", tokens=round(commit * 20), steps=20, step_ms=10.0, commit_length=commit)
    return (replace(one, **more),) * count  # type: ignore[arg-type]


WELL = Facts(
    service="serving",
    samples=windows(2.9, graph=True),
    running=1,
    quiet_s=0.4,
    queue=(0, 0, 0),
    kv_fraction=0.5,
    graphs_expected=True,
    settings={"mode": "ddtree", "page_size": 16},
    asked={"page_size": 16},
)


def codes(facts: Facts) -> list[str]:
    return [alarm.code for alarm in alarms_of(facts)]


def test_a_healthy_host_raises_nothing() -> None:
    assert codes(WELL) == []


def test_nothing_known_raises_nothing() -> None:
    assert codes(Facts()) == []


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"samples": windows(1.0)}, "commit_collapsed", "Commit length is 1.00"),
        ({"samples": windows(2.9, graph=False)}, "graph_off", "without a captured graph"),
        ({"quiet_s": 31.0}, "tokens_frozen", "No token for 31 s while 1 request runs."),
        ({"queue": (1, 2, 4), "kv_fraction": 0.95}, "queue_on_full_pool", "grows (1 to 4) with the KV pool 95 % full"),
        ({"throttles": {3: "power cap"}}, "throttled", "GPU 3: power cap"),
        ({"asked": {"page_size": 64}}, "settings_differ", "page_size is 16, asked 64"),
        ({"settings": {"simulate_acc_len": 4}}, "simulated_acceptance", "the figures are not real"),
        ({"service": "failed", "reason": "exit-code"}, "not_serving", "The service has failed (exit-code)."),
    ],
)
def test_each_alarm_is_a_sentence_with_a_key(change: dict[str, object], code: str, words: str) -> None:
    (alarm,) = alarms_of(replace(WELL, **change))  # type: ignore[arg-type]
    assert alarm.code == code
    assert words in alarm.sentence
    assert alarm.sentence.endswith(".")
    assert alarm.key


@pytest.mark.parametrize(
    "change",
    [
        {"samples": windows(1.0), "running": 0},  # nothing runs
        {"samples": windows(1.0), "settings": {"mode": "off"}},  # speculation is off on purpose
        {"samples": windows(1.0, extra={"budget": 0})},  # this request switched it off for itself
        {"samples": windows(1.0, count=1)},  # 20 steps prove nothing
        {"samples": windows(1.0, count=4) + windows(3.0, count=2)},  # it has recovered
        {"samples": windows(2.9, graph=None)},  # the engine does not say
        {"samples": windows(2.9, graph=False), "graphs_expected": False},  # no GPU, so no graphs
        {"quiet_s": 31.0, "running": 0},  # idle
        {"queue": (4, 2), "kv_fraction": 0.95},  # the queue drains
        {"queue": (1, 9), "kv_fraction": 0.5},  # the pool has room
        {"asked": {"memory_fraction": 0.85}},  # in force, but not told
    ],
)
def test_no_alarm_without_its_cause(change: dict[str, object]) -> None:
    assert codes(replace(WELL, **change)) == []  # type: ignore[arg-type]


def test_an_engine_that_logs_ratios_only_is_judged_by_its_newest_window() -> None:
    samples = (Sample("decode", "sglang", commit_length=3.0), Sample("decode", "sglang", commit_length=1.0))
    assert codes(replace(WELL, samples=samples)) == ["commit_collapsed"]
