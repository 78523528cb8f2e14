"""Rates are ratios of sums; charts keep spikes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.telemetry.rates import rates_over
from console.telemetry.sample import Sample
from console.telemetry.series import Series, Spread, pooled_max, spread


def window(tokens: int, steps: int, wall_ms: float, **more: object) -> Sample:
    return Sample("decode", "bundled", tokens=tokens, steps=steps, step_ms=wall_ms / steps, **more)  # type: ignore[arg-type]


def test_four_steps_make_40_431_tokens_a_second_and_not_the_mean_of_ratios() -> None:
    # The fixture of facts/measurement.md 3.1; the mean of c/s would say 40.632.
    steps = [window(c, 1, s) for c, s in zip([5, 4, 3, 3], [90, 92, 94, 95], strict=True)]
    rates = rates_over(steps)
    assert rates is not None
    assert rates.tok_s == pytest.approx(40.431, abs=0.001)
    assert rates.commit_length == 3.75
    assert rates.step_ms == 92.75


def test_windows_weigh_by_their_steps() -> None:
    rates = rates_over(
        [
            window(10, 10, 100.0, stages_ms={"verify": 8.0}, hist=(10,)),
            window(120, 30, 600.0, stages_ms={"verify": 16.0, "draft": 2.0}, hist=(0, 0, 0, 30)),
        ]
    )
    assert rates is not None
    assert (rates.windows, rates.commit_length, rates.step_ms) == (2, 3.25, 17.5)
    assert rates.stages_ms == pytest.approx({"verify": (80 + 480) / 40, "draft": 60 / 40})
    assert rates.hist == (10, 0, 0, 30)


def test_finished_ratios_without_sums_make_no_rate() -> None:
    assert rates_over([Sample("decode", "sglang", commit_length=4.0, tok_s=100.0)]) is None
    assert rates_over([Sample("request", "bundled", tokens=9, steps=3, step_ms=1.0)]) is None


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 64), st.floats(0.1, 1e5)), min_size=1, max_size=20))
def test_the_identity_holds_for_every_span(rows: list[tuple[int, int, float]]) -> None:
    rates = rates_over([window(*row) for row in rows])
    assert rates is not None
    assert rates.tok_s == pytest.approx(1000 * rates.commit_length / rates.step_ms)
    assert rates.tokens == sum(row[0] for row in rows)


def test_a_series_keeps_the_newest_windows_in_order() -> None:
    series = Series(limit=3).extended([window(i, 1, 1.0) for i in range(1, 3)])
    series = series.extended([Sample("prefill", "bundled"), window(3, 1, 1.0), window(4, 1, 1.0)])
    assert [sample.tokens for sample in series.samples] == [2, 3, 4]


def test_pooling_keeps_the_one_spike_in_a_thousand_values() -> None:
    values = [1.0] * 1000
    values[617] = 99.0
    columns = pooled_max(values, 40)
    assert len(columns) == 40
    assert columns.count(99.0) == 1
    assert columns.index(99.0) == 617 * 40 // 1000


def test_a_gap_stays_a_gap() -> None:
    assert pooled_max([None, None, 3.0, None, None, None], 3) == [None, 3.0, None]
    assert pooled_max([None, 2.0], 5) == [None, 2.0]


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=200), st.integers(1, 50))
def test_pooling_loses_no_maximum_and_fits(values: list[float | None], columns: int) -> None:
    pooled = pooled_max(values, columns)
    assert len(pooled) <= columns
    assert max((v for v in pooled if v is not None), default=None) == max(
        (v for v in values if v is not None), default=None
    )


def test_the_spread_is_minimum_mean_and_95th_percentile() -> None:
    assert spread([None, *(float(i) for i in range(1, 101))]) == Spread(low=1.0, mean=50.5, p95=95.0)
    assert spread([None, None]) is None
