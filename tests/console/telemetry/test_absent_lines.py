"""A log without a decode line: normal for short answers, and said so."""

from __future__ import annotations

import pytest

from console.telemetry.absent import no_decode_line
from console.telemetry.parse import Line, parse, reader_for
from console.telemetry.sample import Sample

PREFILL = (
    "[2026-05-04 10:22:29 TP0] Prefill batch. #new-seq: 1, #new-token: 2701, #cached-token: 0, token usage: 0.00, "
    "#running-req: 0, #queue-req: 0, "
)
ANSWER = '"meta_info": {"prompt_tokens":2701,"completion_tokens":151,"cached_tokens":0,"spec_verify_ct":30}'
DECODE = (
    "[2026-05-04 10:22:31 TP0] Decode batch. #running-req: 1, #token: 2743, token usage: 0.01, accept len: 4.87, "
    "gen throughput (token/s): 121.40, #queue-req: 0, "
)


def samples(*lines: str) -> list[Sample]:
    return [one for one in parse(map(Line, lines), reader_for("auto")) if isinstance(one, Sample)]


def test_thirty_steps_leave_no_line_and_the_answer_itself_still_counts_them() -> None:
    found = samples(PREFILL, ANSWER)
    told = no_decode_line({(one.engine, one.kind) for one in found})
    assert told is not None and "SGLang writes one every 40 decode steps" in told
    assert (found[-1].steps, found[-1].commit_length) == (30, pytest.approx(5.0))


def test_where_a_decode_line_is_or_nothing_was_asked_there_is_nothing_to_say() -> None:
    assert no_decode_line({(one.engine, one.kind) for one in samples(PREFILL, DECODE)}) is None
    assert no_decode_line(set()) is None
    assert no_decode_line({("sglang", "ready"), ("bundled", "request")}) is None
