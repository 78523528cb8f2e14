"""100,000 damaged log lines: none raises, and what still counts as a record holds only figures that could be true."""

from __future__ import annotations

import json
import math
import random

from console.telemetry.parse import READERS, End, Line, parse, reader_for
from console.telemetry.sample import Sample

CORPUS = (
    "decode seq=812 req=r17 ctx=3451 steps=40 tokens=130 wall_ms=3650.2 draft_ms=164.0 verify_ms=3420.8 hist=9,8,7 kv_used=231 kv_total=4096 page=16 graph=1",
    'request seq=9 req=r1 steps=5 tokens=12 wall_ms=60 ttft_ms=3.1 finish="length" cached=16',
    'ready seq=1 version=0.1.0 model="/models/a b" kv_total=4096 page_size=16 context_length=512',
    "[2026-08-30 09:35:19 DP0 TP0] Decode batch [4120], #running-req: 8, #token: 65536, token usage: 0.41, accept len: 6.31, accept rate: 0.35, cuda graph: True, gen throughput (token/s): 1843.10, #queue-req: 2, fwd occupancy: 93.20%",
    "[2026-08-30 09:35:18 TP0] Prefill batch [4100], #new-seq: 2, #new-token: 8192, #cached-token: 1024, token usage: 0.30, #running-req: 6, #queue-req: 3, input throughput (token/s): 15234.50",
    "[2026-08-30 09:35:18] max_total_num_tokens=142304, chunked_prefill_size=8192, context_len=200000, available_gpu_mem=9.87 GB",
    '/generate final: "meta_info": {"prompt_tokens":2701,"completion_tokens":1500,"spec_verify_ct":517,"spec_accept_rate":0.13}',
    "(APIServer pid=22) INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 5.44, Accepted: 666 tokens, Drafted: 2250 tokens, Per-position acceptance rate: 0.853, 0.713, Avg Draft acceptance rate: 29.6%",
    "(APIServer pid=22) INFO 09-09 11:51:35 [loggers.py:200] Engine 000: Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 81.6 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.4%",
    "(EngineCore pid=282) INFO 05-04 10:22:00 [kv_cache_utils.py:829] GPU KV cache size: 1,412,608 tokens",
    "slot print_timing: id  2 | task 77 | ",
    "       eval time =   24310.40 ms /  1600 tokens (   15.19 ms per token,    65.82 tokens per second)",
    "draft acceptance = 0.55161 (  171 accepted /   310 generated), mean acceptance length =  2.64, acceptance rate per position = (0.741, 0.529)",
    '"timings": {"prompt_n":140,"prompt_ms":701.2,"predicted_n":1600,"predicted_ms":24310.4,"draft_n":931,"draft_n_accepted":912}',
    "May 04 10:22:31 gpu-01 python[4121]: decode seq=3 req=r1 steps=1 tokens=1 wall_ms=5",
)
PIECES = (
    *("0", "-1", "9" * 400, "9" * 5000, "1e999", "nan", "inf", "٣", "²", "1_0", "", " ", ",", ", ", ": ", "=", '"', "{", "}", "[", "]"),
    *("null", "true", "True", "[]", "{}", "\x00", "\x1b[31m", "\ud800", "\u2028", "\r", "(", ")", ".", "%", "-", "+"),
)  # fmt: skip
LINES = 100_000


def damaged(draw: random.Random) -> str:
    """A line of the corpus with up to four cuts, insertions, repetitions or swaps."""
    line = draw.choice(CORPUS)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(line) + 1)
        to = min(len(line), at + draw.randrange(12))
        act = draw.randrange(5)
        if act == 0:
            line = line[:at] + line[to:]
        elif act == 1:
            line = line[:at] + draw.choice(PIECES) + line[at:]
        elif act == 2:
            line = line[:at] + draw.choice(PIECES) + line[to:]
        elif act == 3:
            line = line[:to] + line[at:]
        else:
            line = line[:at] + draw.choice(CORPUS)[at:]
    return line


def sound(sample: Sample) -> bool:
    figures = (sample.commit_length, sample.step_ms, sample.tok_s, sample.kv_fraction, sample.accept_rate)
    return all(figure is None or (math.isfinite(figure) and figure >= 0) for figure in figures)


def test_a_hundred_thousand_damaged_lines_never_raise_and_give_no_impossible_figure() -> None:
    draw = random.Random(20261130)
    lines = [Line(damaged(draw)) for _ in range(LINES)]
    names = ("auto", *READERS)
    shares = [lines[start :: len(names)] for start in range(len(names))]
    records = 0
    for name, share in zip(names, shares, strict=True):
        *samples, end = parse(share, reader_for(name))
        assert isinstance(end, End) and end.lines == len(share)
        for sample in samples:
            assert isinstance(sample, Sample) and sound(sample), sample
            json.dumps(sample.to_json(), allow_nan=False)
        records += end.records
    assert records > LINES // 20  # the damage leaves enough of them alive to test something


def test_json_nested_beyond_reason_is_no_record() -> None:
    for head in ('{"meta_info": ', '{"timings": '):
        *samples, end = parse([Line(head + "[" * 60_000)], reader_for("auto"))
        assert samples == [] and isinstance(end, End) and end.skipped == 1
