"""Verdict rules and input checks of `ddtree explain` on cases other than the founding one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from console.analysis.attribution import log_mean, split_step_change
from console.analysis.explain import explain
from console.analysis.roofline import bandwidth_bytes_s, kv_bytes_per_token
from console.analysis.step_fit import StepPoint, fit_steps, mean_square_context
from console.errors import UsageError


def observe(label: str, **figures: Any) -> dict[str, Any]:
    return {"label": label, "method": "full", "bonus_included": True, **figures}


def judge(*rows: dict[str, Any]) -> dict[str, Any]:
    return explain({"observations": list(rows), "compare": [rows[0]["label"], rows[1]["label"]]})


def test_shorter_commits_at_the_same_step_and_context_are_an_acceptance_regression() -> None:
    report = judge(
        observe(
            "golden", context=1000, commit_length=3.53, commit_length_ci=[3.45, 3.61], step_ms=21.0, text_kind="code"
        ),
        observe("now", context=1000, commit_length=3.05, commit_length_ci=[2.98, 3.12], step_ms=21.1, text_kind="code"),
    )
    assert report["verdict"]["class"] == "acceptance_regression"
    assert report["attribution"]["acceptance"] == pytest.approx(3.53 / 3.05)


def test_longer_steps_at_the_same_context_are_a_step_regression() -> None:
    report = judge(
        observe("golden", context=1000, commit_length=3.50, step_ms=21.0),
        observe("now", context=1000, commit_length=3.50, step_ms=29.0),
    )
    assert report["verdict"]["class"] == "step_regression"
    assert report["attribution"]["kernel"] == pytest.approx(29.0 / 21.0)
    assert report["attribution"]["context"] == pytest.approx(1.0)


def test_a_step_off_the_curve_of_the_other_rows_is_a_step_regression_at_another_context() -> None:
    curve = [observe(f"s{x}", method="step", context=x, step_ms=20 + 0.005 * x) for x in (100, 1000, 3000, 6000)]
    report = explain(
        {
            "observations": [
                observe("golden", context=500, commit_length=3.00, step_ms=22.5),
                observe("now", context=5000, commit_length=3.00, step_ms=60.0),
                *curve,
            ],
            "compare": ["golden", "now"],
        }
    )
    assert report["verdict"]["class"] == "step_regression"
    assert report["attribution"]["kernel"] == pytest.approx(60.0 / 45.0, rel=0.01)


def test_a_collapse_at_long_context_is_split_into_acceptance_and_context() -> None:
    report = judge(
        observe("short", context=500, commit_length=6.10, step_ms=30.0),
        observe("long", context=64000, commit_length=1.90, step_ms=79.0),
    )
    split = report["attribution"]
    assert split["total"] == pytest.approx(8.45, abs=0.02)
    assert split["acceptance"] == pytest.approx(3.21, abs=0.01)
    assert split["context"] == pytest.approx(2.63, abs=0.01)
    assert report["verdict"]["class"] == "explained"


def test_a_rate_that_needs_an_impossible_commit_length_is_inconsistent() -> None:
    report = judge(
        observe("a", context=100, commit_length=2.00, step_ms=50.0, tok_s=40.0),
        observe("b", context=100, commit_length=2.00, step_ms=50.0, tok_s=10.0),
    )
    assert report["verdict"]["class"] == "inconsistent_data"


def test_a_bonus_left_out_of_the_figure_is_added() -> None:
    report = judge(
        observe("a", context=100, commit_length=4.0, step_ms=50.0),
        observe("b", context=100, commit_length=3.0, step_ms=50.0, bonus_included=False),
    )
    assert report["rows"][1]["commit_length"] == 4.0
    assert report["attribution"]["acceptance"] == pytest.approx(1.0)


def test_exact_steps_give_commit_length_and_step_time() -> None:
    report = judge(
        observe("a", prompt_tokens=100, output_tokens=300, steps=100, tok_s=60.0),
        observe("b", prompt_tokens=100, output_tokens=300, steps=150, tok_s=40.0),
    )
    assert report["rows"][0]["commit_length"] == pytest.approx(3.0)
    assert report["rows"][0]["step_ms"] == pytest.approx(50.0)
    assert report["rows"][1]["step_ms"] == pytest.approx(50.0)


def test_a_missing_commit_length_is_inconclusive_and_named() -> None:
    report = judge(
        observe("a", context=10, tok_s=50.0, step_ms=20.0), observe("b", context=10, tok_s=40.0, step_ms=20.0)
    )
    assert report["verdict"]["class"] == "inconclusive"
    assert "commit length of 'a'" in report["verdict"]["headline"]
    assert report["attribution"] is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "one JSON object"),
        ({}, "at least one row"),
        ({"observations": [{"label": "a", "tok_per_s": 3}]}, "'tok_s'"),
        ({"observations": [{"label": "a", "method": "brust"}]}, "'burst'"),
        ({"observations": [{"label": "a", "tok_s": -3}]}, "above 0"),
        ({"observations": [{"label": "a", "tok_s": True}]}, "must be a number"),
        ({"observations": [{"label": "a"}, {"label": "a"}]}, "own label"),
        ({"observations": [{"label": "short"}], "compare": ["shrt", "short"]}, "'short'"),
        ({"observations": [{"label": "a"}], "compare": ["a"]}, "two labels"),
        ({"observations": [{"label": "a", "window": [5, 5]}]}, "low < high"),
        ({"observations": [{"label": "a", "commit_length": 0.4}]}, "bonus"),
        ({"observations": [3]}, "must be an object"),
        ({"observation": []}, "'observations'"),
    ],
)
def test_bad_input_gets_one_line_that_names_the_nearest_right_thing(data: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_parts_of_a_step_sum_to_its_change_exactly() -> None:
    before, after = {"draft": 4.0, "verify": 30.0, "host": 0.0}, {"draft": 4.5, "verify": 80.0, "host": 2.0}
    parts = split_step_change(before, after)
    assert sum(parts.values()) == pytest.approx(math.log(86.5 / 34.0), rel=1e-12)
    assert parts["verify"] > parts["host"] > 0
    assert log_mean(3.0, 3.0) == 3.0


def test_curvature_is_found_on_five_levels_and_not_invented_on_a_line() -> None:
    contexts = (50, 1000, 3000, 6000, 12000)
    bent = fit_steps([StepPoint(x, 30 + 0.004 * x + 1e-6 * x * x) for x in contexts])
    straight = fit_steps(
        [
            StepPoint(x, (30 + 0.004 * x) * (1 + e))
            for x, e in zip(contexts, (0.01, -0.01, 0.0, 0.01, -0.01), strict=True)
        ]
    )
    assert bent is not None and bent.model == "convex" and bent.q == pytest.approx(1e-6, rel=1e-3)
    assert (
        straight is not None
        and straight.model == "linear"
        and straight.b_ms_per_token == pytest.approx(0.004, rel=0.05)
    )
    assert straight.b_ci is not None and straight.b_ci[0] < 0.004 < straight.b_ci[1]
    assert straight.leave_one_out is not None and straight.leave_one_out < 0.1


def test_two_levels_are_a_line_that_nobody_has_verified() -> None:
    fit = fit_steps([StepPoint(10, 20.0), StepPoint(5000, 40.0)])
    assert fit is not None and not fit.verified and fit.levels == 2


def test_mean_square_of_a_growing_context() -> None:
    exact = sum((100 + n) ** 2 for n in range(1000)) / 1000
    assert mean_square_context(100, 1000) == pytest.approx(exact, rel=2e-3)


def test_cache_bytes_of_latent_and_grouped_attention() -> None:
    kimi = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64}
    assert kv_bytes_per_token(kimi, tensor_parallel=8) == 70_272
    assert kv_bytes_per_token({"text_config": kimi}, dtype="fp8") == 35_136
    qwen = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    assert kv_bytes_per_token(qwen) == 147_456
    assert kv_bytes_per_token(qwen, tensor_parallel=8) == 18_432


@pytest.mark.parametrize(
    ("hardware", "bytes_s"),
    [
        ({"memory_bandwidth_gb_s": 1790}, 1.79e12),
        ({"bandwidth_tb_s": 4.8}, 4.8e12),
        ({"memory_bandwidth_bytes_s": 2e12}, 2e12),
        ({"memory_bandwidth": 1790}, 1.79e12),
        ({"gpu": "x"}, None),
    ],
)
def test_bandwidth_is_read_with_its_unit(hardware: dict[str, Any], bytes_s: float | None) -> None:
    assert bandwidth_bytes_s(hardware) == bytes_s
