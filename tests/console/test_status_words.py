"""Verbs in words: a figure is called `now` while a request runs, and its window's time stands beside it always."""

from __future__ import annotations

from dataclasses import replace

from console.box.values import LinkState
from console.deployment.change import Difference
from console.snapshot import EngineInfo, Snapshot
from console.telemetry.sample import Sample
from console.verbs.service import differences_text
from console.verbs.status import status_text
from console.verbs.words import Style

WINDOW = Sample(kind="decode", engine="bundled", time="2026-05-04T10:00:00+00:00", tokens=30, steps=10, step_ms=50.0)
BOX = Snapshot(host="box", taken_s=0.0, link=LinkState("LIVE", 0.0), engine=EngineInfo("bundled"), samples=(WINDOW,))


def figures_line(**changes: object) -> str:
    """The line of the status that holds the rates."""
    lines = status_text(replace(BOX, **changes), Style(False)).splitlines()  # type: ignore[arg-type]
    return next(line for line in lines if "step 50.0 ms" in line)


def test_a_window_is_now_only_while_a_request_runs() -> None:
    assert figures_line(running=1).startswith("now ")
    assert figures_line(running=None).startswith("now ")  # an engine that does not tell
    idle = figures_line(running=0)
    assert idle.startswith("last ") and "2026-05-04T10:00:00+00:00, no request runs" in idle
    assert figures_line(running=None, engine=None).startswith("last ")


def test_a_setting_that_is_empty_is_a_word_beside_the_arrow() -> None:
    assert differences_text([Difference("rope_scaling", "", "yarn:4")]) == "rope_scaling  (empty)  →  yarn:4"
    assert "\x1b" not in differences_text([Difference("path", "/m", "/\x1b[2J")])
