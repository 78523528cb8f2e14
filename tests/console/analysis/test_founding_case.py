"""The founding case, number by number: 138 tok/s one day, 32.7 the next, and no regression."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from console.analysis.explain import explain
from console.analysis.identities import (
    burst_bias,
    decode_ms,
    harmonic_commit,
    ramp,
    tokens_per_second,
    two_request_line,
)

CASE = Path(__file__).parents[2] / "data" / "founding_case.json"


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return explain(json.loads(CASE.read_text()))


def row(report: dict[str, Any], label: str) -> dict[str, Any]:
    return next(r for r in report["rows"] if r["label"] == label)


def compare(before: str, after: str) -> dict[str, Any]:
    return explain({**json.loads(CASE.read_text()), "compare": [before, after]})


def test_the_line_through_the_two_measured_steps(report: dict[str, Any]) -> None:
    assert report["fit"]["b_ms_per_token"] == pytest.approx(0.0200474, abs=1e-6)
    assert report["fit"]["a_ms"] == pytest.approx(33.7394, abs=1e-3)
    assert report["fit"]["verified"] is False
    assert row(report, "long")["model_step_ms"] == pytest.approx(102.923, abs=0.01)


def test_predictions_and_implied_figures_of_every_row(report: dict[str, Any]) -> None:
    implied = {"long": 3.366, "short 200": 5.534, "short 1200": 6.485, "burst at 64": 9.462, "burst at 3072": 11.007}
    for label, commit in implied.items():
        assert row(report, label)["implied_commit_length"] == pytest.approx(commit, abs=0.005), label
    assert row(report, "long")["predicted_tok_s"] == pytest.approx(28.176, abs=0.01)
    assert row(report, "long")["implied_step_ms"] == pytest.approx(88.685, abs=0.01)


def test_the_slowdown_splits_into_context_acceptance_and_a_small_residual(report: dict[str, Any]) -> None:
    split = report["attribution"]
    assert split["total"] == pytest.approx(4.700, abs=0.002)
    assert split["acceptance"] == pytest.approx(1.724, abs=0.002)
    assert split["context"] == pytest.approx(2.859, abs=0.002)
    assert split["residual"] == pytest.approx(0.954, abs=0.002)
    assert split["total"] == pytest.approx(
        split["acceptance"] * split["context"] * split["kernel"] * split["residual"], rel=1e-12
    )
    low, high = split["residual_ci"]
    assert low == pytest.approx(0.837, abs=0.01)
    assert high == pytest.approx(1.094, abs=0.01)
    assert split["ms_per_token"]["context"] == pytest.approx(18.23, abs=0.01)
    assert split["ms_per_token"]["acceptance"] == pytest.approx(10.06, abs=0.01)
    assert split["ms_per_token"]["residual"] == pytest.approx(-4.21, abs=0.01)


def test_the_verdict_is_explained_with_exactly_the_five_warnings(report: dict[str, Any]) -> None:
    assert report["verdict"]["class"] == "explained"
    codes = [w["code"] for w in report["verdict"]["warnings"]]
    assert sorted(codes) == ["bonus_unknown", "double_count", "misfit", "not_comparable", "roofline"]
    words = {w["code"]: w["msg"] for w in report["verdict"]["warnings"]}
    assert "28.2" in words["misfit"] and "+16 %" in words["misfit"]
    assert "9.5" in words["not_comparable"] and "11.0" in words["not_comparable"]
    assert "1.06x" in words["double_count"] and "1.90x" in words["double_count"]
    assert "20.0 us" in words["roofline"] and "0.2 %" in words["roofline"] and "70,272" in words["roofline"]
    assert "28.2" in words["bonus_unknown"] and "37.9" in words["bonus_unknown"]


def test_the_line_through_the_two_short_runs_has_an_impossible_intercept(report: dict[str, Any]) -> None:
    check = report["checks"][0]
    assert check["rows"] == ["short 200", "short 1200"]
    assert check["slope_tok_s"] == pytest.approx(138.59, abs=0.02)
    assert check["intercept_s"] == pytest.approx(-0.1419, abs=0.001)


def test_the_convex_hypothesis_fits_every_row(report: dict[str, Any]) -> None:
    joint = report["alternatives"][0]
    assert joint["rms"] < 0.015
    assert joint["spare_degrees_of_freedom"] == 2
    assert joint["a_ms"] == pytest.approx(34.20, abs=0.05)
    assert joint["q"] == pytest.approx(2.4e-6, rel=0.03)
    assert joint["commit_lengths"]["full C=5"] == pytest.approx(5.485, abs=0.01)
    assert joint["commit_lengths"]["burst C=5"] == pytest.approx(9.07, abs=0.05)


@pytest.mark.parametrize(
    ("before", "total", "context", "residual"),
    [("short 1200", 4.309, 2.236, 1.118), ("burst at 3072", 3.456, 1.057, 1.897)],
)
def test_other_pairs_of_the_case_split_as_known(before: str, total: float, context: float, residual: float) -> None:
    split = compare(before, "long")["attribution"]
    assert split["total"] == pytest.approx(total, abs=0.002)
    assert split["context"] == pytest.approx(context, abs=0.002)
    assert split["residual"] == pytest.approx(residual, abs=0.002)


def test_a_burst_is_not_compared_with_a_whole_run() -> None:
    assert compare("burst at 3072", "long")["verdict"]["class"] == "not_comparable"


def test_a_ramp_of_the_commit_length_is_slower_than_its_mean_suggests() -> None:
    def step(x: float) -> float:
        return 33.7394 + 0.0200474 * x

    seconds = decode_ms(step, ramp(5.0, 2.9, 1500), 2701, 1500) / 1000.0
    assert 1500 / seconds == pytest.approx(36.97, abs=0.02)
    naive = tokens_per_second(harmonic_commit(5.0, 2.9), step(2701 + 750))
    assert naive == pytest.approx(37.46, abs=0.02)


def test_a_burst_on_the_same_prompt_would_have_read_twice_the_full_rate() -> None:
    bias = burst_bias(step_full_ms=102.92, step_window_ms=89.97, commit_window=5.0, commit_full=2.9)
    assert bias == pytest.approx(1.97, abs=0.005)
    assert 28.2 * bias == pytest.approx(55.6, abs=0.1)


def test_the_line_needs_two_different_lengths() -> None:
    line = two_request_line(200, 153.7, 1200, 140.9)
    assert math.isclose(line.tok_s, 138.59, abs_tol=0.02)
