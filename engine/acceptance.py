"""Is speculation worth its tree? Three checks over the newest steps (facts in `/server_info`)."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

from engine.events import Event, StepTaken


@dataclass(frozen=True)
class SpeculationFigures:
    """Over the newest steps; None where no step could tell.

    `spine_hit_rate`: share of tree steps whose accepted path followed the first choice at every depth.
    `branch_gain`: tokens a step that the branches added over the first choices alone, from the same verify passes.
    `lookup_share`: of the tokens kept, those that only the text's own repetition had proposed.
    `calibration`: drafted tokens accepted, over the number the drafter's probabilities promised; steady and about 1 or below.
    """

    spine_hit_rate: float | None
    branch_gain: float | None
    calibration: float | None
    lookup_share: float | None = None


@dataclass(frozen=True)
class _Step:
    commit: int  # tokens of the step, bonus included, before any cut at the answer's end
    spine: int  # tokens that first choices alone would have kept, bonus included
    promised: float  # sum over drafted nodes of their prefix's probability: the accepted nodes to expect
    branches: bool
    lookup: int | None  # tokens of the step that only the lookup had proposed; None where nothing was looked up


class AcceptanceWindow:
    """The newest `size` steps that drafted anything; observed on the engine's thread, read on the HTTP side."""

    def __init__(self, size: int = 512) -> None:
        self._steps: deque[_Step] = deque(maxlen=size)
        self._lock = threading.Lock()

    def observe(self, event: Event) -> None:
        """Keep a step's acceptance; other events pass by."""
        if not isinstance(event, StepTaken) or len(event.round.tree) == 1:
            return
        tree = event.round.tree
        step = _Step(
            commit=len(event.round.path),
            spine=event.round.spine_length,
            promised=sum(math.exp(weight) for weight in tree.log_weights[1:]),
            branches=len(set(tree.parents)) < len(tree),
            lookup=sum(node in tree.grafted for node in event.round.path) if event.looks_up else None,
        )
        with self._lock:
            self._steps.append(step)

    def figures(self) -> SpeculationFigures:
        """Ratios of sums over the steps kept."""
        with self._lock:
            steps = list(self._steps)
        trees = [step for step in steps if step.branches]
        looked_up = [step for step in steps if step.lookup is not None]
        promised = sum(step.promised for step in steps)
        return SpeculationFigures(
            spine_hit_rate=sum(step.spine == step.commit for step in trees) / len(trees) if trees else None,
            branch_gain=sum(step.commit - step.spine - (step.lookup or 0) for step in trees) / len(trees)
            if trees
            else None,
            calibration=sum(step.commit - 1 for step in steps) / promised if promised > 0.0 else None,
            lookup_share=sum(step.lookup or 0 for step in looked_up) / sum(step.commit for step in looked_up)
            if looked_up
            else None,
        )
