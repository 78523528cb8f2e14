"""Captured rounds with a stand-in for what only a GPU has: a graph here keeps its work and does it at each replay.

The rest is the engine's own: plans and their keys, warm-ups that put the request back, the row that is read, the server's use.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.device import graphs as graphs_room
from engine.device import serving as serving_room
from engine.device.graphs import RoundGraphs, run_eagerly
from engine.device.model import device_state, model_of
from engine.device.round import device_prefill, plan_of
from engine.device.serving import DeviceRounds, decoder_for
from engine.events import Degraded, Event, Load, StepTaken
from engine.generate import generate
from engine.prefill import prefill, release
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from engine.telemetry import LineLog, Telemetry
from kernels.token_choice import SamplingTensors

LONG = [(7 * i + 3) % 64 for i in range(37)]


class StandInGraph:
    """torch.cuda.CUDAGraph's part."""

    recorded = 0

    def __init__(self) -> None:
        self.work: Callable[[], None] | None = None

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def replay(self) -> None:
        assert self.work is not None
        self.work()


class StandInEvent:
    """torch.cuda.Event's part. A time comes out only where both events were recorded."""

    def __init__(self, enable_timing: bool = False, external: bool = False) -> None:
        self.timed, self.recorded = enable_timing and external, False

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded

    def elapsed_time(self, later: StandInEvent) -> float:
        assert self.timed and later.timed and self.recorded and later.recorded
        return 0.5


class StandInStream:
    def wait_stream(self, other: Any) -> None:
        pass


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The memory pools that captures were given, one entry a capture."""
    pools: list[Any] = []

    def record(graph: StandInGraph, pool: Any, work: Callable[[], None]) -> None:
        graph.work = work
        pools.append(pool)

    @contextmanager
    def on(stream: StandInStream) -> Iterator[None]:
        yield

    monkeypatch.setattr(graphs_room, "_record", record)
    monkeypatch.setattr(graphs_room, "_pinned", lambda numbers: torch.empty(numbers, dtype=torch.int64))
    for name, stand_in in (
        ("CUDAGraph", StandInGraph), ("Event", StandInEvent), ("Stream", StandInStream),
        ("current_stream", StandInStream), ("stream", on),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return pools


def captured_rounds(runtime: Runtime, tell: Callable[[Event], None]) -> DeviceRounds:
    """Device rounds that believe they have graphs."""
    rounds = DeviceRounds(runtime, tell)
    rounds._graphs = RoundGraphs(rounds._model, rounds._state)
    return rounds


@pytest.mark.parametrize("mode", ["off", "dflash", "ddtree"])
def test_a_capture_leaves_the_request_where_it_was_and_replays_are_the_eager_rounds(
    tiny: Callable[..., Runtime], recorded: list[Any], mode: str
) -> None:
    found = []
    for captured in (False, True):
        model = model_of(load_runtime(tiny(page_size=7).config))
        state = device_state(model, pages=20, sampling=SamplingTensors.of(3, 0.7))
        state.page_table.copy_(torch.randperm(20))
        tokens, paths, trees = [device_prefill(model, state, LONG)], [], []
        graphs, plan = RoundGraphs(model, state), plan_of(mode, 16, model, 140)
        if captured:
            before = [tensor.clone() for tensor in (state.seed, state.length, state.waiting, state.features)]
            graphs.prepare([plan])
            after = (state.seed, state.length, state.waiting, state.features)
            assert all(torch.equal(then, now) for then, now in zip(before, after, strict=True))
        for _ in range(6):
            answer = graphs.run(plan) if captured else run_eagerly(model, state, plan)
            assert answer.captured is captured and answer.sound
            assert list(answer.stages_ms) == ["draft", "build", "verify", "walk", "commit"]
            tokens += answer.tokens
            paths.append(answer.path)
            trees.append(answer.tree)
        found.append((tokens, paths, trees))
    assert found[0] == found[1]
    assert recorded == [None], "one capture for six rounds"


def test_a_round_in_halves_grafts_as_the_eager_one_does(
    tiny_config: Callable[..., EngineConfig], recorded: list[Any]
) -> None:
    config = tiny_config(page_size=16, context_length=200)
    config = replace(config, speculation=replace(config.speculation, lookup="on"))
    found = []
    for captured in (False, True):
        runtime = load_runtime(config)
        rounds = captured_rounds(runtime, pytest.fail) if captured else DeviceRounds(runtime, pytest.fail)
        generation, steps = prefill(runtime, LONG + LONG + LONG[:20], Sampling(), Speculation("ddtree", 16, "on")), []
        while len(generation.token_ids) < 50:
            (done,) = rounds.decode([generation])
            assert done.captured is captured
            assert list(done.stages_ms) == ["draft", "build", "verify", "walk", "commit"]
            steps.append((done.tokens, done.path, done.tree, done.spine_length))
        found.append(steps)
        release(runtime, generation)
    assert found[0] == found[1]
    assert any(tree.grafted & set(path) for _, path, tree, _ in found[1]), "a grafted node is accepted"
    assert recorded == [None, (0, 1)], "two halves"


def test_graphs_share_the_first_ones_pool_and_beyond_the_most_rounds_run_eagerly(
    tiny: Callable[..., Runtime], recorded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_room, "MOST_GRAPHS", 3)
    runtime = tiny(page_size=16)
    rounds = captured_rounds(runtime, pytest.fail)
    plain = generate(runtime, LONG, Sampling(), Speculation("off"), max_tokens=60).token_ids
    seen = {}
    for budget in (4, 5, 6, 7, 4):
        generation = prefill(runtime, LONG, Sampling(), Speculation("ddtree", budget))
        while len(generation.token_ids) < 60:
            (done,) = rounds.decode([generation])
            seen[budget] = done.captured
        assert generation.token_ids[:60] == plain
        release(runtime, generation)
    assert seen == {4: True, 5: True, 6: True, 7: False}
    assert recorded == [None, (0, 1), (0, 1)]


def test_the_server_prepares_every_plan_decodes_from_graphs_and_says_so(
    tiny_config: Callable[..., EngineConfig], recorded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_room, "captures_on", lambda device: True)
    config = tiny_config(context_length=96, running=2)
    adaptive = replace(config, speculation=replace(config.speculation, adaptive_budget=True, tree_budget=8))
    looking = replace(config, speculation=replace(config.speculation, lookup="auto"))
    for settings, captures in ((config, 4), (adaptive, 5), (looking, 6)):
        del recorded[:]
        runtime, phases = load_runtime(settings), list[str]()
        told: list[Event] = []
        rounds = DeviceRounds(runtime, told.append)
        rounds.prepare(phases.append)
        assert phases[0] == "capturing decode rounds" and ("measuring what rounds cost" in phases) is (captures == 5)
        assert len(recorded) == captures
        plain = generate(runtime, LONG, Sampling(), Speculation("off"), max_tokens=40).token_ids
        asked = Speculation("ddtree", settings.speculation.tree_budget, settings.speculation.lookup)  # type: ignore[arg-type]
        generation = prefill(runtime, LONG, Sampling(), asked)
        log = io.StringIO()
        telemetry = Telemetry(LineLog(log), 1e-9)
        while len(generation.token_ids) < 40:
            (done,) = rounds.decode([generation])
            telemetry.observe(StepTaken("r1", done, len(done.tokens), 9.0, 40, 8, Load(1, 0, 1, 9, 16)))
        assert generation.token_ids[:40] == plain
        assert len(recorded) == captures, "no round had to wait for a capture"
        assert log.getvalue().count(" graph=1") == log.getvalue().count("decode ") > 2
        assert not [event for event in told if isinstance(event, Degraded)]
        release(runtime, generation)
        assert runtime.pool.used == 0


def test_without_preparing_ahead_graphs_are_captured_when_they_come(
    tiny: Callable[..., Runtime], recorded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("decodes_on", "captures_on"):
        monkeypatch.setattr(serving_room, name, lambda device: True)
    assert decoder_for(tiny(), pytest.fail, ahead=False) is not None
    assert not recorded
    rounds = captured_rounds(tiny(), pytest.fail)
    generations = [prefill(tiny(), LONG, Sampling(), Speculation("ddtree", 8)) for _ in range(2)]
    for _ in range(3):
        rounds.decode(generations)
    assert len(recorded) == 1, "two requests take turns on one graph"
    assert generations[0].token_ids == generations[1].token_ids
    for generation in generations:
        release(tiny(), generation)
