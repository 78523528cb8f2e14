"""The log contract, read off a real server: every number adds up to what the client was told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_process import Server, eventually

from engine.server.info import release_of

DECODE_KEYS = [
    "seq",
    "req",
    "ctx",
    "steps",
    "tokens",
    "wall_ms",
    "draft_ms",
    "build_ms",
    "verify_ms",
    "walk_ms",
    "commit_ms",
    "host_ms",
    "nodes",
    "hist",
    "running",
    "queued",
    "kv_used",
    "kv_total",
    "page",
    "budget",
    "graph",
]
STAGES = ("draft_ms", "build_ms", "verify_ms", "walk_ms", "commit_ms")


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("[context]\ncontext_length = 512\n[log]\ninterval_s = 0.05\n").until_ready()


@pytest.fixture(scope="module")
def answer(server: Server) -> dict[str, Any]:
    """One answer of many windows, and the lines it left: `answer["lines"]`, kind -> records."""
    body = {"prompt": [9] * 20, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    answer: dict[str, Any] = server.post("/v1/completions", body).json()
    request = answer["id"].rsplit("-", 1)[1]

    def lines(kind: str) -> list[dict[str, str]]:
        return [record for record in server.records(kind) if record["req"] == request]

    eventually(lambda: lines("request"))
    return {**answer, "lines": {kind: lines(kind) for kind in ("prefill", "decode", "request")}}


def histogram(record: dict[str, str]) -> list[int]:
    return [int(count) for count in record["hist"].split(",")]


def test_a_decode_line_has_the_contracts_keys_in_its_order(server: Server, answer: dict[str, Any]) -> None:
    (first, *_) = [line for line in server.lines if " decode " in f" {line[3:]} " and line[3:].startswith("decode")]
    assert [pair.split("=")[0] for pair in first[3:].split(" ")[1:]] == DECODE_KEYS
    assert first.startswith("<6>")


def test_windows_add_up_to_the_request_and_to_what_the_client_was_told(answer: dict[str, Any]) -> None:
    windows, (total,) = answer["lines"]["decode"], answer["lines"]["request"]
    assert len(windows) > 3
    for key in ("steps", "tokens", "nodes"):
        assert sum(int(window[key]) for window in windows) == int(total[key])
    for key in ("wall_ms", "host_ms", *STAGES):
        assert sum(float(window[key]) for window in windows) == pytest.approx(
            float(total[key]), abs=0.01 * len(windows)
        )
    summed = [0] * len(histogram(total))
    for window in windows:
        for i, count in enumerate(histogram(window)):
            summed[i] += count
    figures = answer["speculation"]
    assert summed == histogram(total) == figures["commit_lengths_hist"]
    assert int(total["steps"]) == figures["steps"]
    assert float(total["wall_ms"]) == pytest.approx(figures["decode_s"] * 1000, abs=0.01)
    assert float(total["prefill_ms"]) == pytest.approx(figures["prefill_s"] * 1000, abs=0.01)
    assert int(total["output_tokens"]) == int(total["tokens"]) + 1 == answer["usage"]["completion_tokens"] == 400
    assert int(total["prompt_tokens"]) == answer["usage"]["prompt_tokens"] == 20


def test_each_window_is_consistent_in_itself(answer: dict[str, Any]) -> None:
    context = 21  # the prompt and the first token
    for window in answer["lines"]["decode"]:
        assert sum(histogram(window)) == int(window["steps"])
        assert sum((i + 1) * count for i, count in enumerate(histogram(window))) == int(window["tokens"])
        assert int(window["nodes"]) == int(window["steps"]) * 17, "16 drafted nodes and a root a step"
        stages = sum(float(window[stage]) for stage in STAGES)
        assert stages + float(window["host_ms"]) == pytest.approx(float(window["wall_ms"]), abs=0.01)
        assert float(window["host_ms"]) >= 0.0
        context += int(window["tokens"])
        assert int(window["ctx"]) == context
        assert int(window["kv_used"]) * int(window["page"]) >= context - 1, "the newest token is not in the cache yet"
        assert (window["running"], window["queued"], window["budget"], window["graph"]) == ("1", "0", "16", "0")


def test_a_windows_time_is_about_the_interval(answer: dict[str, Any]) -> None:
    assert all(float(window["wall_ms"]) >= 50.0 for window in answer["lines"]["decode"][:-1])


def test_the_prefill_comes_first_and_the_request_last_with_the_pool_free_again(answer: dict[str, Any]) -> None:
    (prefill,), (total,) = answer["lines"]["prefill"], answer["lines"]["request"]
    sequence = [int(prefill["seq"]), *(int(w["seq"]) for w in answer["lines"]["decode"]), int(total["seq"])]
    assert sequence == sorted(sequence)
    assert (prefill["tokens"], prefill["cached"]) == ("20", "0")
    assert (total["finish"], total["running"], total["kv_used"], total["mode"]) == ("length", "0", "0", "ddtree")
    assert float(total["ttft_ms"]) >= float(total["queue_ms"]) + float(total["prefill_ms"]) - 0.01


def test_the_ready_line_has_every_setting_in_force_the_pool_and_the_versions(server: Server) -> None:
    (ready,) = server.records("ready")
    info = server.get("/server_info").json()
    assert ready["seq"] == "1"
    for name, value in info["settings"].items():
        shown = (
            {True: "true", False: "false", "": '""'}.get(value, str(value))
            if not isinstance(value, int | float) or isinstance(value, bool)
            else f"{value:g}"
        )
        assert ready[name] == shown, name
    assert int(ready["kv_total"]) == info["kv"]["pages_total"]
    assert ready["settings_sha"] == info["settings_sha"]
    assert ready["torch_version"] == info["versions"]["torch"]
    assert int(ready["pid"]) == server.process.pid == info["pid"]


def test_sequence_numbers_have_no_gap(server: Server, answer: dict[str, Any]) -> None:
    server.post("/v1/completions", {"prompt": []})
    lines = [line for line in list(server.lines) if " seq=" in line]
    assert [int(line.split("seq=")[1].split(" ")[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) == len(server.lines), "nothing but records on standard output"


def test_server_info_has_the_last_window_and_the_checks_on_speculation(server: Server, answer: dict[str, Any]) -> None:
    info = server.get("/server_info").json()
    window, last = info["window"], answer["lines"]["decode"][-1]
    assert list(window) == DECODE_KEYS
    assert (window["seq"], window["req"], window["steps"]) == (int(last["seq"]), last["req"], int(last["steps"]))
    assert window["hist"] == histogram(last)
    assert 0.0 < info["speculation"]["spine_hit_rate"] < 1.0
    assert info["speculation"]["branch_gain"] > 0.0
    assert 0.0 < info["speculation"]["calibration"] < 2.0
    assert info["requests"]["running"] == 0
    assert info["requests"]["served"] == len(server.records("request"))


def test_server_info_describes_model_drafter_and_box(server: Server) -> None:
    info = server.get("/server_info").json()
    assert info["engine"] == "bundled"
    assert info["model"]["name"] == "tiny-speaking"
    assert info["model"]["architecture"] == "Qwen3ForCausalLM"
    assert info["model"]["max_position_embeddings"] == 2048
    assert info["model"]["parameters"] == 230_400
    assert info["drafter"]["block_size"] == 8
    assert info["drafter"]["max_position_embeddings"] == 2048
    digits = (info["model"]["weights_sha"], info["drafter"]["weights_sha"])
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in digits) and digits[0] != digits[1]
    assert info["drafter"]["target_layer_ids"] == [1, 4]
    assert info["drafter"]["mask_token_id"] == 63
    assert info["kv"]["capacity_tokens"] == info["kv"]["pages_total"] * 16
    assert info["process"]["pid"] == server.process.pid
    assert info["process"]["rss_bytes"] > 50_000_000
    assert info["host"]["memory_total_bytes"] > info["host"]["memory_used_bytes"] > 0
    assert isinstance(info["gpus"], list)
    assert info["release"] is None  # served from a checkout
    assert release_of(Path("/opt/ddtree/releases/0.1.0-3f2a91c0/app/engine/server/info.py")) == "0.1.0-3f2a91c0"


@pytest.mark.parametrize(("mode", "budget", "nodes"), [("off", "0", 1), ("dflash", "7", 8)])
def test_a_requests_own_mode_is_what_its_lines_tell(server: Server, mode: str, budget: str, nodes: int) -> None:
    body = {"prompt": [9], "max_tokens": 20, "temperature": 0, "ignore_eos": True, "speculation": {"mode": mode}}
    request = server.post("/v1/completions", body).json()["id"].rsplit("-", 1)[1]
    record = eventually(lambda: [record for record in server.records("request") if record["req"] == request])[0]
    assert (record["mode"], record["budget"]) == (mode, budget)
    assert int(record["nodes"]) == int(record["steps"]) * nodes


def test_metrics_count_what_the_log_counts(server: Server, answer: dict[str, Any]) -> None:
    def counted(name: str) -> float:
        text = server.get("/metrics").text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    requests = server.records("request")
    assert counted("ddtree_generation_tokens_total") == sum(int(record["output_tokens"]) for record in requests)
    assert counted("ddtree_prompt_tokens_total") == sum(int(record["prompt_tokens"]) for record in requests)
    assert counted("ddtree_decode_steps_total") == sum(int(record["steps"]) for record in requests)
    assert counted("ddtree_commit_length_sum") == sum(int(record["tokens"]) for record in requests)
    assert counted("ddtree_requests_total") == len(requests)
    assert counted("ddtree_kv_pages_used") == 0
    assert counted("ddtree_kv_pages_total") > 0
