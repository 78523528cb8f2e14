"""A bounded first-come queue, admission by pages, and the one loop that owns the model.

The loop runs on the engine's thread. Each turn is one chunk of one prompt, if any is under way, and one round of all that
decode together, so that neither waits long for the other. Everything else talks to the loop through `submit`, `cancel` and
`drain`, which only leave word.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from engine.events import Event, Failed, Finished, Load, Observer, Prefilled, StepTaken
from engine.guard import CommitGuard
from engine.prefill import CHUNK_TOKENS, begin, prefill_chunk, release
from engine.requests import Broken, Delta, Ended, GenerationRequest, Job, Output
from engine.round import Generation, Round, decode_round
from engine.runtime import Runtime, Speculation
from engine.sampling import NoChoiceError, TokenLogprob
from engine.stopping import keep
from engine.text_stream import TextStream
from engine.tokenizer import Tokenizer

FAILURES_IN_A_ROW = 3
"""After so many requests that failed, with none between them that came to its end, the engine is broken and says so."""


CHUNK_BESIDE_DECODING = 128
"""Prompt tokens a turn takes while others decode: their next tokens wait that long."""


class QueueFullError(Exception):
    """As many requests wait as may."""


class DrainingError(Exception):
    """The engine takes no new work."""


class EngineBrokenError(Exception):
    """Request after request fails: only a restart can help."""


class Scheduler:
    """The queue and the loop. `run` is the engine thread's; every other method may be called from any thread."""

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer | None,
        observers: Sequence[Observer],
        *,
        queue_limit: int,
        on_turn: Callable[[], None] = lambda: None,
        on_rest: Callable[[], None] = lambda: None,
        idle_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        decode: Callable[[Sequence[Generation]], list[Round]] | None = None,
    ) -> None:
        """`on_turn` is called each time the loop comes round, at least every `idle_s` seconds: the watchdog's food; `on_rest` once
        after work, when nothing has come for as long.

        `decode` runs a round of all that decode; by default `engine.round` does.
        """
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._observers = tuple(observers)
        self._queue_limit = queue_limit
        self._on_turn = on_turn
        self._on_rest = on_rest
        self._idle_s = idle_s
        self._clock = clock
        self._decode = decode
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._abort_s: float | None = None  # draining: when patience ends
        self._failures = 0
        self._worked = False  # since the last rest
        self._guard = CommitGuard()

    # ── for everyone ──

    def submit(self, request: GenerationRequest, deliver: Callable[[Output], None]) -> Job:
        """Queue a request; its outputs come through `deliver` on the engine's thread, the last is Ended or Broken.

        Raises QueueFullError and DrainingError.
        """
        text = TextStream(self._tokenizer, request.stop, request.min_tokens, request.shown)
        job = Job(request, deliver, self._clock(), text)
        with self._changed:
            if self._abort_s is not None:
                raise DrainingError
            if len(self._waiting) >= self._queue_limit:
                raise QueueFullError
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Nobody wants this answer any more: it stops within a round. Harmless once it has ended."""
        job.cancelled.set()
        with self._changed:
            self._changed.notify()

    def drain(self, within_s: float) -> None:
        """Take no new work, let what runs finish within `within_s` seconds, then let `run` return."""
        with self._changed:
            self._abort_s = self._clock() + within_s
            self._changed.notify()

    def load(self) -> Load:
        """How busy the engine is."""
        return Load(
            running=len(self._running),
            queued=len(self._waiting),
            kv_used=self._runtime.pages_used,
            kv_total=self._runtime.pages_total,
            page_size=self._runtime.pool.page_size,
        )

    # ── the engine's thread ──

    def run(self) -> None:
        """The loop, until drained. Raises EngineBrokenError when nothing works any more; no request is left hanging."""
        try:
            while not self._is_done():
                self._on_turn()
                self._drop_unwanted()
                self._admit()
                self._prefill_one()
                self._step_all()
        finally:
            self.drain(0.0)
            for job in (*self._running, *self._waiting):
                self._give_up(job, "error", Broken(503, "engine_stopped", "the engine has stopped"))

    def _is_done(self) -> bool:
        """Whether a drained engine has nothing left to do; waits for word where there is no work."""
        with self._changed:
            if self._running or self._waiting:
                self._worked = True
                return False
            quiet = self._abort_s is None and not self._changed.wait(self._idle_s)
            done = self._abort_s is not None and not self._waiting
        if quiet and self._worked:
            self._worked = False
            self._on_rest()
        return done

    def _drop_unwanted(self) -> None:
        """Requests whose client has gone; queued ones once draining, and running ones when patience has ended."""
        draining = self._abort_s is not None
        with self._changed:
            dropped = [job for job in self._waiting if draining or job.cancelled.is_set()]
            self._waiting = deque(job for job in self._waiting if job not in dropped)
        for job in dropped:
            if job.cancelled.is_set():
                self._end(job, "cancelled")
            else:
                self._give_up(job, "shutdown", Broken(503, "shutting_down", "the engine is shutting down"))
        for job in tuple(self._running):
            if job.cancelled.is_set():
                self._end(job, "cancelled")
            elif self._abort_s is not None and self._clock() > self._abort_s:
                self._give_up(job, "shutdown", Broken(503, "shutting_down", "the engine stopped before the end"))

    def _admit(self) -> None:
        """Start waiting requests in order, as long as there is room for the whole of the next one."""
        while len(self._running) < self._runtime.config.server.max_running_requests:
            with self._changed:
                if not self._waiting or not self._has_room(self._waiting[0]):
                    return
                job = self._waiting.popleft()
                self._running.append(job)
            self._attempt("prefill", [job], lambda: self._begin(job))  # noqa: B023 - called before the next turn

    def _has_room(self, job: Job) -> bool:
        """Pages are promised for a request's full length at the start, so none runs dry half-way."""
        promised = sum(self._pages_for(other.request) for other in self._running)
        return promised + self._pages_for(job.request) <= self._runtime.pages_total or not self._running

    def _pages_for(self, request: GenerationRequest) -> int:
        ahead = max(self._budget(request.speculation) + 1, self._runtime.block_size)
        tokens = len(request.prompt_ids) + request.max_tokens + ahead
        return -(-tokens // self._runtime.pool.page_size)

    def _attempt(self, where: str, jobs: Sequence[Job], work: Callable[[], None]) -> None:
        """One piece of work for some requests; what breaks in it ends them, is told, and leaves the pool intact."""
        try:
            work()
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
            self._failures += not isinstance(fault, NoChoiceError)  # a request's fault, not the engine's
            for job in jobs:
                if job in self._running:
                    self._fail(job, where, fault)
            if self._failures >= FAILURES_IN_A_ROW:
                raise EngineBrokenError(f"{self._failures} requests in a row failed, the last with {error}") from fault

    def _fail(self, job: Job, where: str, fault: Exception) -> None:
        self._tell(Failed(where=where, error=f"{type(fault).__name__}: {fault}", request_id=job.request.request_id))
        what = fault.what if isinstance(fault, NoChoiceError) else f"the engine failed: {type(fault).__name__}"
        self._give_up(job, "error", Broken(500, "engine_error", what))

    def _begin(self, job: Job) -> None:
        request = job.request
        job.started_s = self._clock()
        job.queue_ms = (job.started_s - job.submitted_s) * 1000.0
        job.generation = begin(
            self._runtime, request.prompt_ids, request.sampling, request.speculation, logprobs=request.logprobs
        )
        job.cached_tokens = job.generation.cached_tokens

    def _prefill_one(self) -> None:
        """A chunk of the prompt that came first among those under way."""
        waiting = [job for job in self._running if job.generation is not None and not job.generation.token_ids]
        if waiting:
            self._attempt("prefill", waiting[:1], lambda: self._prefill_chunk(waiting[0], alone=self._none_decodes()))

    def _none_decodes(self) -> bool:
        return not any(job.generation is not None and job.generation.token_ids for job in self._running)

    def _prefill_chunk(self, job: Job, *, alone: bool) -> None:
        request, generation = job.request, job.generation
        assert generation is not None
        told = prefill_chunk(self._runtime, generation, CHUNK_TOKENS if alone else CHUNK_BESIDE_DECODING)
        if told is None:
            return
        now = self._clock()
        job.prefill_ms = (now - job.started_s) * 1000.0
        _, finish = self._hand_out(job, generation.token_ids, told)
        job.last_told_s = self._clock()
        job.ttft_ms = (job.last_told_s - job.submitted_s) * 1000.0
        self._tell(
            Prefilled(
                request.request_id,
                len(request.prompt_ids),
                job.cached_tokens,
                job.queue_ms,
                job.prefill_ms,
                load=self.load(),
            )
        )
        if finish is not None:
            self._end(job, finish)

    def _step_all(self) -> None:
        """One round of all that decode."""
        jobs = [job for job in self._running if job.generation is not None and job.generation.token_ids]
        if jobs:
            self._attempt("step", jobs, lambda: self._step(jobs))

    def _step(self, jobs: Sequence[Job]) -> None:
        batch = [job.generation for job in jobs if job.generation is not None]
        rounds = decode_round(self._runtime, batch) if self._decode is None else self._decode(batch)
        for job, done in zip(jobs, rounds, strict=True):
            if done.failure is not None:  # this request's alone: its weights, not the engine
                self._fail(job, "step", done.failure)
            else:
                self._take_in(job, done)

    def _take_in(self, job: Job, done: Round) -> None:
        kept, finish = self._hand_out(job, done.tokens, done.logprobs)
        now = self._clock()
        wall_ms = (now - job.last_told_s) * 1000.0
        job.last_told_s = now
        step = StepTaken(
            request_id=job.request.request_id,
            round=done,
            kept=kept,
            wall_ms=wall_ms,
            context=len(job.request.prompt_ids) + job.produced,
            budget=self._budget(job.request.speculation),
            load=self.load(),
            looks_up=job.request.speculation.looks_up,
        )
        job.sums.add(
            kept=kept,
            wall_ms=wall_ms,
            nodes=done.nodes,
            stages_ms=done.stages_ms,
            lookup_tokens=step.lookup_tokens,
        )
        self._tell(step)
        warning = self._guard.after(step)
        if warning is not None:
            self._tell(warning)
        if finish is not None:
            self._end(job, finish)

    def _hand_out(self, job: Job, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> tuple[int, str | None]:
        """Deliver what the request keeps of new tokens -> (tokens kept, why it ends here or None)."""
        request = job.request
        kept, finish = keep(
            tokens,
            produced=job.produced,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_ids=request.stop_ids,
            ignore_eos=False,
            context_left=self._runtime.max_context - len(request.prompt_ids) - job.produced,
        )
        piece = job.text.push(kept)
        text, kept = piece.text, kept[: piece.tokens]
        if piece.stop is not None:
            finish, job.stop = "stop", piece.stop
        elif finish is not None:
            text += job.text.rest()
            job.stop = kept[-1] if finish == "stop" else None
        job.produced += len(kept)
        job.deliver(Delta(text, tuple(kept), tuple(logprobs[: len(kept)])))
        return len(kept), finish

    def _end(self, job: Job, finish: str) -> None:
        """The request leaves; its pages are free before anyone hears of it."""
        self._leave(job)
        if finish != "cancelled":
            self._failures = 0
        record = self._record(job, finish)
        self._tell(record)
        job.deliver(Ended(finish, job.stop, record))

    def _give_up(self, job: Job, finish: str, why: Broken) -> None:
        self._leave(job, sound=finish != "error")
        self._tell(self._record(job, finish))
        job.deliver(why)

    def _leave(self, job: Job, *, sound: bool = True) -> None:
        if job in self._running:
            self._running.remove(job)
        generation, job.generation = job.generation, None
        if generation is not None:
            release(self._runtime, generation, sound=sound)

    def _record(self, job: Job, finish: str) -> Finished:
        request = job.request
        return Finished(
            request_id=request.request_id,
            finish=finish,
            prompt_tokens=len(request.prompt_ids),
            output_tokens=job.produced,
            cached_tokens=job.cached_tokens,
            queue_ms=job.queue_ms,
            prefill_ms=job.prefill_ms,
            ttft_ms=job.ttft_ms,
            mode=request.speculation.mode,
            budget=self._budget(request.speculation),
            sums=job.sums,
            load=self.load(),
            looks_up=request.speculation.looks_up,
        )

    def _budget(self, speculation: Speculation) -> int:
        """Nodes a round drafts for such a request, its root left out."""
        if speculation.mode == "ddtree":
            return speculation.tree_budget
        return self._runtime.block_size - 1 if speculation.mode == "dflash" else 0

    def _tell(self, event: Event) -> None:
        for observer in self._observers:
            observer(event)
