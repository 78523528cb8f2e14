"""An engine's line is read whoever kept the log, in whatever form and encoding; what only looks like a record is not."""

from __future__ import annotations

import io
import json

import pytest

from console.telemetry.parse import End, parse, reader_for
from console.telemetry.sample import Sample
from console.verbs.saved_lines import saved_lines

BUNDLED = "decode seq=812 req=r17 ctx=3451 steps=40 tokens=130 wall_ms=3650.2 running=1 queued=0 graph=1"
SGLANG = (
    "[2026-06-25 09:35:19 TP0] Decode batch, #running-req: 1, #token: 104, token usage: 0.00, accept len: 4.35, "
    "accept rate: 0.22, cuda graph: True, gen throughput (token/s): 148.64, #queue-req: 0"
)
VLLM = (
    "(APIServer pid=22) INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 5.44, "
    "Accepted: 666 tokens, Drafted: 2250 tokens, Per-position acceptance rate: 0.853, 0.713, Avg Draft acceptance rate: 29.6%"
)
LLAMACPP = "slot print_timing: id  2 | task 77 | draft acceptance = 0.55161 (  171 accepted /   310 generated), mean acceptance length =  2.64"
ENGINES = (BUNDLED, SGLANG, VLLM, LLAMACPP)

KEPT = {  # what stands before the line, and the time that it gives
    "May 04 10:22:31.123456 gpu01 python3[4121]: ": None,
    "May 04 10:22:31 gpu01 (python3)[4121]: ": None,
    "Mon 2026-05-04 10:22:31 UTC gpu01 python3[4121]: ": "2026-05-04T10:22:31+00:00",
    "Mon 2026-05-04 10:22:31 CEST gpu01 user@1000.service/ddtree-engine.service[4121]: ": "2026-05-04T10:22:31",
    "2026-05-04T10:22:31.123456+0200 gpu01 python3[4121]: ": "2026-05-04T10:22:31.123+02:00",
    "1777890151.123456 gpu01 python3[4121]: ": "2026-05-04T10:22:31.123+00:00",
    "[   34.529387] gpu01 python3[4121]: ": None,
    "<14>1 2026-05-04T10:22:31.123456Z gpu01 ddtree-engine 4121 - - ": "2026-05-04T10:22:31.123+00:00",
    "2026-05-04T10:22:31.123456+00:00 app[web.1]: ": "2026-05-04T10:22:31.123+00:00",
    "2026-05-04T10:22:31.123456789Z ": "2026-05-04T10:22:31.123+00:00",
    "2026-05-04T10:22:31.123456789Z stdout F ": "2026-05-04T10:22:31.123+00:00",
    "sglang-1  | 2026-05-04T10:22:31.5Z ": "2026-05-04T10:22:31.500+00:00",
    "[pod/sglang-0/server] ": None,
    "2026-05-04 10:22:31,123 INFO ": "2026-05-04T10:22:31.123",
    "2026-05-04 10:22:31,123 - sglang - INFO - ": "2026-05-04T10:22:31.123",
    "2026-05-04 10:22:31.123 | INFO     | engine.log:write:12 - ": "2026-05-04T10:22:31.123",
    "2026-02-31 10:22:31,123 INFO ": None,  # no such day
    "INFO:sglang:": None,
    "\x1b[36m(ServeReplica:LLM pid=1234, ip=10.0.0.3)\x1b[0m ": None,
    "[rank0]: ": None,
    "[1,0]<stdout>: ": None,
    "0: ": None,
    "engine.log.1:12:": None,
    "0|engine  | ": None,
    "\ufeff": None,
    "\x00\x00\x00": None,
    "\x1b]0;a title\x07#033[32m": None,
    "Loading: 10%\rLoading: 100%\r": None,
}


def read(data: bytes) -> tuple[list[Sample], End]:
    *samples, end = parse(saved_lines(io.BytesIO(data)), reader_for("auto"))
    assert isinstance(end, End)
    return [sample for sample in samples if isinstance(sample, Sample)], end


@pytest.mark.parametrize("before", KEPT)
def test_what_a_log_keeper_puts_before_a_line_is_taken_off_and_its_time_kept(before: str) -> None:
    for line in ENGINES:
        (sample,), end = read(f"{before}{line}\r\n".encode())
        (bare,), _ = read(line.encode())
        assert end == End(lines=1, records=1, skipped=0)
        assert {**sample.to_json(), "time": None} == {**bare.to_json(), "time": None}
        assert sample.time == (KEPT[before] or bare.time)


@pytest.mark.parametrize(
    "fields",
    [
        {"MESSAGE": BUNDLED},  # as `--output-fields=MESSAGE` and jq leave it
        {"MESSAGE": list(BUNDLED.encode()), "__REALTIME_TIMESTAMP": "1777890151123456"},
        {"MESSAGE": f"engine-1  | {BUNDLED}", "__REALTIME_TIMESTAMP": 1777890151123456},
        {"log": f"{BUNDLED}\n", "stream": "stdout", "time": "2026-05-04T10:22:31.123+00:00"},
    ],
)
def test_a_journal_or_container_log_in_json_is_read_with_whichever_fields_it_kept(fields: dict[str, object]) -> None:
    for dressed in (json.dumps(fields), "\x1e" + json.dumps(fields)):
        (sample,), end = read(dressed.encode() + b"\n")
        assert end.skipped == 0
        assert sample.steps == 40
        assert sample.time == (None if len(fields) == 1 else "2026-05-04T10:22:31.123+00:00")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_log_that_windows_wrote_is_read_in_its_own_encoding(encoding: str) -> None:
    text = f"\r\n Zeit ĊĀ ñ\r\n{SGLANG}\r\n{BUNDLED}\r\n{SGLANG}"  # U+0A.. holds the byte of a line end
    samples, end = read(("\ufeff" * (encoding != "utf-8-sig") + text).encode(encoding))
    assert [sample.engine for sample in samples] == ["sglang", "bundled", "sglang"]
    assert end == End(lines=5, records=3, skipped=2)


@pytest.mark.parametrize(
    "line",
    [
        f'2026-05-04T10:22:31Z gpu01 app[3]: the user wrote "{BUNDLED}"',
        f"2026-05-04T10:22:31Z stdout F prompt: {BUNDLED}",
        f"INFO 05-04 10:22:31 [logger.py:40] Received request: {BUNDLED}",
        f"> {BUNDLED}",
        f"[2026-05-04 10:22:31] Receive: text='{SGLANG}'",
        f"0: 1: 2: 3: 4: {BUNDLED}",
        json.dumps({"prompt": BUNDLED}),
    ],
)
def test_a_record_within_somebodys_text_stays_text(line: str) -> None:
    assert read(line.encode()) == ([], End(lines=1, records=0, skipped=1))


def test_vllms_first_generation_calls_the_queue_pending() -> None:
    (sample,), _ = read(
        b"INFO 04-01 12:00:10 metrics.py:455] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 43.1 tokens/s, "
        b"Running: 1 reqs, Swapped: 0 reqs, Pending: 2 reqs, GPU KV cache usage: 0.3%, CPU KV cache usage: 0.0%.\n"
    )
    assert (sample.running, sample.queued, sample.kv_fraction) == (1, 2, 0.003)


@pytest.mark.parametrize(
    ("line", "figure", "note"),
    [
        (SGLANG.replace("4.35", "nan"), "commit_length", "accept len: 'nan' is not a number"),
        (SGLANG.replace("148.64", "inf"), "tok_s", "gen throughput (token/s): 'inf' is not a number"),
        (VLLM.replace("5.44", "nan"), "commit_length", "commit_length: 'nan' is not a number"),
        (VLLM.replace("29.6%", "nan%"), "accept_rate", "accept_rate: 'nan%' is not a number"),
    ],
)
def test_what_an_engine_could_not_work_out_is_absent_and_the_rest_of_its_line_is_not(
    line: str, figure: str, note: str
) -> None:
    (sample,), _ = read(line.encode())
    assert getattr(sample, figure) is None
    assert note in sample.notes
