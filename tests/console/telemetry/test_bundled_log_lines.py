"""The bundled engine's log lines become Samples with the figures of contracts.md sections 3 and 7."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.telemetry.bundled import BundledReader, parse_line
from console.telemetry.logfmt import parse_logfmt
from console.telemetry.sample import Sample

LINE = (
    "decode seq=812 req=r17 ctx=3451 steps=40 tokens=130 wall_ms=3650.2 draft_ms=164.0 build_ms=12.1 verify_ms=3420.8 "
    "walk_ms=3.0 commit_ms=20.5 host_ms=29.8 nodes=2600 hist=9,8,7,6,4,3,2,1 running=1 queued=0 kv_used=231 "
    "kv_total=4096 page=16 budget=64 graph=1"
)


def sample_of(line: str, time: str | None = None) -> Sample:
    sample = parse_line(line, time)
    assert sample is not None, line
    return sample


def test_the_contract_line_gives_every_figure_as_a_ratio_of_sums() -> None:
    out = sample_of(LINE, "2026-05-04T10:22:31+00:00").to_json()
    stages = out.pop("stages_ms")
    assert stages == pytest.approx(
        {"draft": 4.1, "build": 0.3025, "verify": 85.52, "walk": 0.075, "commit": 0.5125, "host": 0.745}
    )
    assert list(stages) == ["draft", "build", "verify", "walk", "commit", "host"]
    assert out.pop("tok_s") == pytest.approx(1000 * 130 / 3650.2)
    assert out == {
        "kind": "decode",
        "engine": "bundled",
        "time": "2026-05-04T10:22:31+00:00",
        "tokens": 130,
        "steps": 40,
        "commit_length": 3.25,
        "step_ms": 91.255,
        "context": 3451,
        "running": 1,
        "queued": 0,
        "kv_fraction": 231 / 4096,
        "kv_tokens": 231 * 16,
        "graph": True,
        "hist": [9, 8, 7, 6, 4, 3, 2, 1],
        "extra": {
            "seq": 812,
            "req": "r17",
            "nodes": 2600,
            "kv_used": 231,
            "kv_total": 4096,
            "page": 16,
            "budget": 64,
        },
        "notes": [],
    }


def test_the_rate_is_the_commit_length_over_the_step_time() -> None:
    sample = sample_of(LINE)
    assert sample.commit_length and sample.step_ms
    assert sample.tok_s == pytest.approx(1000 * sample.commit_length / sample.step_ms, rel=1e-12)


def test_unknown_keys_are_kept_with_their_types() -> None:
    extra = sample_of(LINE + ' spine=0.61 lane="two words" model_sha=00123456').extra
    assert extra["spine"] == 0.61
    assert extra["lane"] == "two words"
    assert extra["model_sha"] == "00123456"  # a number would have lost its zeros


def test_the_syslog_level_may_still_be_there() -> None:
    assert sample_of("<6>" + LINE) == sample_of(LINE)


@pytest.mark.parametrize(
    ("missing", "absent", "note"),
    [
        ("steps=40 ", "commit_length", "commit_length: the line gives no steps"),
        ("tokens=130 ", "tok_s", "tok_s: the line gives no tokens"),
        ("wall_ms=3650.2 ", "step_ms", "step_ms: the line gives no wall_ms"),
    ],
)
def test_a_figure_that_cannot_be_made_is_absent_with_a_note(missing: str, absent: str, note: str) -> None:
    out = sample_of(LINE.replace(missing, "")).to_json()
    assert absent not in out
    assert note in out["notes"]


def test_a_window_without_steps_gives_no_ratio_instead_of_a_zero() -> None:
    out = sample_of("decode seq=3 req=r1 steps=0 tokens=0 wall_ms=0").to_json()
    assert not {"commit_length", "step_ms", "tok_s"} & out.keys()
    assert "commit_length: steps is 0" in out["notes"]


def test_a_histogram_that_contradicts_the_sums_is_noted() -> None:
    notes = sample_of(LINE.replace("hist=9,", "hist=8,")).notes
    assert notes == ("hist: counts 39 steps, the line 40", "hist: counts 129 tokens, the line 130")


def test_a_value_that_is_no_number_is_absent_with_a_note() -> None:
    sample = sample_of(LINE.replace("ctx=3451", "ctx=many"))
    assert sample.context is None
    assert sample.notes == ("ctx: 'many' is not a number",)


@pytest.mark.parametrize(
    "line",
    [
        "the user wrote: " + LINE,  # a prompt echoed into a log
        'echo "' + LINE + '"',
        LINE + " and then some prose",
        "decode the message seq=1 tokens=2 steps=1",
        "decode seq=812 req=r17 ctx=3451 ste",  # half a line
        "decode seq=812 req=r17 ctx=34decode seq=9 req=r2 steps=4 tokens=8",  # two processes, one line
        "decode seq=1 seq=2 tokens=2 steps=1",
        "decode of=the word=ends",
        "decode",
        "",
        'decode seq=1 tokens=2 steps=1 note="never closed',
        'decode seq=1 tokens=2 steps=1 note="bad \\q escape"',
        'refused req=r9 why="prompt of 9000 tokens, pool holds 4096"',
        "DECODE seq=1 tokens=2 steps=1",
        LINE + " pad=" + "x" * 70_000,
    ],
)
def test_what_only_looks_like_a_record_is_none(line: str) -> None:
    assert parse_line(line) is None


def test_the_ready_line_keeps_its_settings() -> None:
    sample = sample_of('ready seq=0 version=0.1.0 page_size=16 context_length=2048 mode=ddtree device="NVIDIA H200"')
    assert sample.kind == "ready"
    assert sample.extra["page_size"] == 16
    assert sample.extra["version"] == "0.1.0"
    assert sample.extra["device"] == "NVIDIA H200"


def test_a_prefill_counts_the_tokens_it_computed_and_has_no_steps() -> None:
    sample = sample_of(
        "prefill seq=4 req=r1 tokens=1000 cached=600 wall_ms=200 queue_ms=1.5 running=1 queued=0 page=16"
    )
    assert (sample.kind, sample.tokens, sample.tok_s) == ("prefill", 1000, 2000.0)
    assert sample.commit_length is None and sample.step_ms is None
    assert sample.extra["cached"] == 600


def test_a_request_line_gives_the_totals_of_its_steps() -> None:
    sample = sample_of(
        "request seq=9 req=r1 finish=length prompt_tokens=12 output_tokens=65 cached=0 queue_ms=0.1 prefill_ms=20 "
        "ttft_ms=20.4 steps=32 tokens=64 wall_ms=640 draft_ms=64 nodes=512 hist=0,32 mode=ddtree budget=16"
    )
    assert (sample.kind, sample.commit_length, sample.step_ms, sample.tok_s) == ("request", 2.0, 20.0, 100.0)
    assert sample.stages_ms == {"draft": 2.0}
    assert (sample.extra["ttft_ms"], sample.extra["finish"], sample.extra["output_tokens"]) == (20.4, "length", 65)
    assert sample.notes == ()


def test_lost_lines_are_seen_by_the_engines_own_count() -> None:
    reader = BundledReader()
    notes = [
        reading.samples[0].notes
        for seq in (5, 6, 9, 1, 2)  # 7 and 8 lost, then a restart
        for reading in [reader.read(f"decode seq={seq} req=r1 steps=1 tokens=1 wall_ms=5", None)]
    ]
    assert notes == [(), (), ("partial: 2 lines lost before this one (seq 6, then 9)",), (), ()]


_VALUES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=12)


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), _VALUES, max_size=6))
def test_whatever_is_quoted_comes_back(values: dict[str, str]) -> None:
    line = "error " + " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    record = parse_logfmt(line)
    assert record is not None
    assert record.values == values


@given(st.text(max_size=200))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    parse_line("decode " + text)
    parse_line(text)
