"""Run: what a playbook's `measure` works with, and the canonical figures of one request."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Sequence

from kit_end import Stop
from kit_engine import Completion, Engine
from kit_events import Events
from kit_foreign import steps_between
from kit_prompts import Prompts
from kit_waits import thread_times, waited_s

SERIES_POINTS = 512
PROGRESS_S = 0.25


@dataclass
class Run:
    """What `measure` works with: parameters, engine, prompts, and the ways to tell of what it finds."""

    params: dict[str, Any]
    engine: Engine
    prompts: Prompts
    events: Events
    info: Mapping[str, Any]  # /server_info at the start, empty where the engine has none
    seed: int
    max_context: int
    golden: Mapping[str, Any] | None = None  # the run that this one is to be held against, where the console gave one
    started_s: float = field(default_factory=time.monotonic)
    stop: Stop | None = None
    helpers: list[Engine] = field(default_factory=list)  # further connections, for requests at the same time
    _progress_s: float = 0.0

    def check(self) -> None:
        """Raise Stop when the run was cancelled, told to end, or is out of time. `measure` calls it between requests."""
        if self.stop is not None:
            raise self.stop

    @property
    def chooses_speculation(self) -> bool:
        """Whether a request may choose its own speculation here; elsewhere only the service's settings do."""
        return self.engine.kind == "bundled"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def left_s(self) -> float:
        """Seconds until the run is out of time; infinite by hand."""
        return float(os.environ.get("DDT_DEADLINE") or math.inf) - time.time()

    def log(self, message: str, level: str = "info") -> None:
        self.events.emit("log", level=level, msg=message[:4000])

    def warn(self, code: str, message: str, **evidence: Any) -> None:
        self.events.emit("warn", code=code, msg=message, evidence=evidence)

    def progress(self, done: float, total: float, label: str, eta_s: float | None = None) -> None:
        """At most four a second, the last one always."""
        now = time.monotonic()
        if done >= total or now - self._progress_s >= PROGRESS_S:
            self._progress_s = now
            self.events.emit("progress", done=done, total=total, label=label, eta_s=eta_s)

    def table(self, name: str, *columns: tuple[str, str, str]) -> None:
        """Declare a live table: (name, unit, help) a column."""
        rows = [{"name": column, "unit": unit, "kind": "number", "help": text} for column, unit, text in columns]
        self.events.emit("table", name=name, columns=rows)

    def row(self, table: str, **data: Any) -> None:
        self.events.emit("row", table=table, id=self.events.rows, data=data)

    def series(self, name: str, x: Sequence[float], y: Sequence[float], unit_x: str, unit_y: str) -> None:
        """Points of a live chart, in chunks of at most 512."""
        for start in range(0, len(x), SERIES_POINTS):
            end = start + SERIES_POINTS
            self.events.emit(
                "series", name=name, x=list(x[start:end]), y=list(y[start:end]), unit_x=unit_x, unit_y=unit_y,
                chunk=start // SERIES_POINTS, last=end >= len(x),
            )  # fmt: skip

    def request(
        self, kind: str, prompt_tokens: int, output_tokens: int, *, ignore_eos: bool = True,
        speculation: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """One measured request as the canonical figures of a `sample` event; nothing is emitted yet."""
        found, _ = self.ask(kind, prompt_tokens, output_tokens, ignore_eos=ignore_eos, speculation=speculation)
        return found

    def ask(
        self, kind: str, prompt_tokens: int, output_tokens: int, *, ignore_eos: bool = True,
        speculation: Mapping[str, Any] | None = None, prompt: Sequence[int] | str | None = None, chat: bool = False,
    ) -> tuple[dict[str, Any], Completion]:  # fmt: skip
        """`request` with the answer itself; `prompt` is one made before, to be asked again. `chat`: by the chat endpoint,
        where the length of the prompt is about what was asked for."""
        self.check()
        if prompt is None:
            prompt = self.prompts.message(kind, prompt_tokens) if chat else self.prompts.make(kind, prompt_tokens)
        self.check()
        before = thread_times(self.info.get("pid"))
        answer = self.engine.complete(
            prompt, output_tokens, ignore_eos=ignore_eos, seed=self.seed, speculation=speculation, chat=chat
        )
        waits = waited_s(before, thread_times(self.info.get("pid"))) if before else None
        self.check()
        return {**figures(answer, prompt_tokens, kind), **self.watched(), "cpu_wait_s": waits}, answer

    def together(
        self, kind: str, prompt_tokens: int, output_tokens: int, count: int, speculation: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """`count` requests at the same moment, each on a connection of its own. Raises the first Stop of any of them.

        vLLM counts the steps of all requests together; each gets its share of them by its tokens, so that their sum is exact.
        """
        self.check()
        prompts = [self.prompts.make(kind, prompt_tokens) for _ in range(count)]
        while len(self.helpers) < count:
            self.helpers.append(self.engine.twin())
        counted = self.engine.counters() if self.engine.kind == "vllm" else None
        with ThreadPoolExecutor(count) as pool:
            started = [
                pool.submit(helper.complete, prompt, output_tokens, seed=self.seed, speculation=speculation)
                for helper, prompt in zip(self.helpers, prompts)
            ]
            answers = [one.result() for one in started]
        self.check()
        if counted:
            answers = shared_steps(answers, counted, self.engine.counters())
        return [figures(answer, prompt_tokens, kind) for answer in answers]

    def gap_nat(self, prompt: Sequence[int]) -> float | None:
        """Log-probability of the best next token less that of the second; None where the engine does not tell any."""
        body = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0, "logprobs": 2}
        if self.engine.model:
            body["model"] = self.engine.model
        answer = self.engine.post("/v1/completions", body, optional=True)
        choice = ((answer or {}).get("choices") or [{}])[0]
        tops = ((choice.get("logprobs") or {}).get("top_logprobs") or [None])[0]
        values = sorted(tops.values(), reverse=True) if isinstance(tops, dict) else []
        return float(values[0] - values[1]) if len(values) > 1 else None

    def watched(self) -> dict[str, Any]:
        """What the engine says beside the figures, now that our request is over: others' requests, clocks, throttling."""
        if self.info.get("engine") != "bundled":
            return {}
        now = self.engine.get("/server_info") or {}
        others = sum((now.get("requests") or {}).get(name) or 0 for name in ("running", "queued"))
        gpus = now.get("gpus") or []
        clocks = [gpu["sm_clock_mhz"] for gpu in gpus if gpu.get("sm_clock_mhz")]
        throttled = sorted({str(gpu["throttle"]) for gpu in gpus if gpu.get("throttle")})
        window = now.get("window") or {}
        return {
            "others": others,
            "graph": window.get("graph"),
            "stages_ms": stages_a_step(window),
            "clock_mhz": sum(clocks) / len(clocks) if clocks else None,
            "throttle": ", ".join(throttled) or None,
        }

    def sample(self, figures_: Mapping[str, Any], *, counts: bool = True, **extra: Any) -> None:
        """Tell of one request. `counts` false keeps it out of the verdict: a reference arm, say."""
        self.events.emit("sample", req={**figures_, **extra}, counts=counts)


def figures(answer: Completion, prompt_tokens: int, kind: str) -> dict[str, Any]:
    """A request's canonical row. N counts decode tokens: the first token comes from prefill and belongs to no step.

    Steps and decode time are the engine's own where it tells them, both over the same window; else the client's.
    """
    n_usage = answer.completion_tokens
    own = len(answer.token_ids) if answer.token_ids is not None else n_usage
    n = max(own - 1, 0) if own is not None else None
    client_decode_s = answer.stamps_s[-1] - answer.stamps_s[0] if len(answer.stamps_s) > 1 else None
    if answer.hidden_tokens:
        client_decode_s = None  # the first chunk came long after the first token: what the client saw is the end alone
    steps = decode_s = None
    source = "client"
    if answer.steps is not None and answer.steps.get("steps"):
        steps, decode_s = answer.steps["steps"], answer.steps.get("decode_s")
        source = "speculation" if decode_s is not None else "steps counted by the engine, time by the client"
    decode_s = decode_s if decode_s is not None else client_decode_s
    commit = n / steps if n is not None and steps else None
    words: Sequence[Any] = answer.token_ids if answer.token_ids is not None else answer.text.split()
    return {
        "P": answer.prompt_tokens if answer.prompt_tokens is not None else prompt_tokens,
        "N": n,
        "N_usage": n_usage,
        "ttft_s": None if answer.hidden_tokens else answer.ttft_s,
        "visible_s": answer.ttft_s if answer.hidden_tokens else None,  # time to the first token that is shown
        "hidden": answer.hidden_tokens,
        "decode_s": decode_s,
        "client_decode_s": client_decode_s,
        "prefill_s": (answer.steps or {}).get("prefill_s"),
        "queue_s": (answer.steps or {}).get("queue_s"),
        "e2e_s": answer.e2e_s,
        "steps": steps,
        "commit": commit,
        "step_ms": 1000.0 * decode_s / steps if decode_s is not None and steps else None,
        "tok_s": n / decode_s if n and decode_s else None,
        "hist": (answer.steps or {}).get("commit_lengths_hist"),
        "cached": answer.cached_tokens,
        "finish": answer.finish,
        "kind": kind,
        "ctx_mid": prompt_tokens + (n or 0) / 2,
        "chunks": len(answer.stamps_s),
        "fields": dict(answer.fields),
        **degeneracy(words),
        "out_sha": hashlib.sha256(repr(tuple(words)).encode()).hexdigest()[:16],
        "engine_src": source,
    }


def shared_steps(
    answers: Sequence[Completion], before: Mapping[str, float], after: Mapping[str, float]
) -> list[Completion]:
    """Answers that ran beside each other with the steps counted for all of them, shared out by their tokens."""
    tokens = [(answer.completion_tokens or 0) - 1 for answer in answers]
    whole = steps_between(before, after, sum(tokens)) if all(count > 0 for count in tokens) else None
    if whole is None:
        return [replace(answer, steps=None) for answer in answers]
    return [replace(answer, steps={"steps": whole * count / sum(tokens)}) for answer, count in zip(answers, tokens)]


STAGES = ("draft", "build", "verify", "walk", "commit", "host")


def stages_a_step(window: Mapping[str, Any]) -> dict[str, float] | None:
    """Milliseconds a step by stage, over the engine's newest window; None where it does not tell them."""
    steps = window.get("steps")
    known = {name: window.get(f"{name}_ms") for name in STAGES}
    if not steps or any(value is None for value in known.values()):
        return None
    return {name: round(float(value or 0.0) / steps, 4) for name, value in known.items()}


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Commit length, step time and rate of several requests, as ratios of their sums; None where steps are not known."""
    tokens = sum(row["N"] or 0 for row in rows)
    steps = sum(row["steps"] or 0 for row in rows)
    decode_s = sum(row["decode_s"] or 0.0 for row in rows)
    return {
        "requests": len(rows),
        "commit_length": tokens / steps if steps else None,
        "step_ms": 1000.0 * decode_s / steps if steps else None,
        "tok_s": tokens / decode_s if decode_s else None,
    }


LEAST_WORDS = 25  # below this a loop cannot be told from a short answer
LONGEST_PERIOD = 16


def degeneracy(words: Sequence[Any]) -> dict[str, float | None]:
    """Three signs of a repetition loop, None each below 25 words: `distinct2`, distinct pairs of neighbours over all pairs
    (near 0 for a loop); `top1`, the share of the commonest word; `loop`, the share of the second half that repeats what
    stood a short fixed distance before it."""
    if len(words) < LEAST_WORDS:
        return {"distinct2": None, "top1": None, "loop": None}
    pairs = [(words[i], words[i + 1]) for i in range(len(words) - 1)]
    tail = words[len(words) // 2 :]
    repeats = [
        sum(tail[i] == tail[i - period] for i in range(period, len(tail))) / (len(tail) - period)
        for period in range(1, min(LONGEST_PERIOD, len(tail) // 3) + 1)
    ]
    return {
        "distinct2": len(set(pairs)) / len(pairs),
        "top1": max(Counter(words).values()) / len(words),
        "loop": max(repeats, default=0.0),
    }
