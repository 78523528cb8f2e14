"""The statistics of A/B runs hold what they promise: simulated operating characteristics, and the tables of what is seen."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from console.analysis.blocks import block_effects, precise_enough
from console.analysis.drift import adjusted_step_ms, clock_effect, outliers, steady_from, throttled_arm, trend
from console.analysis.effects import (
    Cell,
    Effect,
    Spread,
    blocks_needed,
    decide,
    effect_of_blocks,
    effect_of_cells,
    holm,
    minimum_detectable_effect,
    sign_flip_p,
    spread_of_cells,
)

DRIFT, WHITE = 0.006, 0.015  # random walk a run, and noise of each run
SIMULATIONS = 1500


def block_contrasts(blocks: int, effect: float, random: np.random.Generator, *, linear: float = 0.0) -> np.ndarray:
    """Log-ratios [simulations, blocks] of ABBA blocks over drifting runs."""
    runs = 4 * blocks
    drift = np.cumsum(random.normal(0, DRIFT, (SIMULATIONS, runs)), axis=1) + linear * np.arange(runs)
    y = drift + random.normal(0, WHITE, (SIMULATIONS, runs)) + effect * np.tile([0, 1, 1, 0], blocks)
    four = y.reshape(SIMULATIONS, blocks, 4)
    return (four[:, :, 1] + four[:, :, 2] - four[:, :, 0] - four[:, :, 3]) / 2


@pytest.mark.parametrize(("blocks", "power"), [(4, 0.73), (6, 0.96), (8, 0.997)])
def test_abba_blocks_keep_their_error_rates_and_their_power(blocks: int, power: float) -> None:
    random = np.random.default_rng(blocks)
    null = [effect_of_blocks(row) for row in block_contrasts(blocks, 0.0, random)]
    false = sum(e.ci[0] > 1 or e.ci[1] < 1 for e in null if e.ci) / SIMULATIONS
    assert false <= 0.065  # nominal 5 % and three standard errors of 1,500 simulations
    shifted = [effect_of_blocks(row) for row in block_contrasts(blocks, math.log(1.03), random)]
    covered = sum(e.ci[0] <= 1.03 <= e.ci[1] for e in shifted if e.ci) / SIMULATIONS
    assert covered >= 0.935
    seen = sum(e.ci[0] > 1 for e in shifted if e.ci) / SIMULATIONS
    assert seen == pytest.approx(power, abs=0.05)


def test_linear_drift_is_cancelled_and_an_unblocked_order_is_fooled_by_it() -> None:
    random = np.random.default_rng(5)
    blocked = block_contrasts(6, 0.0, random, linear=0.001)
    assert abs(float(blocked.mean())) < 0.001
    runs = np.cumsum(random.normal(0, DRIFT, (SIMULATIONS, 24)), axis=1) + random.normal(0, WHITE, (SIMULATIONS, 24))
    halves = [effect_of_cells([Cell(tuple(np.exp(row[:12])), tuple(np.exp(row[12:])))]) for row in runs[:400]]
    fooled = sum(e.ci[0] > 1 or e.ci[1] < 1 for e in halves if e and e.ci) / 400
    assert fooled > 0.30


def test_looking_five_times_needs_the_smaller_alpha() -> None:
    random = np.random.default_rng(9)
    all_blocks = block_contrasts(16, 0.0, random)[:400]
    naive = 0
    for row in all_blocks:
        effects = [effect_of_blocks(row[:looked]) for looked in (4, 6, 8, 12, 16)]
        naive += any(e.ci is not None and not e.ci[0] <= 1 <= e.ci[1] for e in effects)
    assert 0.09 < naive / 400 < 0.20  # 14 % in the reference simulation


@pytest.mark.parametrize(
    ("sd", "blocks", "percent"),
    [(0.01, 3, 3.1), (0.01, 6, 1.4), (0.02, 4, 4.2), (0.03, 12, 2.7), (0.05, 8, 5.8), (0.05, 20, 3.3), (0.03, 5, 5.0)],
)
def test_the_minimum_detectable_effect_is_the_tables(sd: float, blocks: int, percent: float) -> None:
    found = minimum_detectable_effect(sd, blocks)
    assert found is not None and 100 * found == pytest.approx(percent, abs=0.3)


def test_blocks_needed_is_where_the_detectable_effect_reaches_the_effect_of_interest() -> None:
    for sd, delta in ((0.01, 0.02), (0.02, 0.02), (0.03, 0.05)):
        count = blocks_needed(sd, delta)
        assert minimum_detectable_effect(sd, count) <= delta * 1.02
        assert count == 3 or minimum_detectable_effect(sd, count - 1) > delta


@pytest.mark.parametrize(
    ("ci", "ci90", "decision"),
    [
        ((1.03, 1.07), (1.035, 1.065), "faster"),
        ((0.93, 0.97), (0.935, 0.965), "slower"),
        ((0.985, 1.015), (0.99, 1.01), "equivalent"),
        ((1.005, 1.03), (1.008, 1.028), "small"),
        ((0.95, 1.06), (0.96, 1.05), "inconclusive"),
        ((1.001, 1.012), (1.002, 1.011), "equivalent"),  # surely there, and surely of no interest
    ],
)
def test_decisions_follow_the_intervals(ci: tuple[float, float], ci90: tuple[float, float], decision: str) -> None:
    assert decide(Effect(1.0, ci, ci90, 5, 0.01)) == decision


def test_rate_commit_and_step_effects_add_exactly_and_blocks_without_both_arms_do_not_count() -> None:
    random = np.random.default_rng(1)
    rows = []
    for block in range(4):
        for arm, factor in (("a", 1.0), ("b", 0.9), ("b", 0.9), ("a", 1.0)):
            commit, step = 3.0 * math.exp(random.normal(0, 0.01)), 40.0 * factor * math.exp(random.normal(0, 0.01))
            rows.append({"block": block, "arm": arm, "commit": commit, "step_ms": step, "tok_s": 1000 * commit / step})
    rows.append({**rows[0], "block": 9})
    found = block_effects(rows, "a", "b")
    assert found is not None and found.blocks == 4
    assert math.log(found.tok_s.ratio) == pytest.approx(math.log(found.commit.ratio) - math.log(found.step_ms.ratio))
    assert found.step_ms.ratio == pytest.approx(0.9, rel=0.02)
    assert decide(found.tok_s) == "faster"
    assert precise_enough(found.tok_s, delta=0.05)
    assert not precise_enough(found.tok_s, delta=0.0001)
    assert block_effects([], "a", "b") is None


def test_the_sign_flip_test_is_exact_for_few_blocks() -> None:
    assert sign_flip_p([1.0, 1.0, 1.0]) == pytest.approx(2 / 8)
    assert sign_flip_p([0.5, -0.5]) == 1.0
    one_sided = effect_of_blocks([0.03, 0.028, 0.031, 0.03, 0.029, 0.5])
    assert one_sided.non_normal  # one wild block: t says nothing, the signs say something
    assert one_sided.hodges_lehmann == pytest.approx(math.exp(0.0305), rel=0.01)


def test_cells_are_weighed_alike_and_a_cell_of_one_run_is_left_out() -> None:
    cells = [Cell((10.0, 10.1, 9.9), (20.0, 20.2, 19.8)), Cell((5.0, 5.0, 5.0), (10.0, 10.0, 10.0)), Cell((7.0,), ())]
    found = effect_of_cells(cells)
    assert found is not None and found.ratio == pytest.approx(2.0, rel=1e-3) and found.freedom == 8
    assert found.ci is not None and found.ci[0] < 2.0 < found.ci[1]
    assert effect_of_cells([Cell((1.0,), ())]) is None
    assert effect_of_cells([Cell((1.0,), (2.0,))]).ci is None  # type: ignore[union-attr]


def test_holm_adjusts_in_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_drift_along_a_run_is_seen_and_noise_is_not() -> None:
    assert trend([i + 0.1 * (-1) ** i for i in range(12)]).drifts  # type: ignore[union-attr]
    noise = np.random.default_rng(3).normal(size=20)
    assert not trend(list(noise)).drifts  # type: ignore[union-attr]
    assert trend([1.0, 2.0]) is None


def test_warm_up_is_cut_where_the_mean_is_known_best() -> None:
    assert steady_from([90, 60, 40, *([30, 31, 29, 30, 31, 30, 29, 30] * 3)]) == 3
    assert steady_from([30.0, 31.0, 30.0, 31.0]) == 0
    assert steady_from([100.0 * 0.8**i for i in range(10)]) is None


def test_a_wild_figure_is_marked_by_its_place() -> None:
    assert outliers([30, 31, 30, 29, 30, 60]) == [5]
    assert outliers([30.0] * 5) == []


def test_a_throttled_clock_explains_the_step_and_is_adjusted_for() -> None:
    clocks = [1980.0, 1980.0, 1500.0, 1400.0, 1700.0, 1300.0]
    steps = [30.0 * 1980 / clock for clock in clocks]
    found = clock_effect(steps, clocks)
    assert found is not None and found.matters and found.elasticity == pytest.approx(-1.0)
    for step, clock in zip(steps, clocks, strict=True):
        assert adjusted_step_ms(step, clock, 1980.0, found) == pytest.approx(30.0)
    assert clock_effect(steps, [1980.0] * 6) is None


def test_throttling_of_one_arm_alone_voids() -> None:
    assert throttled_arm({"a": [False] * 10, "b": [True, True, *[False] * 8]}) == "b"
    assert throttled_arm({"a": [True] * 5, "b": [True] * 5}) is None
    assert throttled_arm({"a": [False] * 5}) is None


def test_the_distance_to_the_next_look_shrinks_with_every_block() -> None:
    widths = []
    for count in (4, 6, 8, 12, 16):
        effect = effect_of_blocks([0.01, -0.01] * (count // 2))
        assert effect.ci is not None
        widths.append(math.log(effect.ci[1] / effect.ci[0]))
    assert all(later < earlier for earlier, later in pairwise(widths))


def test_a_cell_with_few_repeats_borrows_spread_from_the_others_and_never_more_than_they_have() -> None:
    cell = Cell((1.0, math.e**0.1), (2.0, 2.0 * math.e**0.3))  # squares 0.005 and 0.045, one degree of freedom each
    alone = effect_of_cells([cell])
    assert alone is not None and alone.freedom == 2 and alone.sd == pytest.approx(math.sqrt(0.025))
    lent = effect_of_cells([cell], lent=Spread(0.01, 40))
    assert lent is not None and lent.freedom == 2 + 8
    assert lent.sd == pytest.approx(math.sqrt((2 * 0.025 + 8 * 0.01) / 10))
    assert lent.ratio == alone.ratio
    scarce = effect_of_cells([cell], lent=Spread(0.01, 5))
    assert scarce is not None and scarce.freedom == 2 + 3
    itself = effect_of_cells([cell], lent=spread_of_cells([cell]))
    assert itself == alone


def test_from_twenty_blocks_on_a_bootstrap_checks_students_t() -> None:
    draw = random.Random(5)
    normal = [0.02 + draw.gauss(0, 0.03) for _ in range(24)]
    assert effect_of_blocks(normal[:19]).ci_bca is None
    found = effect_of_blocks(normal)
    assert found.ci is not None and found.ci_bca is not None and not found.non_normal
    assert found.ci_bca == pytest.approx(found.ci, abs=0.006)
    skewed = effect_of_blocks([0.004 + draw.gauss(0, 0.002) for _ in range(23)] + [0.25])
    assert skewed.ci is not None and skewed.ci_bca is not None
    assert skewed.ci[0] < 1.0 < skewed.ci_bca[0]  # one wild block drags t's interval over 1, and not the other
    assert skewed.non_normal
    assert effect_of_blocks([0.0] * 24).ci_bca is None
