"""Guard rail: speculation that keeps next to nothing is told of, once each time it comes to that."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.events import CommitsLow, StepTaken

STEPS = 200
"""Steps that drafted, over all requests, that a warning looks back on."""
LOWEST = 1.05
"""Tokens a step below which drafting is a waste: 1 is what a step gives without it."""


@dataclass
class CommitGuard:
    """`after` each step: a warning where the newest steps have fallen below the lowest commit length, else None."""

    _commits: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS))
    _told: bool = False

    def after(self, step: StepTaken) -> CommitsLow | None:
        """Take in a step; the warning comes again only after commits have recovered in between."""
        if len(step.round.tree) == 1:
            return None
        self._commits.append(len(step.round.path))
        if len(self._commits) < STEPS:
            return None
        tokens, told = sum(self._commits), self._told
        self._told = tokens < LOWEST * STEPS
        if not self._told:
            return None
        self._commits.clear()  # the next judgement is of other steps: a warning that flickers says no more
        return None if told else CommitsLow(STEPS, tokens)
