"""Rates over a span of windows, as ratios of sums: never means of ratios (measurement.md section 0, fact 1).

Commit length, step time and tok/s of a span come from the same windows, so that tok/s = commit length / step time
holds for the span as it does for each window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from console.telemetry.sample import Sample


@dataclass(frozen=True)
class Rates:
    """What a span of decode windows says. `windows` is how many of them carried the sums a ratio needs; `partial` says
    that lines of the span were lost, so that the rates are those of the windows that came."""

    windows: int
    tokens: int
    steps: int
    wall_ms: float
    stages_ms: dict[str, float]  # milliseconds a step
    hist: tuple[int, ...]  # hist[i] = steps that kept i+1 tokens
    partial: bool = False

    @property
    def commit_length(self) -> float:
        """Tokens a step, the bonus token counted."""
        return self.tokens / self.steps

    @property
    def step_ms(self) -> float:
        """Milliseconds a step."""
        return self.wall_ms / self.steps

    @property
    def tok_s(self) -> float:
        """Tokens a second of decoding: no idle time, no prefill."""
        return 1000.0 * self.tokens / self.wall_ms


def rates_over(samples: Iterable[Sample]) -> Rates | None:
    """The span's rates, from those decode windows that carry tokens, steps and wall time; None when there are none.

    Engines that log only finished ratios (SGLang, vLLM) carry no sums and so have no exact rate over a span.
    """
    windows = tokens = steps = 0
    wall_ms = 0.0
    stages: dict[str, float] = {}
    hist: list[int] = []
    partial = False
    for sample in samples:
        if sample.kind != "decode" or sample.tokens is None or not sample.steps or not sample.step_ms:
            continue
        partial = partial or (windows > 0 and sample.partial)  # what was lost before the first is outside the span
        windows += 1
        tokens += sample.tokens
        steps += sample.steps
        wall_ms += sample.step_ms * sample.steps
        for stage, ms in (sample.stages_ms or {}).items():
            stages[stage] = stages.get(stage, 0.0) + ms * sample.steps
        kept = sample.hist or ()
        hist.extend([0] * (len(kept) - len(hist)))
        for i, count in enumerate(kept):
            hist[i] += count
    if not windows:
        return None
    return Rates(
        windows, tokens, steps, wall_ms, {stage: ms / steps for stage, ms in stages.items()}, tuple(hist), partial
    )
