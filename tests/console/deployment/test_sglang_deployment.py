"""SGLang: settings to arguments and back, what is known not to work, and what it tells of itself."""

from __future__ import annotations

import json

import pytest

from console.deployment.base import ModelFacts
from console.deployment.capacity import kv_shape
from console.deployment.settings import Value, parse_changes
from console.deployment.sglang import Sglang, shown_by
from console.engine_report import read_server_info
from console.errors import UsageError

SGLANG = Sglang()
QWEN = ModelFacts(
    kv_shape(
        {
            "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128,
            "num_attention_heads": 32, "hidden_size": 4096, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
        }
    ),
    weight_bytes=16_400_000_000,
)  # fmt: skip


def file(arguments: str, more: str = "") -> str:
    return f'{more}SGLANG_ARGS="--model-path /m --foreign-flag 7 {arguments}"\n'


def arguments(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("SGLANG_ARGS=")]
    return line.partition("--foreign-flag 7")[2].rstrip('"').split()


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({"context_length": "200,000"}, "", "--context-length 200000"),
        ({"context_length": "32768"}, "--context-length=4096 --port 1", "--context-length 32768 --port 1"),
        ({"context_length": "0"}, "--context-length 4096 --port 1", "--port 1"),
        ({"page_size": "16", "memory_fraction": "0.9"}, "", "--page-size 16 --mem-fraction-static 0.9"),
        ({"mode": "ddtree"}, "--speculative-algorithm DFLASH", "--speculative-algorithm DDTREE"),
        ({"mode": "off"}, "--speculative-algorithm DFLASH", ""),
        ({"tensor_parallel": "4"}, "--tp 2", "--tp 4"),
        ({"draft_window": "512"}, "--speculative-draft-window-size 256", "--speculative-draft-window-size 512"),
        ({"tree_budget": "64"}, "", "--speculative-ddtree-budget 64"),
        ({"block_size": "16"}, "", "--speculative-num-draft-tokens 16"),
        ({"cuda_graph": "false", "metrics": "true"}, "", "--disable-cuda-graph --enable-metrics"),
        ({"cuda_graph": "true"}, "--disable-cuda-graph --port 1", "--port 1"),
        ({"reasoning_parser": "kimi_k2"}, "", "--reasoning-parser kimi_k2"),
        ({"tool_parser": "qwen3_coder"}, "--tool-call-parser x", "--tool-call-parser qwen3_coder"),
        ({"drafter": "/d"}, "", "--speculative-draft-model-path /d"),
        ({"kv_dtype": "fp8_e4m3"}, "", "--kv-cache-dtype fp8_e4m3"),
    ],
)
def test_a_setting_is_its_argument(changes: dict[str, str], before: str, after: str) -> None:
    text = file(before)
    edited = SGLANG.edit(text, parse_changes(changes, SGLANG.settings))
    assert arguments(edited) == after.split()
    asked = parse_changes(changes, SGLANG.settings)
    assert {name: SGLANG.values(edited)[name] for name in asked} == asked


def test_no_change_leaves_the_file_to_the_letter() -> None:
    odd = "SGLANG_ARGS='--model-path   /m'\n"
    assert SGLANG.edit(odd, {"context_length": 0}) == odd


def test_only_what_is_not_left_to_the_engine_is_read_back() -> None:
    assert SGLANG.read_back(file("--speculative-algorithm ddtree --page-size 1")) == {
        "path": "/m",
        "page_size": 1,
        "mode": "ddtree",
    }


TREE = "--speculative-algorithm DDTREE --speculative-draft-model-path /d --attention-backend triton --disable-overlap-schedule "


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--speculative-algorithm DFLASH", "mode: dflash needs a drafter"),
        (TREE + "--page-size 16", "page_size: 16 is too much for ddtree, which needs pages of 1 token in SGLang"),
        (TREE.replace("triton", "fa3"), "attention_backend: is fa3; ddtree's tree masks exist in the triton backend"),
        (TREE.replace("--attention-backend triton", ""), "attention_backend: is left to the engine"),
        (TREE.replace("--disable-overlap-schedule", ""), "overlap_schedule: has to be off for ddtree"),
        (TREE + "--enable-dp-attention", "mode: ddtree does not work with --enable-dp-attention"),
        (TREE + "--pp-size 2", "mode: ddtree needs --pp-size 1"),
        (TREE + "--speculative-use-rejection-sampling", "mode: ddtree does not work with --speculative-use-rej"),
        (TREE + "--speculative-num-draft-tokens 16 --speculative-draft-window-size 8", "draft_window: 8 is less than"),
        (
            TREE + "--speculative-num-draft-tokens 16 --speculative-dflash-block-size 8",
            "block_size: is given twice and differently: 16 and 8",
        ),
        ("--context-length 50000", "context_length: 50000 is above the model's 40960"),
        ("--context-length", "--context-length: has no value behind it"),
        ("--kv-cache-dtype int3", "kv_dtype: 'int3' is not a choice"),
    ],
)
def test_what_cannot_work_is_refused_before_a_restart(given: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        SGLANG.inspect(file(given), QWEN)
    assert str(caught.value).startswith(says)


def test_what_works_passes_and_what_misleads_is_a_warning() -> None:
    assert SGLANG.inspect(file("--speculative-algorithm NGRAM"), QWEN) == ()
    longer = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1\n"
    assert SGLANG.inspect(file("--context-length 50000", longer), QWEN) == ()
    fakes = SGLANG.inspect(file(TREE + "--tp 2", "SGLANG_SIMULATE_ACC_LEN=4\n"), QWEN)
    assert [line.split(":")[0].split(" in SGLang")[0] for line in fakes] == [
        "SGLANG_SIMULATE_ACC_LEN is set in the environment file",
        "ddtree",
        "ddtree",
    ]


def test_the_pool_is_what_the_memory_share_leaves_beside_the_weights() -> None:
    values: dict[str, Value] = SGLANG.values(file("--context-length 32768 --page-size 16 --mem-fraction-static 0.9"))
    fits = SGLANG.capacity(values, QWEN, 80_000_000_000)
    assert fits is not None
    assert fits.bytes_per_token == 2 * 36 * 8 * 128 * 2
    assert fits.pages == (72_000_000_000 - 16_400_000_000) // (147_456 * 16)
    assert SGLANG.capacity(values, QWEN, None) is None
    fp8 = SGLANG.capacity({**values, "kv_dtype": "fp8_e5m2"}, QWEN, 80_000_000_000)
    assert fp8 is not None and fp8.bytes_per_token == 73_728


def test_the_key_is_known_and_never_shown() -> None:
    endpoint = SGLANG.endpoint(file("--api-key s3cret --port 31000"))
    assert (endpoint.host, endpoint.port, endpoint.api_key) == ("127.0.0.1", 31000, "s3cret")
    assert "s3cret" not in repr(endpoint) and "s3cret" not in str(SGLANG.values(file("--api-key s3cret")))


INFO = {
    "model_path": "/models/qwen3-8b/", "context_length": 32768, "page_size": 1, "speculative_algorithm": "DDTREE",
    "speculative_draft_model_path": "/d", "speculative_num_draft_tokens": 16, "tp_size": 2, "version": "0.5.9",
    "reasoning_parser": None, "api_key": "s3cret",
    "internal_states": [{"memory_usage": {"token_capacity": 142304}, "last_gen_throughput": 32.4}],
}  # fmt: skip
METRICS = (
    'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_queue_reqs{tp_rank="0"} 5.0\nsglang:num_used_tokens 2743\n'
)


def test_what_it_tells_of_itself_comes_out_as_the_consoles_own_report() -> None:
    told = shown_by({"/server_info": json.dumps(INFO).encode(), "/metrics": METRICS.encode()})
    assert told is not None and "s3cret" not in str(told)
    report = read_server_info(told, 30000)
    assert (report.engine.kind, report.engine.version, report.engine.model) == ("sglang", "0.5.9", "qwen3-8b")
    assert (report.engine.drafter, report.engine.block_size) == ("/d", 16)
    assert (report.settings["mode"], report.settings["context_length"]) == ("ddtree", 32768)
    assert (report.running, report.queued) == (2, 5)
    assert report.kv is not None and (report.kv.pages_used, report.kv.pages_total) == (2743, 142304)


@pytest.mark.parametrize("answer", [b"", b"[]", b"nonsense", b'{"detail":"Not Found"}'])
def test_something_else_on_the_port_is_no_engine(answer: bytes) -> None:
    assert shown_by({"/server_info": answer}) is None


def test_without_metrics_there_is_no_queue_and_no_pool() -> None:
    told = shown_by({"/server_info": json.dumps(INFO).encode()})
    assert told is not None
    report = read_server_info(told, 30000)
    assert (report.running, report.kv, report.settings["page_size"]) == (None, None, 1)
