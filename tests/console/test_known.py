"""What is known of a host: kept with its age when the link breaks, dropped when the engine is down."""

from __future__ import annotations

from dataclasses import replace

from console.box.values import LinkState, Record, ServiceState
from console.engine_report import EngineReport
from console.known import Known
from console.snapshot import EngineInfo, KvFigures
from console.telemetry.sample import Sample

LIVE = LinkState("LIVE", since_s=0.0)
SERVING = ServiceState("serving", "ddtree-engine.service", "user", invocation="one")
WINDOW = Sample("decode", "bundled", tokens=60, steps=20, step_ms=10.0, commit_length=3.0)


def report(running: int = 1, queued: int = 0, invocation: str = "one", used: int = 10) -> EngineReport:
    return EngineReport(
        EngineInfo("bundled"), invocation, {"page_size": 16}, KvFigures(used, 100, 16), running=running, queued=queued
    )


def serving() -> Known:
    known = Known("gpu-01", LIVE).with_service(SERVING, 1.0).with_report(report(), 2.0)
    return known.with_records([Record("c", 1, "decode …")], [WINDOW], 3.0, live=True)


def codes(known: Known, now_s: float) -> list[str]:
    return [alarm.code for alarm in known.snapshot(now_s).alarms]


def test_figures_stay_when_the_link_breaks_and_carry_their_age() -> None:
    lost = serving().with_link(LinkState("LOST", since_s=4.0)).snapshot(60.0)
    assert lost.sample == WINDOW and lost.settings == {"page_size": 16}
    assert (lost.taken_s, lost.data_s) == (60.0, 3.0)


def test_silence_over_a_lost_link_is_not_taken_for_a_frozen_engine() -> None:
    known = serving()
    assert codes(known, 40.0) == ["tokens_frozen"]
    assert codes(known.with_link(LinkState("LOST", since_s=4.0)), 400.0) == []


def test_an_engine_that_is_down_has_no_figures_of_its_own() -> None:
    down = serving().with_service(replace(SERVING, state="failed", result="exit-code"), 5.0).snapshot(6.0)
    assert down.engine is None and down.kv is None and down.settings == {}
    assert [alarm.code for alarm in down.alarms] == ["not_serving"]


def test_the_first_seconds_of_a_request_are_not_frozen() -> None:
    idle = Known("gpu-01", LIVE).with_service(SERVING, 1.0).with_report(report(running=0), 2.0)
    assert codes(idle.with_report(report(), 100.0), 110.0) == []
    assert codes(idle.with_report(report(), 100.0), 131.0) == ["tokens_frozen"]


def test_lines_read_back_from_before_are_no_sign_of_life() -> None:
    known = Known("gpu-01", LIVE).with_service(SERVING, 1.0).with_report(report(), 2.0)
    known = known.with_records([], [WINDOW], 30.0, live=False)
    assert codes(known, 33.0) == ["tokens_frozen"]
    assert known.snapshot(33.0).sample == WINDOW


def test_a_growing_queue_on_a_full_pool_is_seen_over_the_polls() -> None:
    known = serving()
    for at, queued in enumerate((1, 2, 4)):
        known = known.with_report(report(queued=queued, used=95), 3.0 + at)
    assert codes(known, 6.0) == ["queue_on_full_pool"]


def test_a_restart_forgets_the_queue_and_the_tree_but_not_the_chart() -> None:
    known = serving().with_report(report(queued=9), 4.0).with_report(report(invocation="two"), 5.0)
    assert known.queue == (0,)
    assert known.snapshot(6.0).samples == (WINDOW,)


def test_settings_asked_for_and_not_in_force_are_an_alarm() -> None:
    assert codes(serving().with_asked({"page_size": 64}), 4.0) == ["settings_differ"]
