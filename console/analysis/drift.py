"""Did the machine hold still: drift along a run, warm-up left in it, clocks, throttling (measurement.md 2.3, 6 and 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

DRIFT_P = 0.01
CLOCK_RANGE = 0.03
THROTTLED_SHARE = 0.10
MAD_TO_SIGMA = 1.4826
OUTLIER_Z = 3.5


@dataclass(frozen=True)
class Trend:
    """Kendall's tau of residuals against their order, and its p."""

    tau: float
    p: float

    @property
    def drifts(self) -> bool:
        """Whether chance alone would hardly do that."""
        return self.p < DRIFT_P


def trend(residuals: Sequence[float]) -> Trend | None:
    """Monotone drift along a run; None below six figures, where none could be told."""
    if len(residuals) < 6 or len(set(residuals)) < 3:
        return None
    found = stats.kendalltau(range(len(residuals)), residuals)
    return Trend(float(found.statistic), float(found.pvalue))


def steady_from(series: Sequence[float]) -> int | None:
    """How many figures at the start are warm-up (MSER): the cut that leaves the mean best known; None: no steady state.

    A cut as late as the middle means that the series was still on its way.
    """
    values = np.asarray(series, dtype=float)
    count = len(values)
    if count < 4:
        return 0
    scores = [float(values[k:].var()) / (count - k) for k in range(count // 2 + 1)]
    cut = int(np.argmin(scores))
    return None if cut == count // 2 and scores[cut] < scores[0] else cut


def outliers(values: Sequence[float]) -> list[int]:
    """Places of figures with a robust z above 3.5. They are marked, never dropped: only a cause excludes a run."""
    array = np.asarray(values, dtype=float)
    middle = float(np.median(array))
    spread = float(np.median(np.abs(array - middle))) * MAD_TO_SIGMA
    if spread == 0:
        return []
    return [int(i) for i in np.flatnonzero(np.abs(array - middle) / spread > OUTLIER_Z)]


@dataclass(frozen=True)
class ClockEffect:
    """How step time follows the clock: d ln S / d ln f (about -1 where the clock decides), its p, and the clock's range."""

    elasticity: float
    p: float
    spread: float  # (highest - lowest) / highest

    @property
    def matters(self) -> bool:
        """Whether an effect should be shown adjusted for the clock beside the raw one."""
        return self.p < DRIFT_P and self.spread > CLOCK_RANGE


def clock_effect(step_ms: Sequence[float], clock_mhz: Sequence[float]) -> ClockEffect | None:
    """Regression of ln S on ln f; None below four figures or where the clock never moved."""
    if len(step_ms) < 4 or len(set(clock_mhz)) < 2:
        return None
    found = stats.linregress(np.log(clock_mhz), np.log(step_ms))
    return ClockEffect(float(found.slope), float(found.pvalue), 1.0 - min(clock_mhz) / max(clock_mhz))


def adjusted_step_ms(step_ms: float, clock_mhz: float, reference_mhz: float, effect: ClockEffect) -> float:
    """The step time that the reference clock would have given."""
    return step_ms * math.exp(effect.elasticity * math.log(reference_mhz / clock_mhz))


def throttled_arm(throttled: Mapping[str, Sequence[bool]]) -> str | None:
    """The one arm that was throttled in more than a tenth of its samples while another was not: such a run is void."""
    shares = {arm: sum(flags) / len(flags) for arm, flags in throttled.items() if flags}
    hot = [arm for arm, share in shares.items() if share > THROTTLED_SHARE]
    return hot[0] if len(hot) == 1 and len(shares) > 1 else None
