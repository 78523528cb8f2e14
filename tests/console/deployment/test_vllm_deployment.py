"""vLLM: settings to arguments and back, the one JSON argument, what is known not to work, what it tells of itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.deployment.argument_file import parse_argument_file
from console.deployment.settings import parse_changes
from console.deployment.vllm import Vllm, shown_by, speculation_in
from console.engine_report import read_server_info
from console.errors import UsageError

VLLM = Vllm()
DFLASH = {"method": "dflash", "model": "/d", "num_speculative_tokens": 15, "draft_tensor_parallel_size": 1}


def file(arguments: str, speculation: dict[str, Any] | None = None) -> str:
    tail = "" if speculation is None else f" --speculative-config '{json.dumps(speculation)}'".replace('"', '\\"')
    return f'VLLM_ARGS="/m {arguments}{tail}"\n'


def words(text: str) -> tuple[str, ...]:
    return parse_argument_file(text, "VLLM_ARGS").words


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({"context_length": "200000"}, "", "/m --max-model-len 200000"),
        ({"page_size": "32"}, "--block-size 16", "/m --block-size 32"),
        ({"memory_fraction": "0.8"}, "", "/m --gpu-memory-utilization 0.8"),
        ({"memory_fraction": "0.9"}, "--gpu-memory-utilization 0.8", "/m"),
        ({"path": "/other"}, "--port 9000", "/other --port 9000"),
        ({"cuda_graph": "false"}, "", "/m --enforce-eager"),
        ({"tensor_parallel": "8"}, "-tp 2", "/m -tp 8"),
        ({"max_running_requests": "4"}, "", "/m --max-num-seqs 4"),
        ({"prefix_cache": "false"}, "", "/m --no-enable-prefix-caching"),
    ],
)
def test_a_setting_is_its_argument(changes: dict[str, str], before: str, after: str) -> None:
    edited = VLLM.edit(file(before), parse_changes(changes, VLLM.settings))
    assert words(edited) == tuple(after.split())
    asked = parse_changes(changes, VLLM.settings)
    assert {name: VLLM.values(edited)[name] for name in asked} == asked


def test_speculation_is_read_and_changed_inside_its_json_and_unknown_keys_stay() -> None:
    text = file("--port 9000", DFLASH)
    values = VLLM.values(text)
    assert (values["mode"], values["drafter"], values["block_size"]) == ("dflash", "/d", 16)  # the seed counted
    edited = VLLM.edit(text, {"block_size": 8, "mode": "ddtree", "tree_budget": 64})
    assert speculation_in(words(edited)) == {
        "method": "ddtree", "model": "/d", "num_speculative_tokens": 7, "draft_tensor_parallel_size": 1,
        "ddtree_budget": 64,
    }  # fmt: skip
    assert words(edited)[:3] == ("/m", "--port", "9000")


def test_speculation_can_be_switched_off_and_on() -> None:
    off = VLLM.edit(file("", DFLASH), {"mode": "off"})
    assert words(off) == ("/m",)
    on = VLLM.edit(off, {"mode": "dflash", "drafter": "/d", "block_size": 16})
    assert speculation_in(words(on)) == {"method": "dflash", "model": "/d", "num_speculative_tokens": 15}


def test_builds_that_keep_the_methods_name_are_understood() -> None:
    text = file("", {"method": "dflash", "model": "/d", "ddtree_enabled": True, "ddtree_budget": 32})
    assert (VLLM.values(text)["mode"], VLLM.values(text)["tree_budget"]) == ("ddtree", 32)
    back = speculation_in(words(VLLM.edit(text, {"mode": "dflash"})))
    assert (back["method"], back["ddtree_enabled"]) == ("dflash", False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (file("--block-size 7"), "page_size: 7 is no page size of vLLM; use one of 1, 8, 16"),
        (file("", {"method": "dflash"}), "mode: dflash needs a drafter"),
        (file("", {**DFLASH, "method": "ddtree"}), "attention_backend: is left to the engine; ddtree needs TREE_ATTN"),
        (file("", {**DFLASH, "num_speculative_tokens": 0}), "block_size: 1 drafts nothing"),
        ("VLLM_ARGS=\"/m --speculative-config '{'\"\n", "--speculative-config: is no JSON"),
        ('VLLM_ARGS="--port 1"\n', "path: no model is named"),
    ],
)
def test_what_cannot_work_is_refused_before_a_restart(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        VLLM.inspect(text, None)
    assert str(caught.value).startswith(says)


def test_made_up_acceptance_is_a_warning() -> None:
    assert VLLM.inspect(file("", DFLASH), None) == ()
    (told,) = VLLM.inspect(file("", {**DFLASH, "synthetic_acceptance_length": 4}), None)
    assert told.startswith("synthetic_acceptance_length is set: acceptance is made up")


METRICS = """\
vllm:cache_config_info{block_size="16",cache_dtype="fp8",gpu_memory_utilization="0.8",num_gpu_blocks="1000"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_waiting{engine="0"} 3.0
"""
MODELS = json.dumps({"data": [{"id": "qwen", "max_model_len": 32768}]}).encode()


def test_what_it_tells_over_http_comes_out_as_the_consoles_own_report() -> None:
    told = shown_by({"/v1/models": MODELS, "/metrics": METRICS.encode(), "/version": b'{"version":"0.19.0"}'})
    assert told is not None
    report = read_server_info(told, 8000)
    assert (report.engine.kind, report.engine.version, report.engine.model) == ("vllm", "0.19.0", "qwen")
    assert report.settings == {"page_size": 16, "kv_dtype": "fp8", "memory_fraction": 0.8, "context_length": 32768}
    assert (report.running, report.queued) == (1, 3)
    assert report.kv is not None and (report.kv.pages_used, report.kv.pages_total) == (250, 1000)


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"data":[]}', b'{"data":[7]}', b"nonsense"])
def test_something_else_on_the_port_is_no_engine(answer: bytes) -> None:
    assert shown_by({"/v1/models": answer}) is None


def test_what_only_the_log_tells_at_the_start_is_taken_from_there() -> None:
    line = (
        "(EngineCore pid=282) INFO 05-04 10:22:00 [x.py:833] Maximum concurrency for 200,000 tokens per request: 7.06x"
    )
    (sample,) = VLLM.reader().read(line, None).samples
    assert VLLM.from_start(sample) == {"context_length": 200_000}
    (pool,) = VLLM.reader().read(line.replace("Maximum", "GPU KV cache size: 1,412,608 tokens, Maximum"), None).samples
    assert VLLM.from_start(pool) == {"context_length": 200_000}
