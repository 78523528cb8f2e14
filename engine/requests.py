"""What is asked of the engine, what comes back, and one request's state on its way through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.events import Finished, StepSums
from engine.round import Generation
from engine.runtime import Sampling, Speculation
from engine.sampling import TokenLogprob
from engine.text_stream import TextStream


@dataclass(frozen=True)
class GenerationRequest:
    """What is to be generated. `stop_ids` end the answer (the model's own ends among them, unless they are ignored)."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    speculation: Speculation
    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # how many alternatives to tell of with each token; None tells of no probabilities
    shown: Mapping[int, str] = field(default_factory=dict)  # special tokens that are wanted as text


@dataclass(frozen=True)
class Delta:
    """More of an answer: whole characters, and the tokens they came from."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token, where they were asked for


@dataclass(frozen=True)
class Ended:
    """The answer is complete: every token told of in `Finished` has been delivered. `stop`: the stop string or id met."""

    finish: str  # "stop" or "length"
    stop: str | int | None
    record: Finished


@dataclass(frozen=True)
class Broken:
    """The answer will not be completed, and why: an HTTP status, a word for programs, a sentence."""

    status: int
    code: str
    message: str


Output = Delta | Ended | Broken


@dataclass(eq=False)
class Job:
    """One request on its way through the engine: itself, never its equal."""

    request: GenerationRequest
    deliver: Callable[[Output], None]
    submitted_s: float
    text: TextStream
    sums: StepSums = field(default_factory=StepSums)
    cancelled: threading.Event = field(default_factory=threading.Event)
    generation: Generation | None = None  # there from the start of the prefill to the end
    cached_tokens: int = 0  # prompt tokens whose keys and values were known
    started_s: float = 0.0
    produced: int = 0  # tokens handed out
    stop: str | int | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float | None = None
    last_told_s: float = 0.0  # when its newest tokens were handed out: the next step's wall time runs from here
