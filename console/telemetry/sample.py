"""Sample: what one window of decode steps says, normalised (contracts.md section 7).

Each figure has one home: commit length, step time and rate are ratios of sums over one window, and every
screen, verb, playbook and report takes them from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

PARTIAL = "partial: "
"""How a note begins that tells of lines lost right before the record: what is summed up over them is short of something."""
SampleKind = Literal["decode", "prefill", "request", "ready"]


@dataclass(frozen=True)
class Sample:
    """One record of an engine's log, normalised on ingest.

    Commit length counts the bonus token whatever the source says. A figure that the source cannot give is
    `None` and absent from JSON, never zero; `notes` say why a figure is missing or not to be trusted.
    `stages_ms` is milliseconds a step (sum over the window divided by its steps); `hist[i]` is the number of
    steps that kept i+1 tokens; `kv_fraction` lies in 0..1.
    """

    kind: SampleKind
    engine: str
    time: str | None = None  # ISO 8601
    rank: str | None = None
    tokens: int | None = None
    steps: int | None = None
    commit_length: float | None = None
    step_ms: float | None = None
    tok_s: float | None = None
    context: int | None = None
    running: int | None = None
    queued: int | None = None
    kv_fraction: float | None = None
    kv_tokens: int | None = None
    accept_rate: float | None = None
    graph: bool | None = None
    stages_ms: Mapping[str, float] | None = None
    hist: tuple[int, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Lines right before this one were lost."""
        return any(note.startswith(PARTIAL) for note in self.notes)

    def to_json(self) -> dict[str, Any]:
        """The contract's object: absent figures left out; `kind`, `engine`, `time`, `extra`, `notes` always there."""
        always = {"kind", "engine", "time", "extra", "notes"}
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None and f.name not in always:
                continue
            if isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            out[f.name] = value
        return out
