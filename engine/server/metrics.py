"""GET /metrics: Prometheus figures under `ddtree_`, counted when tokens are kept, not when requests end."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.events import STAGES, CommitsLow, Event, Failed, Finished, Load, Prefilled, Refused, StepTaken

STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
WAIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
REQUEST_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
COMMITS = tuple(float(tokens) for tokens in (*range(1, 17), 24, 32))


class Metrics:
    """One registry of its own. Rates come from counters: commit length = generated tokens / steps, over any window."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.served = 0
        self.refused = 0
        self._prompt_tokens = Counter("ddtree_prompt_tokens", "Prompt tokens computed.", registry=registry)
        self._tokens = Counter(
            "ddtree_generation_tokens", "Tokens generated, counted as steps keep them.", registry=registry
        )
        self._requests = Counter("ddtree_requests", "Requests that left the engine.", ["finish"], registry=registry)
        self._refused = Counter(
            "ddtree_requests_refused", "Requests refused before the engine.", ["code"], registry=registry
        )
        self._failures = Counter("ddtree_failures", "Failures that no request is to blame for.", registry=registry)
        self._low = Counter(
            "ddtree_low_commit_warnings", "Times commit length fell to where drafting is a waste.", registry=registry
        )
        self._cached = Counter("ddtree_cached_prompt_tokens", "Prompt tokens known already.", registry=registry)
        self._steps = Counter("ddtree_decode_steps", "Decode rounds.", ["mode"], registry=registry)
        self._drafted = Counter("ddtree_draft_tokens", "Tree nodes drafted, roots left out.", registry=registry)
        self._accepted = Counter("ddtree_accepted_tokens", "Drafted tokens accepted.", registry=registry)
        self._looked_up = Counter(
            "ddtree_lookup_tokens", "Tokens kept that only the lookup had proposed.", registry=registry
        )
        self._commit = Histogram("ddtree_commit_length", "Tokens a step kept.", buckets=COMMITS, registry=registry)
        self._step = Histogram("ddtree_step_seconds", "Wall time of a step.", buckets=STEP_SECONDS, registry=registry)
        self._stage = Histogram(
            "ddtree_stage_seconds", "Time of a step's stage.", ["stage"], buckets=STEP_SECONDS, registry=registry
        )
        self._ttft = Histogram(
            "ddtree_time_to_first_token_seconds",
            "From arrival to the first token.",
            buckets=WAIT_SECONDS,
            registry=registry,
        )
        self._queue = Histogram(
            "ddtree_queue_seconds", "From arrival to the start of prefill.", buckets=WAIT_SECONDS, registry=registry
        )
        self._prefill = Histogram(
            "ddtree_prefill_seconds", "Time of a prefill.", buckets=WAIT_SECONDS, registry=registry
        )
        self._decode = Histogram(
            "ddtree_decode_seconds",
            "From a request's first token to its last.",
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"ddtree_{name}", text, registry=registry)
            for name, text in (
                ("requests_running", "Requests being generated."),
                ("requests_queued", "Requests waiting."),
                ("kv_pages_used", "KV pages owned by requests."),
                ("kv_pages_total", "KV pages there are."),
                ("log_lines_lost", "Log lines that could not be written."),
            )
        }

    def observe(self, event: Event) -> None:
        """Count one event."""
        match event:
            case StepTaken():
                self._count_step(event)
            case Prefilled():
                self._prompt_tokens.inc(event.prompt_tokens - event.cached_tokens)
                self._cached.inc(event.cached_tokens)
                self._tokens.inc()
                self._queue.observe(event.queue_ms / 1000.0)
                self._prefill.observe(event.prefill_ms / 1000.0)
            case Finished():
                self.served += 1
                self._requests.labels(event.finish).inc()
                self._decode.observe(event.sums.wall_ms / 1000.0)
                if event.ttft_ms is not None:
                    self._ttft.observe(event.ttft_ms / 1000.0)
            case Refused():
                self.refused += 1
                self._refused.labels(event.code).inc()
            case Failed():
                self._failures.inc()
            case CommitsLow():
                self._low.inc()

    def _count_step(self, step: StepTaken) -> None:
        self._tokens.inc(step.kept)
        self._steps.labels("tree" if step.round.nodes > 1 else "single").inc()
        self._drafted.inc(step.round.nodes - 1)
        self._accepted.inc(len(step.round.path) - 1)
        self._looked_up.inc(step.lookup_tokens)
        self._commit.observe(step.kept)
        self._step.observe(step.wall_ms / 1000.0)
        for stage in STAGES:
            self._stage.labels(stage).observe(step.round.stages_ms.get(stage, 0.0) / 1000.0)

    def text(self, load: Callable[[], Load] | None, lines_lost: int) -> bytes:
        """The exposition, with gauges as they are now (`load` is None until the engine serves)."""
        self._gauges["log_lines_lost"].set(lines_lost)
        if load is not None:
            now = load()
            self._gauges["requests_running"].set(now.running)
            self._gauges["requests_queued"].set(now.queued)
            self._gauges["kv_pages_used"].set(now.kv_used)
            self._gauges["kv_pages_total"].set(now.kv_total)
        return generate_latest(self._registry)
