"""A/B runs end by the width of their interval, never by what it says."""

from __future__ import annotations

import math

import pytest
from kit_ab import DELTA, T_975, half_width
from scipy import stats

from console.analysis.blocks import LOOKS, precise_enough
from console.analysis.effects import AB_DELTA, effect_of_blocks


def test_the_looks_and_quantiles_are_those_of_the_analysis() -> None:
    assert tuple(T_975) == LOOKS
    assert DELTA == AB_DELTA
    for blocks, t in T_975.items():
        assert t == pytest.approx(stats.t.ppf(0.975, blocks - 1), abs=0.001)


def test_a_run_is_precise_enough_where_the_console_says_so_too() -> None:
    for spread in (0.001, 0.004, 0.006, 0.01, 0.05):
        contrasts = [spread, -spread, spread / 2, -spread / 2]
        a = [[100.0, 100.0]] * 4
        b = [[100.0 * math.exp(one)] * 2 for one in contrasts]
        effect = effect_of_blocks(contrasts)
        assert effect.ci is not None
        assert half_width(a, b) == pytest.approx(math.log(effect.ci[1] / effect.ci[0]) / 2, rel=1e-3)
        assert (half_width(a, b) <= math.log1p(DELTA) / 2) is precise_enough(effect)


def test_a_start_without_a_rate_is_never_precise() -> None:
    assert half_width([[1.0], []], [[1.0], [1.0]]) == math.inf
