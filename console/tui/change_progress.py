"""A settings change on its way as a value: the phases that the box has reported, its deadline, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

from console.deployment.change import Outcome, Phase


@dataclass(frozen=True)
class ChangeProgress:
    """What is known of it. Times are seconds of the Session's clock. `who` is set where another console asked for it."""

    started_s: float
    who: str | None = None
    phases: tuple[Phase, ...] = ()
    outcome: Outcome | None = None
    word_by_s: float | None = None
    """The operator's word must have come by then: the box told what was left, and it needs no common clock."""
    word: str | None = None
    """The word that was given."""

    @property
    def on_its_way(self) -> bool:
        """It has no outcome yet."""
        return self.outcome is None

    @property
    def waits(self) -> bool:
        """It has proved itself, and holds only if the operator says so."""
        return self.on_its_way and self.phases[-1:] != () and self.phases[-1].name == "waiting"

    def left_s(self, now_s: float) -> float | None:
        """Seconds left for a word; None while none is waited for, one was given, or the box does not tell."""
        if not self.waits or self.word_by_s is None or self.word is not None:
            return None
        return max(0.0, self.word_by_s - now_s)


def advanced(change: ChangeProgress, step: Phase | Outcome, now_s: float) -> ChangeProgress:
    """`change` after the box reported this."""
    if isinstance(step, Outcome):
        return replace(change, outcome=step)
    word_by_s = now_s + step.left_s if step.left_s is not None else change.word_by_s
    return replace(change, phases=(*change.phases, step), word_by_s=word_by_s)
