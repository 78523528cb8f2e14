"""The log's ring: numbers that never change, a filter that is always right, an anchor that holds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.box.values import Record
from console.errors import UsageError
from console.tui.log_buffer import LogBuffer, parse_filter
from tests.tui.recorded import record

BATCHES = st.lists(st.lists(st.sampled_from(["decode", "prefill", "error"]), max_size=30), max_size=12)
FILTERS = st.sampled_from(["", "decode", "!decode", "prefill|error", "nothing like it"])


def records(words: list[str], start: int = 0) -> list[Record]:
    """Records whose message is a word and their number."""
    return [record(f"{word} {start + i}", start + i) for i, word in enumerate(words)]


@given(BATCHES, FILTERS, FILTERS)
def test_what_is_shown_is_what_passes_of_the_newest_records(batches: list[list[str]], first: str, then: str) -> None:
    log = LogBuffer(limit=40)
    log.set_filter(parse_filter(first))
    everything: list[Record] = []
    for place, words in enumerate(batches):
        if place == len(batches) // 2:
            log.set_filter(parse_filter(then))
        fresh = records(words, len(everything))
        everything += fresh
        log.extend(fresh)
        wanted = [one for one in everything[-40:] if log.filter.lets_through(one)]
        assert list(log.shown()) == wanted
        assert len(log) == len(wanted)


@given(BATCHES, FILTERS)
def test_a_record_keeps_its_number_while_it_is_kept(batches: list[list[str]], text: str) -> None:
    log = LogBuffer(limit=25)
    log.set_filter(parse_filter(text))
    count = 0
    for words in batches:
        log.extend(records(words, count))
        count += len(words)
        for place in range(len(log)):
            number = log.number_at(place)
            assert log.record(number).message.endswith(f" {number}")
            assert log.place_of(number) == place


@given(BATCHES, st.integers(0, 400))
def test_the_place_of_a_record_that_is_gone_is_the_next_one_shown(batches: list[list[str]], number: int) -> None:
    log = LogBuffer(limit=25)
    log.set_filter(parse_filter("decode"))
    for words in batches:
        log.extend(records(words, log.received))
    place = log.place_of(number)
    assert all(log.number_at(i) < number for i in range(place))
    assert all(log.number_at(i) >= number for i in range(place, len(log)))


def test_a_record_that_has_left_the_ring_cannot_be_had() -> None:
    log = LogBuffer(limit=10)
    log.extend(records(["decode"] * 25))
    assert log.oldest == 15
    with pytest.raises(IndexError):
        log.record(14)


def test_search_goes_round_in_both_directions() -> None:
    log = LogBuffer()
    log.extend(records(["decode", "error", "decode", "error", "decode"]))
    pattern = re.compile("error")
    assert log.find(pattern, 2, 1) == 3
    assert log.find(pattern, 4, 1) == 1
    assert log.find(pattern, 2, -1) == 1
    assert log.find(pattern, 0, -1) == 3
    assert log.find(re.compile("none"), 0, 1) is None


def test_small_letters_match_both_cases_and_capitals_only_themselves() -> None:
    assert parse_filter("cuda").lets_through(record("CUDA error", 1))
    assert not parse_filter("CUDA").lets_through(record("cuda error", 1))


def test_the_level_lets_graver_records_through() -> None:
    chosen = parse_filter("", least_priority=4)
    assert chosen.lets_through(record("x", 1, priority=3))
    assert chosen.lets_through(record("x", 1, priority=4))
    assert not chosen.lets_through(record("x", 1, priority=6))


def test_a_gap_cannot_be_filtered_away() -> None:
    gap = Record("c", 0, "lines are missing", marker="gap")
    assert parse_filter("decode", least_priority=3).lets_through(gap)


def test_a_wrong_pattern_is_refused_with_its_reason() -> None:
    with pytest.raises(UsageError, match="missing \\)"):
        parse_filter("decode(")
