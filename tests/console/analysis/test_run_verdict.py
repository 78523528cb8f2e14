"""The verdict of a run from its sample rows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from console.analysis.run_verdict import exit_code_of, verdict_of_run
from console.analysis.statistics import ratio_interval, ratio_of_sums


def request(level: int, commit: float, step_ms: float, *, tokens: int = 96, **more: Any) -> dict[str, Any]:
    steps = round(tokens / commit)
    return {
        "P": level,
        "N": tokens,
        "N_usage": tokens + 1,
        "steps": steps,
        "decode_s": steps * step_ms / 1000.0,
        "ttft_s": 0.1,
        "level": level,
        "ctx_mid": level + tokens / 2,
        "finish": "length",
        "cached": 0,
        "distinct2": 0.9,
        **more,
    }


def sweep(step: Any, commit: Any, noise: float = 0.01, seed: int = 7) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        request(x, commit(x), step(x) * (1 + noise * draw.uniform(-1, 1)))
        for _ in range(3)
        for x in (50, 1000, 2000, 4000, 7500)
    ]


def test_a_curve_of_five_levels_is_explained_by_context_and_acceptance() -> None:
    report = verdict_of_run("context_curve", sweep(lambda x: 30 + 0.004 * x, lambda x: 3.0 if x < 3000 else 2.0), {})
    assert report["class"] == "explained"
    assert len(report["levels"]) == 5
    assert report["fit"]["b_ms_per_token"] == pytest.approx(0.004, rel=0.05)
    assert report["factors"]["acceptance"] == pytest.approx(1.5, rel=0.02)
    assert report["factors"]["context"] == pytest.approx((30 + 0.004 * 7548) / (30 + 0.004 * 98), rel=0.02)
    assert exit_code_of(report["class"]) == 0


def test_a_step_that_the_curve_cannot_follow_leaves_a_residual() -> None:
    # A fallback that makes one end slow although context does not ask for it: not non-negative polynomial in x.
    rows = sweep(lambda x: 60.0 if x == 50 else 30 + 0.004 * x, lambda x: 3.0)
    report = verdict_of_run("context_curve", rows, {})
    assert report["class"] == "unexplained"
    assert exit_code_of(report["class"]) == 6


def test_repetition_loops_void_a_run() -> None:
    rows = [{**r, "distinct2": 0.1} for r in sweep(lambda x: 30.0, lambda x: 6.0)]
    report = verdict_of_run("context_curve", rows, {})
    assert report["class"] == "void:degenerate_output"
    assert exit_code_of(report["class"]) == 7


def test_one_loop_is_left_out_with_its_cause_and_the_rest_counts() -> None:
    rows = sweep(lambda x: 30 + 0.004 * x, lambda x: 3.0)
    rows[0]["distinct2"] = 0.05
    report = verdict_of_run("context_curve", rows, {})
    assert report["class"] == "explained"
    assert report["warnings"][0]["code"] == "excluded" and "1 of 15" in report["warnings"][0]["msg"]


def test_tokens_counted_differently_by_engine_and_playbook_void_a_run() -> None:
    rows = sweep(lambda x: 30.0, lambda x: 3.0)
    rows[3]["N_usage"] = 120
    assert verdict_of_run("context_curve", rows, {})["class"] == "void:token_count"


def test_a_commit_length_above_the_block_is_inconsistent() -> None:
    report = verdict_of_run("context_curve", sweep(lambda x: 30.0, lambda x: 9.0), {"block_size": 8})
    assert report["class"] == "inconsistent_data"


def test_without_exact_steps_nothing_is_guessed() -> None:
    rows = [{**r, "steps": None} for r in sweep(lambda x: 30.0, lambda x: 3.0)]
    report = verdict_of_run("context_curve", rows, {})
    assert report["class"] == "inconclusive" and report["levels"] == []


def test_one_level_is_a_health_line_with_the_identity() -> None:
    report = verdict_of_run("quick_probe", [request(50, 3.0, 30.0), request(50, 3.0, 31.0)], {})
    assert report["class"] == "healthy"
    level = report["levels"][0]
    assert level["tok_s"] == pytest.approx(level["commit_length"] / level["step_ms"] * 1000.0, rel=1e-12)


def test_a_drafter_whose_tokens_are_never_kept_is_called_out() -> None:
    report = verdict_of_run("quick_probe", [request(50, 1.0, 30.0)] * 3, {})
    assert report["class"] == "commit_collapsed"
    assert exit_code_of(report["class"]) == 3


def test_an_empty_run_is_void() -> None:
    assert verdict_of_run("quick_probe", [], {})["class"] == "void:no_requests"


def test_means_are_ratios_of_sums() -> None:
    assert ratio_of_sums([100, 900], [50, 150]) == 5.0
    assert ratio_of_sums([15], [0.371]) == pytest.approx(40.431, abs=1e-3)
    assert ratio_of_sums([], []) is None


def test_the_interval_of_a_ratio_covers_about_as_often_as_it_says() -> None:
    draw = random.Random(3)
    hits = 0
    for _ in range(400):
        steps = [draw.randint(20, 40) for _ in range(6)]
        tokens = [sum(draw.choice((1, 2, 3, 4, 5)) for _ in range(s)) for s in steps]
        interval = ratio_interval(tokens, steps)
        assert interval is not None
        hits += interval[0] <= 3.0 <= interval[1]
    assert 0.90 <= hits / 400 <= 0.99


def test_a_rate_that_is_hardly_known_is_still_no_less_than_nothing() -> None:
    # Two of four answers were held up by others on the box: a plain interval would begin below zero.
    interval = ratio_interval([47, 47, 47, 47], [1.2, 1.3, 9.0, 1.1])
    assert interval is not None and 0 < interval[0] < 188 / 12.6 < interval[1]
    assert interval[0] * interval[1] == pytest.approx((188 / 12.6) ** 2)
    assert ratio_interval([0.0, 0.0], [1.0, 2.0]) is None


def codes(report: dict[str, Any]) -> dict[str, str]:
    return {one["code"]: one["msg"] for one in report["warnings"]}


def test_a_slope_that_a_few_wild_requests_made_is_told_from_the_median_of_all_slopes() -> None:
    calm = verdict_of_run("context_curve", sweep(lambda x: 30 + 0.004 * x, lambda x: 3.0), {})
    assert calm["fit"]["median_slope_ms_per_token"] == pytest.approx(0.004, rel=0.05)
    assert "slope" not in codes(calm)
    rows = sweep(lambda x: 30 + 0.004 * x, lambda x: 3.0)
    wild = [{**row, "decode_s": row["decode_s"] * (2 if at in (13, 14) else 1)} for at, row in enumerate(rows)]
    found = verdict_of_run("context_curve", wild, {})
    assert found["fit"]["b_ms_per_token"] == pytest.approx(0.0050, rel=0.03)
    assert codes(found)["slope"] == (
        "the fit has 5.0 us a token, and the median of the slopes between any two requests is 4.0: look at the levels one by one"
    )


def test_a_drafter_that_loses_its_way_in_long_contexts_is_advised_a_window_where_the_engine_has_one() -> None:
    rows = sweep(lambda x: 30.0, lambda x: 4.0 if x < 3000 else 2.0)
    env = {"engine": "sglang", "settings": {"mode": "dflash"}}
    said = codes(verdict_of_run("context_curve", rows, env))["draft_window"]
    assert said == "commit length falls from 4.00 to 2.00 with the context: draft_window is not set, try one"
    windowed = {**env, "settings": {"mode": "dflash", "draft_window": 2048}}
    assert codes(verdict_of_run("context_curve", rows, windowed))["draft_window"].endswith("is 2048, try a smaller one")
    assert "draft_window" not in codes(verdict_of_run("context_curve", rows, {**env, "engine": "vllm"}))
    steady = sweep(lambda x: 30.0, lambda x: 3.0)
    assert "draft_window" not in codes(verdict_of_run("context_curve", steady, env))


def test_three_repeats_a_level_give_intervals_that_cover_as_often_as_they_say() -> None:
    hits = total = 0
    for seed in range(60):
        for level in verdict_of_run("context_curve", sweep(lambda x: 30 + 0.004 * x, lambda x: 3.0, seed=seed), {})[
            "levels"
        ]:
            low, high = level["step_ms_ci"]
            hits, total = hits + (low < 30 + 0.004 * level["level"] < high), total + 1
    assert total == 300
    assert 0.90 <= hits / total <= 0.99
