"""The kit against a real engine: prompts of exact length, exact steps, a clean end when it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kit_prompts
import pytest
from kit_end import Stop
from kit_engine import Engine
from kit_prompts import KINDS, Prompts
from kit_run import degeneracy, figures
from speaking_engine import PLAYBOOKS


@pytest.fixture
def engine(base_url: str) -> Iterator[Engine]:
    found = Engine(base_url)
    yield found
    found.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 7, 64, 500])
def test_a_prompt_has_exactly_the_tokens_asked_for(engine: Engine, kind: str, tokens: int) -> None:
    prompts = Prompts(engine, "1", "salt")
    assert prompts.method == "chat"
    ids = prompts.make(kind, tokens)
    assert len(ids) == tokens
    answer = engine.complete(ids, 4)
    assert (answer.prompt_tokens, answer.completion_tokens) == (tokens, 4)


def test_a_prompt_ends_with_its_question_and_the_templates_own_last_words(engine: Engine) -> None:
    ids = Prompts(engine, "1", "salt").make("prose", 600)
    end = engine.post("/tokenize", {"messages": [{"role": "user", "content": "z"}]})["tokens"]
    assert ids[-11:] == end[-11:]  # <|end|><|start|>assistant and a line break
    assert ids[: end.index(28)] == end[: end.index(28)]  # up to the content: 28 is "z"


def test_no_prompt_shares_its_head_with_another_and_a_seed_gives_the_same_texts(engine: Engine) -> None:
    one, same, other = Prompts(engine, "1", "salt"), Prompts(engine, "1", "salt"), Prompts(engine, "1", "pepper")
    made = [one.make("chat", 200) for _ in range(4)]
    assert [same.make("chat", 200) for _ in range(4)] == made
    salted = [other.make("chat", 200) for _ in range(4)]
    heads = {tuple(ids[:40]) for ids in (*made, *salted)}
    assert len(heads) == 8
    assert one.sha == other.sha == same.sha
    assert Prompts(engine, "2", "salt").sha != one.sha


def test_paragraphs_of_a_long_prompt_are_all_different() -> None:
    for kind in KINDS:
        source = kit_prompts.paragraphs(kind, "1")
        texts = [next(source) for _ in range(400)]
        assert len(set(texts)) > 390, kind


def test_steps_and_decode_time_are_the_engines_own_over_one_window(engine: Engine) -> None:
    answer = engine.complete(Prompts(engine, "1", "s").make("code", 50), 40)
    found = figures(answer, 50, "code")
    assert answer.steps is not None and answer.token_ids is not None
    assert (found["N"], found["N_usage"], found["engine_src"]) == (39, 40, "speculation")
    assert found["steps"] == answer.steps["steps"] == sum(answer.steps["commit_lengths_hist"])
    assert found["commit"] == pytest.approx(39 / found["steps"])
    assert found["tok_s"] == pytest.approx(found["commit"] / found["step_ms"] * 1000)
    assert found["decode_s"] == answer.steps["decode_s"]
    assert found["ctx_mid"] == 50 + 39 / 2
    assert 0 < found["ttft_s"] <= found["e2e_s"]
    assert found["chunks"] == len(answer.stamps_s) == found["steps"] + 1
    assert list(answer.stamps_s) == sorted(answer.stamps_s)


def test_a_parameter_the_engine_refuses_is_left_out_and_remembered(engine: Engine) -> None:
    answer = engine.complete([5, 6, 7], 3, speculation={"mode": "off"})
    assert answer.steps is not None and answer.steps["steps"] == 2
    assert engine.refused == []
    with pytest.raises(Stop, match="HTTP 400"):
        engine.complete([5, 6, 7], 10_000)


def test_loops_are_told_by_three_signs_and_a_short_answer_by_none() -> None:
    text = [hash((i * 7919) % 1009) for i in range(200)]
    assert degeneracy(text)["distinct2"] > 0.9
    assert degeneracy(text)["loop"] < 0.1
    looping = [*text[:60], *[1, 2, 3, 4, 5] * 30]
    assert degeneracy(looping)["loop"] > 0.95
    assert degeneracy([*text[:50], *[7] * 30])["top1"] == pytest.approx(30 / 80)
    assert degeneracy(text[:20]) == {"distinct2": None, "top1": None, "loop": None}


def test_a_message_by_the_chat_endpoint_is_counted_as_exactly(engine: Engine) -> None:
    prompts = Prompts(engine, "1", "salt")
    message = prompts.message("chat", 60)
    answer = engine.complete(message, 20, chat=True)
    found = figures(answer, 60, "chat")
    assert (found["N"], found["N_usage"]) == (19, 20)
    assert answer.prompt_tokens is not None and answer.prompt_tokens > len(
        message
    )  # a letter a token, and the template
    assert found["steps"] == sum(found["hist"])
    assert set(found["fields"]) <= {"content", "none"} and sum(found["fields"].values()) == found["chunks"]
    assert prompts.message("chat", 60) != message


def test_one_connection_serves_all_requests(engine: Engine) -> None:
    engine.complete([5, 6, 7], 3)
    connection = engine.connection
    engine.complete([5, 6, 7], 3)
    engine.get("/server_info")
    assert engine.connection is connection is not None


def test_only_the_boxs_own_loopback_is_talked_to() -> None:
    for url in ("http://10.0.0.1:80", "https://127.0.0.1:80", "http://example.org", "nonsense"):
        with pytest.raises(Stop, match="loopback"):
            Engine(url)


def start(script: Path, folder: Path, base_url: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """A script as the runner starts it: events in a file, told of its folder."""
    with (folder / "events.jsonl").open("ab") as events, (folder / "stderr.log").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-I", "-B", "-u", script, *arguments],
            stdout=events, stderr=errors, cwd=folder,
            env={"PATH": os.environ["PATH"], "DDT_BASE_URL": base_url, "DDT_RUN_DIR": str(folder), **environment},
        )  # fmt: skip


def events_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def wait_for_event(folder: Path, kind: str) -> None:
    deadline = time.monotonic() + 30
    while not any(event["type"] == kind for event in events_of(folder)):
        assert time.monotonic() < deadline, (folder / "stderr.log").read_text()
        time.sleep(0.02)


def wait_until_idle(base_url: str) -> None:
    deadline = time.monotonic() + 20
    while httpx.get(f"{base_url}/server_info", trust_env=False).json()["requests"]["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


LONG = ("--param", "tokens=1500", "--param", "prompt=64", "--param", "reps=50")


@pytest.mark.parametrize("how", ["cancel file", "SIGTERM", "SIGINT", "deadline"])
def test_a_run_that_is_told_to_stop_breaks_its_request_off_and_says_so(base_url: str, tmp_path: Path, how: str) -> None:
    environment = {"DDT_DEADLINE": str(time.time() + 6)} if how == "deadline" else {}
    process = start(PLAYBOOKS / "quick_probe.py", tmp_path, base_url, *LONG, **environment)
    wait_for_event(tmp_path, "env")
    if how == "cancel file":
        (tmp_path / "cancel").touch()
    elif how != "deadline":
        process.send_signal(getattr(signal, how))
    status, code = {
        "cancel file": ("cancelled", 130), "SIGTERM": ("terminated", 143), "SIGINT": ("cancelled", 130), "deadline": ("deadline", 124)
    }[how]  # fmt: skip
    assert process.wait(30) == code
    last = events_of(tmp_path)[-1]
    assert (last["type"], last["status"], last["exit"]) == ("end", status, code)
    assert [event["seq"] for event in events_of(tmp_path)] == list(range(last["seq_total"]))
    wait_until_idle(base_url)


def occupied(base_url: str, folder: Path) -> subprocess.Popen[bytes]:
    """A run whose requests are long, in the middle of one of them."""
    wait_until_idle(base_url)
    folder.mkdir()
    occupant = start(PLAYBOOKS / "quick_probe.py", folder, base_url, *LONG)
    wait_for_event(folder, "table")
    deadline = time.monotonic() + 20
    while sum(event["type"] == "progress" for event in events_of(folder)) < 2:  # the short warm-up requests are over
        assert time.monotonic() < deadline
        time.sleep(0.01)
    while not httpx.get(f"{base_url}/server_info", trust_env=False).json()["requests"]["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return occupant


def test_an_engine_with_other_traffic_is_busy(base_url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    occupant = occupied(base_url, first)
    assert start(PLAYBOOKS / "quick_probe.py", second, base_url).wait(30) == 75
    assert [event["type"] for event in events_of(second)] == ["hello", "error", "end"]
    (first / "cancel").touch()
    assert occupant.wait(30) == 130


def test_a_request_on_its_way_is_waited_for_when_there_is_time(base_url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    occupant = occupied(base_url, first)
    short = ("--param", "tokens=16", "--param", "reps=1")
    waiting = start(PLAYBOOKS / "quick_probe.py", second, base_url, *short, DDT_IDLE_WAIT_S="60")
    wait_for_event(second, "log")
    (first / "cancel").touch()
    assert occupant.wait(30) == 130
    assert waiting.wait(60) == 0, (second / "stderr.log").read_text()
    words = [event["msg"] for event in events_of(second) if event["type"] == "log"]
    assert words[0] == "waiting for 1 request(s) on the engine to end"


def test_the_output_sweep_measures_both_arms_and_counts_one(base_url: str, tmp_path: Path) -> None:
    sweep = start(
        PLAYBOOKS / "output_sweep.py",
        tmp_path,
        base_url,
        "--param",
        "outputs=8,16,32",
        "--param",
        "reps=1",
        "--param",
        "prompt=32",
    )
    assert sweep.wait(60) == 0, (tmp_path / "stderr.log").read_text()
    samples = [event for event in events_of(tmp_path) if event["type"] == "sample"]
    assert sorted((one["req"]["level"], one["req"]["arm"], one["counts"]) for one in samples) == [
        (level, arm, arm == "ignore_eos") for level in (8, 16, 32) for arm in ("ignore_eos", "natural")
    ]
    assert all(one["req"]["N_usage"] == one["req"]["level"] for one in samples if one["counts"])


def test_bad_parameters_by_hand_are_one_line_and_exit_two(base_url: str, tmp_path: Path) -> None:
    process = start(PLAYBOOKS / "context_curve.py", tmp_path, base_url, "--param", "tokens=5")
    assert process.wait(30) == 2
    assert (tmp_path / "stderr.log").read_text() == "context_curve: tokens: 5 is below 16\n"
    assert [event["type"] for event in events_of(tmp_path)] == ["hello", "error", "end"]
