"""A change of slope at one context is found where there is one, and looked for in vain where there is none."""

from __future__ import annotations

import random

import pytest
from test_judges import judged, row

from console.analysis.step_fit import StepPoint, fit_steps

LEVELS = (64, 1000, 2000, 3000, 4000, 6000, 8000, 12000)


def points(step: object, seed: int = 1, noise: float = 0.004) -> list[StepPoint]:
    draw = random.Random(seed)
    return [StepPoint(x, step(x) * (1 + noise * draw.gauss(0, 1))) for _ in range(3) for x in LEVELS]  # type: ignore[operator]


def bent(x: float) -> float:
    """A drafter that reads the last 3,000 tokens only."""
    return 30 + 0.010 * min(x, 3000) + 0.002 * max(0.0, x - 3000)


def test_a_window_is_found_with_both_slopes() -> None:
    fit = fit_steps(points(bent), hinge=True)
    assert fit is not None and fit.model == "hinge"
    assert fit.knot == pytest.approx(3000, abs=600)
    assert fit.b_ms_per_token == pytest.approx(0.010, rel=0.08)
    assert fit.b2_ms_per_token == pytest.approx(0.002, rel=0.15)
    assert fit.at(3000) == pytest.approx(60, rel=0.02) and fit.at(12000) == pytest.approx(78, rel=0.02)
    assert fit.leave_one_out is not None and fit.leave_one_out < 0.05
    assert fit.to_json()["knot"] == fit.knot


def test_a_hinge_is_tried_only_where_it_is_asked_for() -> None:
    fit = fit_steps(points(bent))
    assert fit is not None and fit.model != "hinge" and fit.knot is None


def test_straight_and_curved_steps_keep_their_models() -> None:
    straight = [fit_steps(points(lambda x: 30 + 0.004 * x, seed), hinge=True).model for seed in range(30)]  # type: ignore[union-attr]
    curved = [fit_steps(points(lambda x: 30 + 4e-7 * x * x, seed), hinge=True).model for seed in range(30)]  # type: ignore[union-attr]
    assert straight.count("hinge") <= 1
    assert curved.count("convex") >= 28


def test_a_sweep_says_both_slopes() -> None:
    rows = [row(3.0, bent(x), tokens=300, level=x, P=x, ctx_mid=x) for _ in range(3) for x in LEVELS]
    found = judged("context_curve", rows)
    assert found["class"] == "explained"
    assert "10.0 us a token up to 3,000 and 2.0 above" in found["headline"]
