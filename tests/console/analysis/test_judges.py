"""What each playbook's figures say: planted effects are named, and nothing is blamed where nothing was planted."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from console.analysis.judges import judge_run
from console.analysis.judges.facts import RunFacts
from console.analysis.judges.kinds import survival_of
from console.analysis.run_verdict import exit_code_of

KINDS = ("code", "json", "math", "copy", "prose", "chat")


def row(
    commit: float,
    step_ms: float,
    *,
    tokens: int = 120,
    noise: float = 0.0,
    draw: random.Random | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A request with that commit length and step time."""
    steps = max(round(tokens / commit), 1)
    decode_s = steps * step_ms / 1000 * math.exp(draw.gauss(0, noise) if draw else 0)
    n = round(steps * commit)
    return {
        "P": 64, "N": n, "N_usage": n + 1, "steps": steps, "decode_s": decode_s, "client_decode_s": decode_s, "tok_s": n / decode_s,
        "commit": n / steps, "step_ms": 1000 * decode_s / steps, "cached": 0, "distinct2": 0.9, "top1": 0.05, "loop": 0.0,
        "kind": "prose", "level": 64, "ctx_mid": 64 + n / 2, "chunks": steps + 1, **more,
    }  # fmt: skip


def judged(playbook: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return judge_run(RunFacts(playbook, rows, **more))


# --- accept_drift


def answers(commit: Any, seed: int = 1, count: int = 3) -> list[dict[str, Any]]:
    draw, rows = random.Random(seed), []
    for rep in range(count):
        windows, steps_in_all = [], 0
        for end in range(100, 1300, 100):
            steps = round(100 / (commit((end - 50) / 1200) * math.exp(draw.gauss(0, 0.03))))
            steps_in_all += steps
            windows.append({"end": end, "tokens": 100, "steps": steps, "wall_s": steps * (0.03 + end * 1e-6)})
        whole = row(1200 / steps_in_all, 30.0, tokens=1200)
        rows.append({**whole, "rep": rep, "windows": windows})
    return rows


def test_a_commit_length_that_falls_along_the_answer_is_drift_with_its_ramp() -> None:
    found = judged("accept_drift", answers(lambda x: 5 - 2 * min(x / 0.6, 1)))
    assert found["class"] == "acceptance_drift"
    assert found["change"]["ratio"] < 0.75
    assert (found["ramp"]["first"], found["ramp"]["last"]) == (pytest.approx(5, abs=0.3), pytest.approx(3, abs=0.2))
    assert found["ramp"]["share"] == pytest.approx(0.6, abs=0.15)
    assert exit_code_of(found["class"]) == 0


def test_a_commit_length_that_holds_is_not_blamed() -> None:
    for seed in range(10):
        found = judged("accept_drift", answers(lambda x: 3.0, seed=seed))
        assert found["class"] == "explained", found["headline"]


def test_a_rise_in_answers_that_repeat_themselves_is_no_better_drafter() -> None:
    rows = [{**one, "distinct2": 0.3} for one in answers(lambda x: 2 + 2 * x)]
    assert [one["code"] for one in judged("accept_drift", rows)["warnings"]] == ["repetition"]


def test_too_few_windows_say_nothing() -> None:
    rows = [{**one, "windows": one["windows"][:2]} for one in answers(lambda x: 3.0)]
    assert judged("accept_drift", rows)["class"] == "inconclusive"


# --- drafter_kinds


def of_kinds(commits: dict[str, float]) -> list[dict[str, Any]]:
    return [
        row(c, 30.0, kind=kind, level=level, hist=[20, 10, 5, 1, 0, 0, 0, 0])
        for kind, c in commits.items()
        for level in (64, 1024)
        for _ in range(3)
    ]


def test_kinds_are_ranked_and_a_kind_on_which_nothing_is_kept_is_called_out() -> None:
    commits = {"code": 4.0, "json": 3.5, "math": 3.0, "copy": 6.0, "prose": 1.5, "chat": 1.02}
    found = judged("drafter_kinds", of_kinds(commits), env={"block_size": 16})
    assert found["class"] == "commit_collapsed" and "on chat" in found["headline"]
    assert found["kinds"][0]["kind"] == "chat" and found["kinds"][-1]["kind"] == "copy"
    assert [one["code"] for one in found["warnings"]] == ["depth"]
    healthy = judged("drafter_kinds", of_kinds({**commits, "chat": 1.4, "copy": 4.9}), env={"block_size": 5})
    assert healthy["class"] == "healthy" and healthy["warnings"] == []


def test_a_commit_length_above_the_block_is_inconsistent() -> None:
    assert judged("drafter_kinds", of_kinds({"code": 9.0}), env={"block_size": 8})["class"] == "inconsistent_data"


def test_survival_and_the_bonus_make_the_commit_length() -> None:
    hist = [9, 8, 7, 6, 4, 3, 2, 1]  # 40 steps, 130 tokens
    assert 1 + sum(survival_of([{"hist": hist}])) == pytest.approx(sum((i + 1) * n for i, n in enumerate(hist)) / 40)


# --- burst_vs_full


def test_a_burst_that_reads_high_is_explained_by_step_and_acceptance() -> None:
    rows = []
    for rep in range(4):
        whole = row(2.9, 102.9 + rep * 0.1, tokens=1500)
        burst = {
            "tokens": 192,
            "steps": 38,
            "wall_s": 38 * 0.08997,
            "tok_s": 192 / (38 * 0.08997),
            "commit": 192 / 38,
            "step_ms": 89.97,
        }
        rows.append({**whole, "burst": burst})
    found = judged("burst_vs_full", rows)
    assert found["class"] == "explained"
    assert found["bias"]["measured"]["ratio"] == pytest.approx((102.9 / 89.97) * (5.05 / 2.9), rel=0.02)
    assert [one["code"] for one in found["warnings"]] == ["method"]
    paused = [{**one, "client_decode_s": one["client_decode_s"] * 1.4} for one in rows]
    assert judged("burst_vs_full", paused)["class"] == "unexplained"


# --- budget_sweep


def arms(
    figures: dict[str, tuple[float, float]], levels: tuple[int, ...] = (64, 3000), seed: int = 4
) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        row(commit, step, noise=0.01, draw=draw, arm=arm, level=level, tokens=400)
        for _ in range(4)
        for level in levels
        for arm, (commit, step) in figures.items()
    ]


SERVED = {"settings": {"mode": "ddtree", "tree_budget": 16}}


def test_a_better_budget_becomes_a_change_of_settings() -> None:
    rows = arms(
        {
            "now": (3.0, 40.0),
            "off": (1.0, 25.0),
            "chain": (2.5, 38.0),
            "tree 16": (3.0, 40.0),
            "tree 32": (3.6, 42.0),
            "tree 64": (3.8, 60.0),
        }
    )
    found = judged("budget_sweep", rows, env=SERVED)
    assert found["class"] == "faster" and found["changes"] == {"mode": "ddtree", "tree_budget": 32}
    assert {one["arm"] for one in found["recommended"]} == {"tree 32"}


def test_where_plain_decoding_wins_the_tree_does_not_pay() -> None:
    found = judged("budget_sweep", arms({"now": (1.2, 60.0), "off": (1.0, 25.0), "chain": (1.2, 55.0)}), env=SERVED)
    assert found["changes"] == {"mode": "off"} and "the tree does not pay here" in found["headline"]


def test_the_arm_in_force_by_another_name_is_no_change_and_noise_is_none_either() -> None:
    figures = {"now": (3.0, 40.0), "off": (1.0, 25.0), "chain": (2.5, 40.0), "tree 16": (3.0, 40.0)}
    for seed in range(10):
        found = judged("budget_sweep", arms(figures, seed=seed), env=SERVED)
        assert found["class"] == "equivalent" and "changes" not in found


def test_contexts_that_disagree_give_advice_and_no_change() -> None:
    rows = arms({"now": (3.0, 40.0), "off": (1.0, 25.0), "tree 64": (4.5, 42.0)}, levels=(64,))
    rows += arms({"now": (3.0, 80.0), "off": (1.0, 18.0), "tree 64": (3.1, 160.0)}, levels=(3000,))
    found = judged("budget_sweep", rows, env=SERVED)
    assert found["class"] == "faster" and "changes" not in found
    assert [one["arm"] for one in found["recommended"]] == ["tree 64", "off"]


# --- concurrency_sweep


def bursts(total: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    rows, number = [], 0
    for arm, levels in total.items():
        for level, rate in levels.items():
            for _ in range(2):
                number += 1
                wall_s = level * 101 / rate
                rows += [
                    row(2.0, 20.0, tokens=100, arm=arm, level=level, burst=number, burst_wall_s=wall_s, queue_s=0.0)
                    for _ in range(level)
                ]
    return rows


def test_the_knee_and_the_break_even_are_found() -> None:
    rows = bursts({"now": {1: 100, 2: 180, 4: 250, 8: 255}, "off": {1: 40, 2: 80, 4: 160, 8: 320}})
    found = judged("concurrency_sweep", rows, env={"settings": {"max_running_requests": 4}})
    assert (found["knee"], found["break_even"], found["class"]) == (4, 8, "explained")
    assert [one["code"] for one in found["warnings"]] == ["queued"]
    assert found["levels_of_arms"][0]["total_tok_s"] == pytest.approx(100, rel=0.02)


# --- kv_capacity

POOL = {
    "model_tokens": 262144, "asked_tokens": 200000, "served_tokens": 200000, "pool_tokens": 240000, "probed_tokens": 199992,
    "limit_tokens": 199992, "bytes_per_token": 70272, "bytes_per_token_if_split": 8784.0,
}  # fmt: skip


def test_capacity_tells_both_readings_of_bytes_a_token() -> None:
    found = judged("kv_capacity", [row(3, 30)], summary=POOL)
    assert found["class"] == "healthy"
    assert "70,272 B a token held whole on each GPU, 8,784 B if split" in found["headline"]
    assert found["warnings"] == []


def test_a_context_capped_without_a_word_is_said_with_both_numbers() -> None:
    found = judged(
        "kv_capacity",
        [row(3, 30)],
        summary={**POOL, "served_tokens": 40960, "asked_tokens": 262144, "probed_tokens": 20000, "limit_tokens": 40952},
    )
    assert found["class"] == "inconsistent_data"
    assert {one["code"] for one in found["warnings"]} == {"capped", "not_probed"}
    assert "262,144 tokens were asked for and 40,960 are served" in found["warnings"][0]["msg"]


# --- lossless


@pytest.mark.parametrize(
    ("partings", "klass", "status"),
    [
        ([None, None, None], "lossless", 0),
        ([None, (12, 0.01), None], "near_tie", 0),
        ([None, (12, 0.01), (3, 1.4)], "broken", 3),
        ([None, (12, 0.2), None], "inconclusive", 6),
        ([None, (3, None), None], "inconclusive", 6),
    ],
)
def test_where_answers_part_the_gap_says_why(partings: list[Any], klass: str, status: int) -> None:
    rows = []
    for pair, parting in enumerate(partings):
        rows.append(row(1.0, 30, arm="off", pair=pair, tokens=20))
        at, gap = parting or (None, None)
        rows.append(row(3.0, 30, arm="now", pair=pair, parts_at=at, gap_nat=gap, tokens=20))
    found = judged("lossless", rows)
    assert (found["class"], int(exit_code_of(found["class"]))) == (klass, status)
    assert len(found["partings"]) == sum(one is not None for one in partings)


# --- A/B with restarts


def ab(factor: float, blocks: int = 5, *, sha: str = "same", seed: int = 2, **wrong: Any) -> list[dict[str, Any]]:
    draw, rows = random.Random(seed), []
    for block in range(blocks):
        for arm in ("page 16", "page 64", "page 64", "page 16"):
            b = arm == "page 64"
            rows.append(
                row(
                    3.0,
                    40.0 * (factor if b else 1.0),
                    noise=0.004,
                    draw=draw,
                    arm=arm,
                    block=block,
                    tokens=400,
                    **(wrong if b else {}),
                )
            )
    for pair in range(3):
        rows += [
            row(3, 40, arm=arm, pair=pair, probe=True, out_sha=sha if arm == "page 64" else "same")
            for arm in ("page 16", "page 64")
        ]
    return rows


SUMMARY = {"arms": ["page 16", "page 64"], "changes": {"page_size": 64}}


def test_a_faster_page_size_is_proposed_and_an_equal_one_left_alone() -> None:
    found = judged("page_size_ab", ab(0.9), summary=SUMMARY)
    assert found["class"] == "faster" and found["changes"] == {"page_size": 64}
    assert found["effects"]["step_ms"]["ratio"] == pytest.approx(0.9, rel=0.01)
    assert judged("page_size_ab", ab(1.0), summary=SUMMARY)["class"] == "equivalent"
    assert judged("page_size_ab", ab(1.1), summary=SUMMARY)["class"] == "slower"


def test_a_wrong_arm_is_broken_however_fast_it_is() -> None:
    found = judged("page_size_ab", ab(0.5, sha="other"), summary=SUMMARY)
    assert found["class"] == "broken" and found["speed"] == "void" and "changes" not in found
    looping = judged("page_size_ab", ab(0.5, distinct2=0.02), summary=SUMMARY)
    assert looping["class"] == "broken" and "repetition loops" in looping["headline"]


def test_two_starts_explore_and_decide_nothing() -> None:
    found = judged("page_size_ab", ab(0.5, blocks=1), summary=SUMMARY)
    assert found["class"] == "inconclusive" and "exploratory" in {one["code"] for one in found["warnings"]}
    assert found["next"] == "run it with 4 blocks"


def test_what_an_arm_does_to_the_stream_is_told_beside_its_speed() -> None:
    rows = ab(1.0, chunks=12, fields={"reasoning_content": 12})
    rows = [{"fields": {"content": 30}, **one} for one in rows]
    found = judged("parser_ab", rows, summary=SUMMARY)
    assert found["class"] == "equivalent"
    assert [one["code"] for one in found["warnings"]] == ["buffered_stream", "fields"]
    assert "in content under page 16 and in reasoning_content under page 64" in found["warnings"][1]["msg"]


def test_a_throttled_arm_voids() -> None:
    assert judged("page_size_ab", ab(1.1, throttle="power cap"), summary=SUMMARY)["class"] == "void:throttled_arm"


# --- for all of them


def test_speculation_that_switches_itself_off_voids_and_a_drafter_that_is_never_right_does_not() -> None:
    rows = [row(3.0, 88.0) for _ in range(4)] + [row(1.0, 31.0) for _ in range(4)]
    assert judged("quick_probe", rows)["class"] == "void:speculation_off"
    assert judged("quick_probe", rows[::-1])["class"] != "void:speculation_off"
    assert judged("quick_probe", [row(1.0, 31.0) for _ in range(4)])["class"] == "commit_collapsed"


def test_warm_prompts_void_by_name() -> None:
    assert judged("quick_probe", [row(3, 30, cached=60) for _ in range(4)])["class"] == "void:warm_cache"


def test_a_box_busy_with_other_work_is_said() -> None:
    found = judged("quick_probe", [row(3, 30) for _ in range(4)], env={"host": {"load_1m": 8.0, "cpu_count": 2}})
    assert found["class"] == "healthy"
    assert found["warnings"] == [
        {"code": "busy_host", "msg": "the box was busy with other work: load 8.0 on 2 processors"}
    ]
    assert judged("quick_probe", [row(3, 30)] * 4, env={"host": {"load_1m": 2.0, "cpu_count": 2}})["warnings"] == []
