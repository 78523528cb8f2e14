"""Whether the machine held still along a run: what moves is named beside the verdict, and a still one is left in peace."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from test_judges import judged, row

LEVELS = (64, 1000, 3000, 6000)


def curve(factor: Any = lambda i: 1.0, *, reps: int = 4, seed: int = 1, **more: Any) -> list[dict[str, Any]]:
    """A context curve whose i-th request takes `factor(i)` times what its context asks for."""
    draw = random.Random(seed)
    order = [level for _ in range(reps) for level in draw.sample(LEVELS, len(LEVELS))]
    return [
        row(3.0, (30 + 0.004 * level) * factor(i) * math.exp(draw.gauss(0, 0.004)), tokens=300, level=level, P=level,
            ctx_mid=level + 150, **{name: value(i) for name, value in more.items()})
        for i, level in enumerate(order)
    ]  # fmt: skip


def codes(rows: list[dict[str, Any]]) -> set[str]:
    return {warning["code"] for warning in judged("context_curve", rows)["warnings"]}


def test_a_still_machine_is_left_in_peace() -> None:
    noisy = [code for seed in range(20) for code in codes(curve(seed=seed))]
    assert len(noisy) <= 4  # 20 runs, several looks each
    assert "drift" not in noisy


def test_a_machine_that_grows_slower_along_the_run_is_said_to_drift() -> None:
    assert "drift" in codes(curve(lambda i: 1 + 0.01 * i))


def test_requests_that_warmed_up_are_named_with_how_many() -> None:
    rows = curve(lambda i: 1.4 if i < 2 else 1.0)
    warning = next(one for one in judged("context_curve", rows)["warnings"] if one["code"] == "warm_up")
    assert warning["msg"].startswith("the first 2 requests are slower")


def test_a_clock_that_decides_is_told_with_the_adjusted_step() -> None:
    clocks = [1980.0 - 60.0 * (i % 8) for i in range(16)]
    rows = curve(lambda i: 1980.0 / clocks[i], clock_mhz=lambda i: clocks[i])
    warning = next(one for one in judged("context_curve", rows)["warnings"] if one["code"] == "clocks")
    assert "ranged over 21 %" in warning["msg"] and "at 1560 MHz" in warning["msg"]
    assert "clocks" not in codes(curve(clock_mhz=lambda i: 1980.0))


def test_one_wild_request_is_marked_and_counts_all_the_same() -> None:
    rows = curve(lambda i: 2.0 if i == 7 else 1.0)
    found = judged("context_curve", rows)
    assert "outliers" in {one["code"] for one in found["warnings"]}
    assert sum(level["requests"] for level in found["levels"]) == 16


@pytest.mark.parametrize("kind", ["context_curve", "output_sweep"])
def test_the_warnings_change_no_verdict(kind: str) -> None:
    assert judged(kind, curve())["class"] == judged(kind, curve(lambda i: 1 + 0.002 * i))["class"]
