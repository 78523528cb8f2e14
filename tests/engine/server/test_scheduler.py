"""The engine's loop over the real tiny model, driven in this process: queue, admission, turns, failures, drain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from engine import scheduler as scheduler_room
from engine.config import config_from_toml
from engine.events import CommitsLow, Event, Failed, Finished, Prefilled, StepTaken
from engine.requests import Broken, Delta, Ended, GenerationRequest, Job, Output
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.scheduler import DrainingError, EngineBrokenError, QueueFullError, Scheduler

DATA = Path(__file__).parents[2] / "data" / "tiny-ddtree"
TABLES = f'[model]\npath = "{DATA / "target"}"\ndrafter = "{DATA / "drafter"}"\n[context]\ncontext_length = 256\n'


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def runtime(max_running: int = 1, tables: str = "") -> Runtime:
    return load_runtime(config_from_toml(f"{TABLES}[server]\nmax_running_requests = {max_running}\n{tables}"))


def request(
    name: str, max_tokens: int = 12, prompt: int = 9, mode: Literal["off", "ddtree"] = "ddtree", length: int = 1
) -> GenerationRequest:
    speculation = Speculation(mode, 8)
    return GenerationRequest(name, (prompt,) * length, Sampling(), speculation, max_tokens)


class Bench:
    """A scheduler, with everything it says written down."""

    def __init__(self, runtime: Runtime, **options: Any) -> None:
        self.runtime = runtime
        self.events: list[Event] = []
        self.outputs: dict[str, list[Output]] = {}
        wanted: dict[str, Any] = {"queue_limit": 8, "idle_s": 0.01, **options}
        self.scheduler = Scheduler(runtime, None, (self.events.append,), **wanted)

    def submit(self, asked: GenerationRequest, on_output: Callable[[Output], None] = lambda output: None) -> Job:
        told = self.outputs.setdefault(asked.request_id, [])

        def deliver(output: Output) -> None:
            told.append(output)
            on_output(output)

        return self.scheduler.submit(asked, deliver)

    def run_dry(self) -> None:
        """Run on another thread until every request has its last output, then drain."""
        loop = threading.Thread(target=self.scheduler.run)
        loop.start()
        ended = threading.Event()
        while not all(told and not isinstance(told[-1], Delta) for told in self.outputs.values()):
            assert loop.is_alive()
            ended.wait(0.005)
        self.scheduler.drain(5.0)
        loop.join(10.0)
        assert not loop.is_alive()

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] if isinstance(output, Delta) for token in output.token_ids]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def tiny() -> Runtime:
    return runtime()


def test_requests_are_served_in_order_of_arrival_one_at_a_time(tiny: Runtime) -> None:
    bench = Bench(tiny)
    for name in ("a", "b", "c"):
        bench.submit(request(name))
    bench.run_dry()
    assert [event.request_id for event in bench.of(Prefilled)] == ["a", "b", "c"]
    assert [event.request_id for event in bench.of(Finished)] == ["a", "b", "c"]
    assert {event.load.running for event in bench.of(StepTaken)} == {1}
    assert [event.load.queued for event in bench.of(Prefilled)] == [2, 1, 0]
    assert bench.tokens("a") == bench.tokens("b") == bench.tokens("c")
    assert tiny.pages_used == 0


def test_the_last_output_says_what_the_deltas_held(tiny: Runtime) -> None:
    bench = Bench(tiny)
    bench.submit(request("a", max_tokens=30))
    bench.run_dry()
    ended = bench.outputs["a"][-1]
    assert isinstance(ended, Ended)
    assert (ended.finish, ended.stop) == ("length", None)
    assert ended.record.output_tokens == len(bench.tokens("a")) == 30
    assert ended.record.sums.tokens == 29
    assert ended.record.sums.steps == len(bench.of(StepTaken)) == len(bench.outputs["a"]) - 2


def test_a_full_queue_refuses(tiny: Runtime) -> None:
    bench = Bench(tiny, queue_limit=2)
    bench.submit(request("a"))
    bench.submit(request("b"))
    with pytest.raises(QueueFullError):
        bench.submit(request("c"))


def test_a_queued_request_whose_client_left_never_runs(tiny: Runtime) -> None:
    bench = Bench(tiny)
    jobs = [bench.submit(request(name)) for name in ("a", "b", "c")]
    bench.scheduler.cancel(jobs[1])
    bench.run_dry()
    assert [event.request_id for event in bench.of(Prefilled)] == ["a", "c"]
    (left,) = [event for event in bench.of(Finished) if event.request_id == "b"]
    assert (left.finish, left.output_tokens, left.ttft_ms) == ("cancelled", 0, None)


def test_a_running_request_whose_client_left_stops_within_a_round(tiny: Runtime) -> None:
    bench = Bench(tiny)
    jobs: list[Job] = []
    seen: list[Output] = []

    def leave_at_third(output: Output) -> None:
        seen.append(output)
        if len(seen) == 3:
            bench.scheduler.cancel(jobs[0])

    jobs.append(bench.submit(request("a", max_tokens=200, mode="off"), leave_at_third))
    bench.run_dry()
    assert bench.of(Finished)[0].finish == "cancelled"
    assert bench.of(Finished)[0].output_tokens == 3
    assert tiny.pages_used == 0


def test_a_client_that_leaves_during_a_long_prefill_stops_it_between_chunks() -> None:
    wide = load_runtime(config_from_toml(TABLES.replace("256", "2048")))
    turns: list[int] = []

    def leave_in_the_prefill() -> None:
        turns.append(1)
        if len(turns) == 2:  # the first turn is the loop's, the second the first chunk's
            bench.scheduler.cancel(job)

    bench = Bench(wide, on_turn=leave_in_the_prefill)
    job = bench.submit(request("a", length=1600))
    bench.run_dry()
    assert bench.of(Prefilled) == []
    assert bench.of(Finished)[0].finish == "cancelled"
    assert wide.pages_used == 0


def test_after_work_there_is_one_rest_and_none_before_it(tiny: Runtime) -> None:
    rests: list[int] = []
    rested = threading.Event()

    def rest() -> None:
        rests.append(len(bench.of(Finished)))
        rested.set()

    bench = Bench(tiny, idle_s=0.001, on_rest=rest)
    loop = threading.Thread(target=bench.scheduler.run)
    loop.start()
    for served in (1, 2):
        rested.clear()
        bench.submit(request(str(served)))
        assert rested.wait(20.0)
    bench.scheduler.drain(5.0)
    loop.join(10.0)
    assert rests == [1, 2]


def test_several_running_requests_take_turns_and_do_not_disturb_each_other(tiny: Runtime) -> None:
    alone = Bench(tiny)
    prompts = {"a": 9, "b": 24, "c": 38}
    for name, prompt in prompts.items():
        alone.submit(request(name, 24, prompt))
    alone.run_dry()
    together = Bench(runtime(max_running=3))
    for name, prompt in prompts.items():
        together.submit(request(name, 24, prompt))
    together.run_dry()
    assert {name: together.tokens(name) for name in prompts} == {name: alone.tokens(name) for name in prompts}
    assert max(event.load.running for event in together.of(StepTaken)) == 3
    assert together.runtime.pages_used == 0


def test_a_request_waits_until_the_pool_has_room_for_all_of_it() -> None:
    small = load_runtime(
        config_from_toml(TABLES.replace("256", "128") + "[kv]\npages = 9\n[server]\nmax_running_requests = 4\n")
    )
    bench = Bench(small)
    for name in ("a", "b", "c"):
        bench.submit(request(name, max_tokens=80))
    bench.run_dry()
    assert {event.load.running for event in bench.of(StepTaken)} == {1}
    assert [len(bench.tokens(name)) for name in ("a", "b", "c")] == [80, 80, 80]


def test_a_failing_round_ends_its_request_alone(tiny: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = scheduler_room.decode_round, []

    def fails_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("lost a page")
        return real(*arguments)

    monkeypatch.setattr(scheduler_room, "decode_round", fails_once)
    bench = Bench(tiny)
    bench.submit(request("a", mode="off"))
    bench.submit(request("b", mode="off"))
    bench.run_dry()
    assert bench.outputs["a"][-1] == Broken(500, "engine_error", "the engine failed: RuntimeError")
    assert isinstance(bench.outputs["b"][-1], Ended)
    (failure,) = bench.of(Failed)
    assert (failure.request_id, failure.where, failure.error) == ("a", "step", "RuntimeError: lost a page")
    assert [event.finish for event in bench.of(Finished)] == ["error", "length"]
    assert tiny.pages_used == 0


def test_requests_that_decode_together_give_what_they_give_alone_whatever_their_modes() -> None:
    together, alone = Bench(runtime(max_running=4)), Bench(runtime())
    mix = [
        request("a", 24, 9),
        request("b", 40, 24, mode="off"),
        request("c", 12, 38, length=300 % 97),
        request("d", 30),
    ]
    for asked in mix:
        alone.submit(asked)
        together.submit(asked)
    alone.run_dry()
    together.run_dry()
    assert {asked.request_id: together.tokens(asked.request_id) for asked in mix} == {
        asked.request_id: alone.tokens(asked.request_id) for asked in mix
    }
    assert together.runtime.pages_used == 0


def test_a_long_prompt_goes_in_beside_decoding_requests_that_keep_their_turns() -> None:
    wide = load_runtime(config_from_toml(TABLES.replace("256", "2048") + "[server]\nmax_running_requests = 2\n"))
    bench = Bench(wide)
    bench.submit(request("talks", max_tokens=60, mode="off"))
    bench.submit(request("reads", max_tokens=4, length=1000))
    bench.run_dry()
    kinds = [
        (type(event).__name__, event.request_id) for event in bench.events if isinstance(event, (Prefilled, StepTaken))
    ]
    before = kinds[: kinds.index(("Prefilled", "reads"))]
    # 1,000 tokens are eight chunks of 128 beside a decoding request, which takes a step after each.
    assert before.count(("StepTaken", "talks")) >= 7
    assert len(bench.tokens("talks")) == 60 and len(bench.tokens("reads")) == 4


def test_a_prompt_asked_again_is_told_as_known_and_answered_alike(tiny: Runtime) -> None:
    bench = Bench(tiny)
    for name in ("a", "b"):
        bench.submit(request(name, prompt=31, length=50))
    bench.run_dry()
    assert [event.cached_tokens for event in bench.of(Prefilled)] == [0, 48]
    assert [event.cached_tokens for event in bench.of(Finished)] == [0, 48]
    assert bench.tokens("a") == bench.tokens("b")
    hists = [event.sums.hist for event in bench.of(Finished)]
    assert hists[0] == hists[1]


def test_logits_that_are_no_numbers_end_their_request_alone_and_never_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(runtime(max_running=2))
    target = bench.runtime.target
    plain = target.logits

    def poisoned(hidden: Tensor) -> Tensor:  # the first row of a batch of two belongs to the request that came first
        found = plain(hidden)
        if bench.scheduler.load().running == 2 and len(found) == 2:
            found[0] = torch.nan
        return found

    monkeypatch.setattr(target, "logits", poisoned)
    bench.submit(request("ill", mode="off"))
    bench.submit(request("well", mode="off"))
    bench.run_dry()
    assert bench.outputs["ill"][-1] == Broken(500, "engine_error", "the target's logits are not finite")
    assert isinstance(bench.outputs["well"][-1], Ended) and len(bench.tokens("well")) == 12
    assert [(event.request_id, event.where) for event in bench.of(Failed)] == [("ill", "step")]
    assert bench.runtime.pages_used == 0


def test_a_round_out_of_memory_ends_its_batch_and_leaves_the_pool_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(runtime(max_running=2))
    plain, calls = bench.runtime.target.logits, []

    def out_of_memory(hidden: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 5:  # two prefills and two rounds before it
            raise torch.OutOfMemoryError("no memory for the logits")
        return plain(hidden)

    monkeypatch.setattr(bench.runtime.target, "logits", out_of_memory)
    for name in ("a", "b", "c"):
        bench.submit(request(name, mode="off", max_tokens=30))
    bench.run_dry()
    ends = {name: type(told[-1]).__name__ for name, told in bench.outputs.items()}
    assert ends == {"a": "Broken", "b": "Broken", "c": "Ended"}
    pool = bench.runtime.pool
    assert (pool.used, pool.free) == (0, pool.total)


def test_drafting_that_keeps_nothing_is_told_of_once(tiny: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.guard.STEPS", 20)
    drafting = tiny.drafting
    assert drafting is not None
    with torch.inference_mode():
        kept = drafting.drafter.fc.weight.clone()
        drafting.drafter.fc.weight.zero_()  # a drafter blind to its context
    bench = Bench(tiny)
    bench.submit(request("a", prompt=45, max_tokens=120))
    try:
        bench.run_dry()
    finally:
        with torch.inference_mode():
            drafting.drafter.fc.weight.copy_(kept)
    steps = [len(event.round.path) for event in bench.of(StepTaken) if len(event.round.tree) > 1]
    told, window, low = 0, [], False
    for commit in steps:
        window = [*window, commit][-20:]
        if len(window) == 20:
            told += sum(window) < 21 and not low
            low = sum(window) < 21
            window = [] if low else window
    assert len(bench.of(CommitsLow)) == told > 0
    assert all(event.steps == 20 and event.tokens < 21 for event in bench.of(CommitsLow))


def test_an_engine_that_only_fails_says_so_and_leaves_nobody_waiting(
    tiny: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> object:
        raise RuntimeError("device gone")

    monkeypatch.setattr(scheduler_room, "decode_round", fails)
    bench = Bench(tiny)
    for name in ("a", "b", "c", "d", "e"):
        bench.submit(request(name))
    with pytest.raises(EngineBrokenError, match="3 requests in a row failed, the last with RuntimeError: device gone"):
        bench.scheduler.run()
    assert all(isinstance(told[-1], Broken) for told in bench.outputs.values())
    assert len(bench.of(Finished)) == 5


def test_a_drained_engine_takes_nothing_more_and_returns(tiny: Runtime) -> None:
    bench = Bench(tiny)
    bench.scheduler.drain(1.0)
    with pytest.raises(DrainingError):
        bench.submit(request("a"))
    bench.scheduler.run()


def test_when_patience_ends_a_running_request_is_told_so(tiny: Runtime) -> None:
    now = [0.0]
    bench = Bench(tiny, clock=lambda: now[0])

    def stop_then_lose_patience(output: Output) -> None:
        if len(bench.outputs["a"]) == 2:
            bench.scheduler.drain(5.0)
        now[0] += 2.0  # each round takes two seconds

    bench.submit(request("a", max_tokens=200, mode="off"), stop_then_lose_patience)
    bench.scheduler.run()
    assert bench.outputs["a"][-1] == Broken(503, "shutting_down", "the engine stopped before the end")
    assert len(bench.tokens("a")) == 4, "two tokens before the stop at 2 s; rounds at 4 s and 6 s, none after 7 s"
    assert bench.of(Finished)[0].finish == "shutdown"
    assert tiny.pages_used == 0
