"""What happened in the engine, as facts in the past tense. The scheduler tells them; log, metrics and pictures listen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.round import Round

STAGES = ("draft", "build", "verify", "walk", "commit")
"""Stages of a decode round, in the order they run."""


@dataclass(frozen=True)
class Load:
    """How busy the engine was at that moment; KV in pages of `page_size` tokens."""

    running: int
    queued: int
    kv_used: int
    kv_total: int
    page_size: int


@dataclass
class StepSums:
    """Sums over decode steps, never means: commit length is tokens / steps, step time wall_ms / steps.

    `tokens` counts what was kept, bonus included, so the last step of an answer may count less than it verified.
    `hist[i]` is the number of steps that kept i + 1 tokens. `nodes` are tree nodes verified, roots included. `lookup_tokens`:
    those of `tokens` that the drafter did not propose and the text's own repetition did.
    """

    steps: int = 0
    tokens: int = 0
    wall_ms: float = 0.0
    nodes: int = 0
    stages_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    hist: list[int] = field(default_factory=list)
    lookup_tokens: int = 0

    def add(
        self, *, kept: int, wall_ms: float, nodes: int, stages_ms: Mapping[str, float], lookup_tokens: int = 0
    ) -> None:
        """Count one step that kept `kept` tokens (at least one)."""
        self.steps += 1
        self.tokens += kept
        self.wall_ms += wall_ms
        self.nodes += nodes
        for stage in STAGES:
            self.stages_ms[stage] += stages_ms.get(stage, 0.0)
        self.hist.extend([0] * (kept - len(self.hist)))
        self.hist[kept - 1] += 1
        self.lookup_tokens += lookup_tokens

    @property
    def host_ms(self) -> float:
        """Wall time that belongs to no stage: bookkeeping, detokenising, handing the tokens out."""
        return self.wall_ms - sum(self.stages_ms.values())


@dataclass(frozen=True)
class Prefilled:
    """A prompt went through the model and gave its first token."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    queue_ms: float
    prefill_ms: float
    load: Load


@dataclass(frozen=True)
class StepTaken:
    """One decode round of one request. `kept` of its tokens were handed out; `context` counts tokens after the step."""

    request_id: str
    round: Round
    kept: int
    wall_ms: float
    context: int
    budget: int
    load: Load
    looks_up: bool = False  # whether the text's own repetition competes for the budget

    @property
    def lookup_tokens(self) -> int:
        """Tokens handed out that only the lookup had proposed."""
        return sum(node in self.round.tree.grafted for node in self.round.path[1 : self.kept + 1])


@dataclass(frozen=True)
class Finished:
    """A request left the engine. `finish`: stop, length, cancelled, shutdown or error."""

    request_id: str
    finish: str
    prompt_tokens: int
    output_tokens: int  # the first token, which prefill gives, and all that steps kept
    cached_tokens: int
    queue_ms: float
    prefill_ms: float
    ttft_ms: float | None  # None: it ended before its first token
    mode: str
    budget: int
    sums: StepSums
    load: Load
    looks_up: bool = False


@dataclass(frozen=True)
class Refused:
    """A request never entered the engine. `param` is the parameter's name; what was in it is never told."""

    status: int
    code: str
    param: str | None


@dataclass(frozen=True)
class Failed:
    """Something broke that no request can be blamed for."""

    where: str
    error: str
    request_id: str | None = None


@dataclass(frozen=True)
class CommitsLow:
    """Over the newest `steps` that drafted, hardly a drafted token was kept: `tokens`, bonus tokens included."""

    steps: int
    tokens: int


@dataclass(frozen=True)
class Degraded:
    """The engine runs, but not at its best: `what` in one word ("host_rounds", "no_graphs"), and why. Told once a cause."""

    what: str
    why: str


@dataclass(frozen=True)
class Ready:
    """The engine generated a real token and serves; `figures` are the settings in force, the pool and the versions."""

    figures: Mapping[str, Any]


Event = Prefilled | StepTaken | Finished | Refused | Failed | CommitsLow | Degraded | Ready
Observer = Callable[[Event], None]
