"""SGLang, vLLM and llama.cpp logs, by the shapes in facts/ddtree-dflash.md 8.4 and facts/measurement.md 6."""

from __future__ import annotations

import pytest

from console.telemetry.parse import End, Line, parse, reader_for
from console.telemetry.sample import Sample

SGLANG = """\
[2025-02-11 10:00:00] Decode batch. #running-req: 1, #token: 104, token usage: 0.00, accept len: 2.34, gen throughput (token/s): 148.64, #queue-req: 0
[2025-07-01 10:00:00 TP0] Decode batch. #running-req: 3, #token: 9120, token usage: 0.04, cuda graph: True, gen throughput (token/s): 301.22, #queue-req: 0,\x20
[2025-07-01 10:00:05 DP1 TP8] Decode batch. #running-req: 2, #token: 4100, token usage: 0.02, accept len: 3.10, pre-allocated usage: 0.01, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 222.00, #queue-req: 1,
[2026-06-25 09:35:19] Decode batch, #running-req: 1, #token: 104, token usage: 0.00, cuda graph: True, gen throughput (token/s): 148.64, #queue-req: 0
[2026-08-30 09:35:19 DP0 PP0 TP0 EP0] Decode batch [4120], #running-req: 8, #token: 65536, token usage: 0.41, accept len: 6.31, accept rate: 0.35, cuda graph: True, gen throughput (token/s): 1843.10, #queue-req: 2, est. decode TFLOPS/s (per GPU): 210.11, est. read BW (GB/s per GPU): 1900.20, est. write BW (GB/s per GPU): 3.10, fwd occupancy: 93.20%
[2026-08-30 09:35:20 TP0] Decode batch, #running-req: 8, #full token: 65536, full token usage: 0.41, #swa token: 8192, swa token usage: 0.20, accept len: 5.00, accept rate: 0.27, cuda graph: False, gen throughput (token/s): 900.00, #queue-req: 0
[2025-02-11 10:00:01] Prefill batch. #new-seq: 1, #new-token: 33, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0
[2026-08-30 09:35:18 TP0] Prefill batch [4100], #new-seq: 2, #new-token: 8192, #cached-token: 1024, token usage: 0.30, #running-req: 6, #queue-req: 3, #pending-token: 20480, cuda graph: False, input throughput (token/s): 15234.50
"""
STRETCH = """\
[2026-05-04 10:22:20 TP0] Prefill batch. #new-seq: 1, #new-token: 2701, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0,
[2026-05-04 10:22:27 TP0] Decode batch, #running-req: 1, #token: 2743, token usage: 0.01, accept len: 4.87, accept rate: 0.26, cuda graph: True, gen throughput (token/s): 21.40, #queue-req: 0
[2026-05-04 10:22:31 TP0] Decode batch, #running-req: 1, #token: 2938, token usage: 0.01, accept len: 4.87, accept rate: 0.26, cuda graph: True, gen throughput (token/s): 121.40, #queue-req: 0
"""
VLLM = """\
INFO 04-20 12:00:00 [metrics.py:96] SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens
(APIServer pid=22) INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 5.44, Accepted throughput: 66.60 tokens/s, Drafted throughput: 225.00 tokens/s, Accepted: 666 tokens, Drafted: 2250 tokens, Per-position acceptance rate: 0.853, 0.713, 0.600, Avg Draft acceptance rate: 29.6%
(APIServer pid=22) INFO 09-09 11:51:35 [loggers.py:200] Engine 000: Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 81.6 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 12.0%
INFO 08-08 09:11:02 metrics.py:455] Speculative metrics: Draft acceptance rate: 0.607, System efficiency: 0.510, Number of speculative tokens: 4, Number of accepted tokens: 3259, Number of draft tokens: 5371, Number of emitted tokens: 3424.
(EngineCore pid=282) INFO 05-04 10:22:00 [kv_cache_utils.py:829] GPU KV cache size: 1,412,608 tokens
(EngineCore pid=282) INFO 05-04 10:22:00 [kv_cache_utils.py:833] Maximum concurrency for 200,000 tokens per request: 7.06x
"""
LLAMA_BLOCK = """\
slot print_timing: id  2 | task 77 |\x20
       prompt eval time =     701.20 ms /   140 tokens (    5.01 ms per token,   199.66 tokens per second)
              eval time =   24310.40 ms /  1600 tokens (   15.19 ms per token,    65.82 tokens per second)
             total time =   25011.60 ms /  1740 tokens
draft acceptance rate = 0.97959 (  912 accepted /   931 generated)
"""


def read(text: str, engine: str = "auto") -> tuple[list[Sample], End]:
    items = list(parse([Line(line) for line in text.splitlines()], reader_for(engine)))
    end = items.pop()
    assert isinstance(end, End)
    return [item for item in items if isinstance(item, Sample)], end


def test_every_sglang_line_of_the_corpus_is_one_record() -> None:
    samples, end = read(SGLANG)
    assert end == End(lines=8, records=8, skipped=0)
    assert {sample.engine for sample in samples} == {"sglang"}
    assert [sample.rank for sample in samples] == [
        None, "TP0", "DP1 TP8", None, "DP0 PP0 TP0 EP0", "TP0", None, "TP0",
    ]  # fmt: skip
    assert [sample.commit_length for sample in samples] == [2.34, None, 3.10, None, 6.31, 5.0, None, None]
    assert [sample.graph for sample in samples] == [None, True, True, True, True, False, None, False]
    assert [sample.queued for sample in samples] == [0, 0, 1, 0, 2, 0, 0, 3]
    assert [sample.kv_fraction for sample in samples] == [0.0, 0.04, 0.02, 0.0, 0.41, 0.41, 0.0, 0.3]
    assert [sample.kind for sample in samples[-2:]] == ["prefill", "prefill"]


def test_what_sglang_adds_is_kept_under_its_own_name() -> None:
    sample = read(SGLANG)[0][4]
    assert sample.extra["iter"] == 4120
    assert sample.extra["est. read BW (GB/s per GPU)"] == 1900.20
    assert sample.extra["fwd occupancy"] == 0.932
    assert sample.accept_rate == 0.35


def test_hybrid_memory_counts_the_full_tokens() -> None:
    sample = read(SGLANG)[0][5]
    assert (sample.kv_tokens, sample.extra["#swa token"]) == (65536, 8192)


def test_only_inside_a_busy_stretch_is_sglangs_throughput_a_rate() -> None:
    _, first, second = read(STRETCH)[0]
    assert first.tok_s is None and first.step_ms is None
    assert first.extra["gen throughput (token/s)"] == 21.40
    assert any("idle time or prefill" in note for note in first.notes)
    assert second.tok_s == 121.40
    assert second.step_ms == pytest.approx(40.115, abs=0.001)
    assert second.context == 2938


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("10:22:31", "10:21:05"),  # the clock stepped back at a restart
        ("10:22:31", "10:59:31"),  # half an hour of nothing
        ("#token: 2938", "#token: 130"),  # another request
        ("10:22:31 TP0", "10:22:31 TP1"),  # another rank
    ],
)
def test_a_line_of_another_stretch_gives_no_rate(old: str, new: str) -> None:
    assert read(STRETCH.replace(old, new))[0][2].tok_s is None


def test_with_several_requests_running_a_step_time_is_not_derived() -> None:
    text = STRETCH.replace("Decode batch, #running-req: 1", "Decode batch, #running-req: 4")
    sample = read(text)[0][2]
    assert sample.tok_s == 121.40
    assert sample.step_ms is None
    assert "step_ms: exact only with one request running" in sample.notes


def test_sglangs_answer_gives_exact_steps_without_the_prefill_token() -> None:
    line = (
        '/generate final: "meta_info": {"prompt_tokens":2701,"completion_tokens":1500,"cached_tokens":0,'
        '"spec_verify_ct":517,"spec_accept_length":2.90,"spec_accept_rate":0.13,"e2e_latency":46.9}'
    )
    (sample,), _ = read(line)
    assert (sample.kind, sample.tokens, sample.steps) == ("request", 1499, 517)
    assert sample.commit_length == pytest.approx(2.8994, abs=1e-4)
    assert sample.tok_s is None


def test_sglangs_pool_line_is_a_ready_record() -> None:
    line = "[2026-05-04 10:20:00 TP0] max_total_num_tokens=142304, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=200000, available_gpu_mem=9.87 GB"
    (sample,), _ = read(line)
    assert (sample.kind, sample.extra["max_total_num_tokens"], sample.extra["context_len"]) == ("ready", 142304, 200000)


@pytest.mark.parametrize(
    "line",
    [
        "Decode batch, accept len: 9",
        'prompt: "[2026-06-25 09:35:19] Decode batch, #running-req: 1, gen throughput (token/s): 1.0, #queue-req: 0"',
        "[2026-06-25 09:35:19] Receive: text='Decode batch, accept len: 9'",
        "[2026-06-25 09:35:19 TP0] Decode batch, #running-req: 8, #tok[2026-06-25 09:35:19 TP1] Decode batch, "
        "#running-req: 8, gen throughput (token/s): 9.0, #queue-req: 0",
        "[2026-06-25 09:35:19 TP0] Decode batch, #running-req: 8, #token: 65",
        "[2026-06-25 09:35:19 TP0] Decode batch, #running-req: many, gen throughput (token/s): 9.0, #queue-req: 0",
        "INFO the user asked: SpecDecoding metrics: Mean acceptance length: 9.0, Accepted: 1 tokens, Drafted: 1 tokens",
        "(APIServer pid=22) INFO 09-09 11:51:35 [logger.py:40] Received request: prompt: 'Engine 000: Running: 1 reqs'",
        "he said: draft acceptance rate = 0.97959 (  912 accepted /   931 generated)",
    ],
)
def test_a_prompt_or_half_a_line_is_no_record(line: str) -> None:
    samples, end = read(line)
    assert samples == []
    assert end == End(lines=1, records=0, skipped=1)


def test_colour_line_ends_and_journal_prefixes_are_taken_off() -> None:
    plain = SGLANG.splitlines()[3]
    dressed = [
        f"\x1b[32m{plain}\x1b[0m\r\n",
        f"Jun 25 09:35:19 gpu-01 sglang[811]: {plain}",
        f"2026-06-25T09:35:19+0000 gpu-01 python3[811]: {plain}",
    ]
    for line in dressed:
        samples, _ = read(line.replace("\n", ""))
        assert [sample.running for sample in samples] == [1], line


def test_every_vllm_line_of_the_corpus_is_one_record() -> None:
    samples, end = read(VLLM)
    assert end == End(lines=6, records=6, skipped=0)
    assert [sample.kind for sample in samples] == ["decode"] * 4 + ["ready"] * 2
    assert [sample.commit_length for sample in samples] == [None, 5.44, None, None, None, None]
    assert [sample.accept_rate for sample in samples[:2]] == [1.0, 0.296]
    assert samples[1].extra["Per-position acceptance rate"] == [0.853, 0.713, 0.6]
    assert samples[1].extra["Accepted"] == 666
    assert all(sample.tok_s is None and sample.step_ms is None for sample in samples)


def test_vllms_engine_line_gives_the_queue_and_no_average_rate() -> None:
    sample = read(VLLM)[0][2]
    assert (sample.running, sample.queued, sample.kv_fraction, sample.rank) == (1, 0, 0.004, "000")
    assert sample.extra["Avg generation throughput"] == 81.6
    assert any(note.startswith("tok_s: an average") for note in sample.notes)


def test_vllms_first_generation_counts_since_the_start_and_gives_no_window() -> None:
    sample = read(VLLM)[0][3]
    assert sample.accept_rate is None and sample.commit_length is None
    assert sample.extra["Number of emitted tokens"] == 3424


def test_vllms_pool_is_read_from_two_lines_or_one() -> None:
    two = read(VLLM)[0][4:]
    assert [sample.extra for sample in two] == [
        {"kv_cache_tokens": 1412608},
        {"context_length": 200000, "maximum_concurrency": 7.06},
    ]
    line = "INFO 05-04 10:22:00 [kv_cache_utils.py:829] GPU KV cache size: 1,412,608 tokens, Maximum concurrency for 200,000 tokens per request: 7.06x"
    (one,), _ = read(line)
    assert one.extra == two[0].extra | two[1].extra


def test_llamacpp_steps_are_the_tokens_no_draft_gave() -> None:
    (sample,), end = read(LLAMA_BLOCK)
    assert end == End(lines=5, records=1, skipped=0)
    assert (sample.kind, sample.tokens, sample.steps) == ("request", 1600, 688)
    assert sample.commit_length == pytest.approx(2.3256, abs=1e-4)
    assert sample.step_ms == pytest.approx(35.335, abs=1e-3)
    assert sample.tok_s == pytest.approx(65.815, abs=1e-3)
    assert sample.accept_rate == pytest.approx(0.97959, abs=1e-5)
    assert sample.extra["prompt_tokens"] == 140


def test_a_llamacpp_block_without_drafts_ends_at_the_next_line() -> None:
    text = "".join(LLAMA_BLOCK.splitlines(keepends=True)[:4]) + "srv  update_slots: all slots are idle\n"
    (sample,), end = read(text)
    assert end == End(lines=5, records=1, skipped=1)
    assert sample.steps is None
    assert sample.tok_s == pytest.approx(65.815, abs=1e-3)
    assert sample.notes == ("commit_length, step_ms: no draft counts (speculation off)",)


def test_llamacpp_blocks_of_two_requests_do_not_mix() -> None:
    head, _, rest = LLAMA_BLOCK.partition("draft")
    other = head.replace("task 77", "task 78").replace("1600 tokens", "100 tokens")
    samples, _ = read(head + other + "draft" + rest.replace("912", " 12"))
    assert [(sample.extra["task"], sample.tokens, sample.steps) for sample in samples] == [
        (77, 1600, None),
        (78, 100, 88),
    ]


def test_llamacpps_own_mean_length_is_not_taken_for_the_commit_length() -> None:
    line = (
        "0.11.204.118 I slot print_timing: id  2 | task 77 | draft acceptance = 0.55161 (  171 accepted /   310 generated), "
        "mean acceptance length =  2.64, acceptance rate per position = (0.741, 0.529, 0.374)"
    )
    block = "".join(LLAMA_BLOCK.splitlines(keepends=True)[:4])
    (sample,), _ = read(block + line)
    assert sample.steps == 1600 - 171
    assert sample.extra["mean_acceptance_length"] == 2.64
    assert sample.extra["acceptance_per_position"] == [0.741, 0.529, 0.374]
    (alone,), _ = read(line)
    assert alone.commit_length == 2.64
    assert "commit_length: steps that drafted only" in alone.notes


def test_llamacpps_timings_object_says_the_same_as_its_block() -> None:
    line = '"timings": {"prompt_n":140,"prompt_ms":701.2,"predicted_n":1600,"predicted_ms":24310.4,"draft_n":931,"draft_n_accepted":912}'
    (sample,), _ = read(line)
    (block,), _ = read(LLAMA_BLOCK)
    assert (sample.tokens, sample.steps, sample.step_ms) == (block.tokens, block.steps, block.step_ms)


def test_a_line_beyond_64_kib_is_skipped() -> None:
    assert read(SGLANG.splitlines()[0] + " " * 70_000)[1] == End(1, 0, 1)
