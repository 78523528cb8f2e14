"""Playbooks on engines that are not ours: exact steps from their own counters, and what they cannot give is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from foreign_engines import COMMIT, STEP_S, VLLM, SGLang, SGLangWithoutTokenizer, serving_stand_in
from kit_foreign import sglang_chunks, sglang_steps, steps_between
from speaking_engine import PLAYBOOKS


def by_hand(script: str, url: str, *params: str) -> tuple[int, list[dict[str, Any]], str]:
    words = [word for param in params for word in ("--param", param)]
    done = subprocess.run(
        [sys.executable, "-I", PLAYBOOKS / f"{script}.py", "--base-url", url, *words],
        capture_output=True, text=True, timeout=120, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize("kind", [SGLang, VLLM])
def test_commit_length_and_step_time_are_exact_on_both(kind: Any) -> None:
    with serving_stand_in(kind) as url:
        code, events, stderr = by_hand("quick_probe", url, "tokens=61", "prompt=80", "reps=2")
    assert code == 0, stderr
    hello, env = events[0], next(event for event in events if event["type"] == "env")
    assert "steps.exact" in hello["caps_used"]
    assert env["engine"] == {"SGLang": "sglang", "VLLM": "vllm"}[kind.__name__]
    samples = [event["req"] for event in events if event["type"] == "sample"]
    assert len(samples) == 4
    for one in samples:
        assert (one["P"], one["N"], one["N_usage"], one["steps"]) == (80, 60, 61, 20)
        assert one["commit"] == COMMIT
        assert one["step_ms"] >= STEP_S * 1000
        assert one["engine_src"] == "steps counted by the engine, time by the client"
        assert one["chunks"] == 21
    assert all("speculation" not in body and "return_token_ids" not in body for body in SGLang.seen)


def test_settings_that_matter_are_among_the_conditions() -> None:
    with serving_stand_in(SGLang) as url:
        _, events, _ = by_hand("quick_probe", url, "tokens=16", "prompt=40", "reps=1")
    env = next(event for event in events if event["type"] == "env")
    assert env["settings"] == {
        "mode": "ddtree", "tree_budget": 65, "page_size": 64, "tensor_parallel": 8, "attention": "triton"
    }  # fmt: skip
    assert env["kv"]["capacity_tokens"] == 142304


def test_an_engine_that_counts_no_tokens_gets_text_of_about_the_length() -> None:
    with serving_stand_in(SGLangWithoutTokenizer) as url:
        code, events, stderr = by_hand("quick_probe", url, "tokens=16", "prompt=200", "reps=1")
    assert code == 0, stderr
    assert "tokens.count" in events[0]["caps_missing"]
    samples = [event["req"] for event in events if event["type"] == "sample"]
    assert all(one["P"] == pytest.approx(200, rel=0.1) and one["P"] != one["level"] - 1 for one in samples)
    assert all(
        isinstance(body.get("text"), str) for body in SGLangWithoutTokenizer.seen[1:]
    )  # behind the first proof of life


@pytest.mark.parametrize("script", ["budget_sweep", "lossless"])
def test_what_needs_a_choice_with_each_request_needs_restarts_elsewhere(script: str) -> None:
    with serving_stand_in(SGLang) as url:
        code, events, _ = by_hand(script, url)
    assert code == 4
    error = next(event for event in events if event["type"] == "error")
    assert (
        error["msg"] == "this playbook restarts the service, which only a run from the console may: ddtree run HOST …"
    )


@pytest.mark.parametrize("kind", [SGLang, VLLM])
def test_requests_beside_each_other_have_their_steps_counted_as_well(kind: Any) -> None:
    with serving_stand_in(kind) as url:
        code, events, stderr = by_hand("concurrency_sweep", url, "levels=[1,3]", "tokens=61", "prompt=40")
    assert code == 0, stderr
    rows = [event["req"] for event in events if event["type"] == "sample"]
    assert {(one["arm"], one["level"]) for one in rows} == {("now", 1), ("now", 3)}
    for level, steps in ((1, 20), (3, 60)):
        bursts: dict[int, float] = {}
        for one in rows:
            if one["level"] == level:
                bursts[one["burst"]] = bursts.get(one["burst"], 0.0) + one["steps"]
        assert list(bursts.values()) == pytest.approx([steps, steps])


def test_a_stranger_is_named_as_such() -> None:
    class Stranger(SGLang):
        def do_GET(self) -> None:
            self.answer({}, 404)

    with serving_stand_in(Stranger) as url:
        code, events, stderr = by_hand("quick_probe", url)
    assert code == 4 and "none of bundled, sglang and vllm" in stderr
    assert [event["type"] for event in events] == ["hello", "error", "end"]


def test_steps_without_a_draft_are_steps_and_counters_that_went_back_say_nothing() -> None:
    before = {"drafts": 100.0, "accepted": 200.0}
    assert steps_between(before, {"drafts": 120.0, "accepted": 240.0}, 60) == 20
    assert steps_between(before, {"drafts": 120.0, "accepted": 240.0}, 65) == 25
    assert steps_between(before, {"drafts": 3.0, "accepted": 5.0}, 60) is None  # restarted in between
    assert steps_between(before, {"drafts": 120.0, "accepted": 240.0}, 50) is None  # another client drafted too
    assert steps_between(before, {"drafts": 120.0, "accepted": 240.0}, None) is None
    assert steps_between(before, before, 400) is None  # it drafts and counts none: the counter is not wired


def test_text_and_ids_are_read_as_all_so_far_and_as_what_is_new() -> None:
    def line(text: str, ids: list[int], tokens: int) -> bytes:
        return json.dumps({"text": text, "output_ids": ids, "meta_info": {"completion_tokens": tokens}}).encode()

    so_far = [(1, line("a", [1], 1)), (2, line("abc", [1, 2, 3], 3)), (3, line("abcd", [1, 2, 3, 4], 4))]
    fresh = [(1, line("a", [1], 1)), (2, line("bc", [2, 3], 3)), (3, line("d", [4], 4))]
    expected = [(1, 1, [1]), (2, 2, [2, 3]), (3, 1, [4])]
    for lines in (so_far, fresh):
        chunks, meta, text = sglang_chunks([*lines, (4, b"[DONE]")])
        assert (chunks, text, meta["completion_tokens"]) == (expected, "abcd", 4)
    assert sglang_steps({"spec_verify_ct": 517}, 1500, True) == 517
    assert sglang_steps({}, 1500, True) is None
    assert sglang_steps({}, 1500, False) == 1499
