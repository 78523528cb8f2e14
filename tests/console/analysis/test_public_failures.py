"""Failures that others have reported in public, each with its small figures: what the analysis has to say to them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from test_judges import arms, judged, row

from console.analysis.comparison import compare_rows, verdict_of_comparison
from console.analysis.explain import explain


def level(context: int, commit: float, step_ms: float, **more: Any) -> list[dict[str, Any]]:
    """Three requests of one level, a little apart."""
    return [
        row(
            commit * (1 + wobble),
            step_ms * (1 + wobble),
            tokens=300,
            level=context,
            P=context,
            ctx_mid=context + 150,
            **more,
        )
        for wobble in (-0.004, 0.0, 0.004)
    ]


def test_a_drafter_with_few_positions_loses_acceptance_and_not_steps() -> None:
    rows = [*level(1000, 3.4, 30.0), *level(3000, 1.2, 33.0)]
    found = judged("context_curve", rows, env={"drafter_window": 2048})
    assert found["factors"]["acceptance"] == pytest.approx(3.4 / 1.2, rel=0.02)
    assert found["factors"]["context"] == pytest.approx(1.1, rel=0.02)
    warning = next(one for one in found["warnings"] if one["code"] == "drafter_window")
    assert "above 2,048 tokens" in warning["msg"] and "3.40 -> 1.20" in warning["msg"]


def test_a_drafter_trained_on_short_text_and_a_growing_step_are_told_apart() -> None:
    rows = [
        {"label": "500", "context": 500, "commit_length": 6.1, "step_ms": 30, "method": "step", "bonus_included": True},
        {
            "label": "64k",
            "context": 64000,
            "commit_length": 1.9,
            "step_ms": 79,
            "method": "step",
            "bonus_included": True,
        },
    ]
    split = explain({"observations": rows, "compare": ["500", "64k"]})["attribution"]
    assert split["total"] == pytest.approx(8.45, rel=0.01)
    assert split["acceptance"] == pytest.approx(3.21, rel=0.01)
    assert split["context"] * split["kernel"] == pytest.approx(2.63, rel=0.01)


def test_where_speculation_is_a_loss_at_long_context_the_break_even_is_named() -> None:
    rows = arms({"now": (4.0, 4000 / 190), "off": (1.0, 1000 / 74)}, levels=(500,))
    rows += arms({"now": (1.5, 1500 / 16), "off": (1.0, 1000 / 71)}, levels=(185_000,))
    found = judged("budget_sweep", rows, env={"settings": {"mode": "ddtree", "tree_budget": 16}})
    assert 500 < found["break_even"] < 185_000
    assert found["break_even"] == pytest.approx(500 + 184_500 * 0.943 / (0.943 + 1.490), rel=0.02)
    assert "plain decoding is faster" in found["next"] and "changes" not in found
    assert "at 185000 tokens off gives" in found["headline"]


def test_steps_that_leave_their_captured_graphs_above_a_context_are_named() -> None:
    rows = [*level(1000, 3.0, 55.0, graph=1), *level(4000, 3.0, 56.0, graph=1), *level(5000, 3.0, 130.0, graph=0)]
    found = judged("context_curve", rows)
    warning = next(one for one in found["warnings"] if one["code"] == "graph_fallback")
    assert "from 5000 tokens on" in warning["msg"] and "up to 4000" in warning["msg"]
    assert not any(one["code"] == "graph_fallback" for one in judged("context_curve", rows[:6])["warnings"])


def test_a_commit_length_above_what_was_drafted_is_a_contradiction() -> None:
    found = judged("quick_probe", [row(6.3, 30.0) for _ in range(3)], env={"block_size": 5})
    assert found["class"] == "inconsistent_data" and "at most 5" in found["headline"]


def test_acceptance_that_fell_between_two_releases_at_the_same_step_is_an_acceptance_regression() -> None:
    before = [row(3.53 * (1 + w), 21.0, tokens=600) for w in (-0.01, 0.0, 0.01)]
    after = [row(3.05 * (1 + w), 21.1, tokens=600) for w in (-0.01, 0.0, 0.01)]
    verdict = verdict_of_comparison(compare_rows(before, after))
    assert verdict.klass == "acceptance_regression"
    assert "acceptance 1.16x" in verdict.headline and "drafter, engine version" in verdict.next


def test_a_slower_step_names_the_stage_it_lies_in() -> None:
    stages = {"draft": 4.0, "build": 1.0, "verify": 14.0, "walk": 0.2, "commit": 0.8, "host": 1.0}
    before = [row(3.5 * (1 + w), 21.0, tokens=600, stages_ms=stages) for w in (-0.01, 0.0, 0.01)]
    slower = {**stages, "verify": 34.0}
    after = [row(3.5 * (1 + w), 41.0, tokens=600, stages_ms=slower) for w in (-0.01, 0.0, 0.01)]
    found = compare_rows(before, after)
    assert found is not None and found.stages is not None
    assert sum(found.stages.values()) == pytest.approx(math.log(41.0 / 21.0))
    assert found.stages["verify"] == pytest.approx(math.log(41.0 / 21.0))  # all of it
    assert "100 % of it in verify" in verdict_of_comparison(found).headline
    untold = compare_rows([{**one, "stages_ms": None} for one in before], after)
    assert untold is not None and untold.stages is None


def test_a_page_size_that_prints_loops_is_broken_although_it_is_faster() -> None:
    rows = [
        row(7.9 if arm == "page 64" else 4.8, 40.0, arm=arm, block=block, distinct2=0.01 if arm == "page 64" else 0.9)
        for block in range(4)
        for arm in ("page 1", "page 64")
    ]
    found = judged("page_size_ab", rows, summary={"arms": ["page 1", "page 64"], "changes": {"page_size": 64}})
    assert found["class"] == "broken" and "changes" not in found


def test_a_second_run_on_a_warm_prefix_cache_is_void() -> None:
    rows = [row(3.0, 30.0, P=2701, cached=2690, ttft_s=0.11) for _ in range(3)]
    assert judged("quick_probe", rows)["class"] == "void:warm_cache"


def test_speculation_that_goes_off_for_good_is_void_and_a_rare_draft_is_not() -> None:
    windows = [row(3.1, 88.0), row(3.0, 88.0), row(1.0, 31.0), row(1.0, 31.0)]
    assert judged("quick_probe", windows)["class"] == "void:speculation_off"
    rare = [
        row(1.05, 30.0, tokens=42),
        row(1.02, 30.0, tokens=60),
        row(1.0, 30.0, tokens=15),
        row(1.0, 30.0, tokens=15),
    ]
    assert judged("quick_probe", rare)["class"] != "void:speculation_off"


def test_a_kind_that_keeps_nothing_and_happens_to_be_measured_last_is_no_switch() -> None:
    rows = [
        row(1.0 if kind == "code" else 1.4, 30.0, kind=kind) for _ in range(3) for kind in ("prose", "chat", "code")
    ] + [row(1.0, 30.0, kind="code")] * 2
    assert judged("quick_probe", rows)["class"] != "void:speculation_off"
    switched = rows[:3] + [row(1.0, 30.0, kind=kind) for kind in ("prose", "chat", "code")]
    assert judged("quick_probe", switched)["class"] == "void:speculation_off"


def test_two_answers_that_keep_nothing_at_the_end_of_a_run_are_chance() -> None:
    # Steps of 39 tokens as they were measured, prose at 160 and at 1024 tokens; the last two answers kept nothing.
    rows = [row(39 / steps, 20.0, tokens=39, level=160) for steps in (22, 35, 23, 31, 32)]
    rows += [row(39 / steps, 35.0, tokens=39, level=1024) for steps in (28, 29, 32, 33, 32)]
    ends = [row(1.0, 20.0, tokens=39, level=160), row(1.0, 35.0, tokens=39, level=1024)]
    assert judged("quick_probe", rows + ends)["class"] != "void:speculation_off"
    assert judged("quick_probe", rows + ends * 2)["class"] == "void:speculation_off"
