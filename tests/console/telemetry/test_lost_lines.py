"""What was lost is said on the figures it touches: by the engine's own count, or by what the journal says."""

from __future__ import annotations

from console.telemetry.parse import reader_for
from console.telemetry.rates import rates_over
from console.telemetry.reader import LogReader
from console.telemetry.sample import Sample

WHY = "journald suppressed 412 messages"
DECODE = "[2026-05-04 10:22:{:02} TP0] Decode batch, #running-req: 1, #token: {}, token usage: 0.01, accept len: 4.87, cuda graph: True, gen throughput (token/s): 121.40, #queue-req: 0"
VLLM = "INFO 04-20 12:00:00 [metrics.py:96] SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens"


def window(seq: int) -> str:
    return f"decode seq={seq} req=r1 steps=10 tokens=30 wall_ms=100"


def one(reader: LogReader, line: str) -> Sample:
    (sample,) = reader.read(line, None).samples
    return sample


def test_lines_that_are_counted_and_make_no_sample_are_not_taken_for_lost() -> None:
    reader = reader_for("bundled")
    one(reader, window(1))
    reader.read('refused seq=2 req=r2 status=400 error="too long"', None)
    reader.read("error seq=3 error=broken", None)
    assert not one(reader, window(4)).partial
    assert one(reader, window(6)).notes == ("partial: 1 line lost before this one (seq 4, then 6)",)
    assert not one(reader, window(7)).partial


def test_the_engines_count_says_whether_suppressed_lines_were_its_own() -> None:
    reader = reader_for("bundled")
    reader.lost(WHY)  # nothing to count from yet
    assert one(reader, window(5)).notes == (f"partial: {WHY}",)
    reader.lost(WHY)
    assert not one(reader, window(6)).partial  # those were somebody else's


def test_a_loss_ends_sglangs_busy_stretch_and_is_noted_once() -> None:
    reader = reader_for("sglang")
    one(reader, DECODE.format(20, 100))
    assert one(reader, DECODE.format(24, 295)).tok_s == 121.4
    reader.lost(WHY)
    after = one(reader, DECODE.format(28, 490))
    assert (after.tok_s, after.partial, after.commit_length) == (None, True, 4.87)
    assert not one(reader, DECODE.format(32, 690)).partial


def test_half_a_llamacpp_block_is_dropped() -> None:
    reader = reader_for("llamacpp")
    reader.read("slot print_timing: id  2 | task 77 |", None)
    reader.read(
        "       eval time =   24310.40 ms /  1600 tokens (   15.19 ms per token,    65.82 tokens per second)", None
    )
    reader.lost(WHY)
    assert reader.finish() == ()


def test_with_an_engine_unknown_the_loss_is_on_the_next_record_whoever_wrote_it() -> None:
    reader = reader_for("auto")
    reader.lost(WHY)
    assert one(reader, VLLM).partial
    assert not one(reader, VLLM).partial


def test_rates_over_a_span_with_a_hole_are_marked_and_those_behind_it_are_not() -> None:
    reader = reader_for("bundled")
    samples = [one(reader, window(seq)) for seq in (1, 2, 5, 6)]
    whole, behind = rates_over(samples), rates_over(samples[2:])
    assert whole is not None and behind is not None
    assert (whole.partial, whole.commit_length, whole.windows) == (True, 3.0, 4)
    assert not behind.partial  # the hole lies before the span's first window
