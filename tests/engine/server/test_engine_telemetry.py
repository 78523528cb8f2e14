"""Windows, logfmt, acceptance figures: the arithmetic of the log."""

from __future__ import annotations

import io
import json
import math
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.acceptance import AcceptanceWindow
from engine.events import Failed, Finished, Load, Refused, StepSums, StepTaken
from engine.round import Round
from engine.telemetry import LineLog, Telemetry, logfmt
from engine.tree import DraftTree

LOAD = Load(running=1, queued=0, kv_used=3, kv_total=9, page_size=16)


def step(kept: int = 1, wall_ms: float = 100.0, request_id: str = "r1", **parts: object) -> StepTaken:
    values = {"nodes": 5, "path": (0, 1), "spine": 2, "weights": (0.0, -0.1), "parents": (-1, 0), **parts}
    tree = DraftTree((7,) * len(values["parents"]), values["parents"], (0,) * len(values["parents"]), values["weights"])  # type: ignore[arg-type]
    stages = {"draft": 10.0, "build": 1.0, "verify": 70.0, "walk": 0.5, "commit": 2.0}
    done = Round([1] * kept, values["nodes"], stages, tree, values["path"], values["spine"])  # type: ignore[arg-type]
    return StepTaken(request_id, done, kept, wall_ms, 100, 4, LOAD)


def finished(request_id: str = "r1") -> Finished:
    return Finished(request_id, "length", 3, 9, 0, 0.1, 2.0, 2.2, "ddtree", 4, StepSums(), LOAD)


class Log:
    def __init__(self, interval_s: float = 1.0) -> None:
        self.stream = io.StringIO()
        self.telemetry = Telemetry(LineLog(self.stream), interval_s)

    def take(self, taken: StepTaken) -> None:
        self.telemetry.observe(taken)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def test_a_window_closes_when_the_interval_is_full() -> None:
    log = Log(interval_s=1.0)
    for _ in range(10):
        log.take(step(kept=2))
    assert len(log.lines) == 1
    assert (
        "steps=10 tokens=20 wall_ms=1000 draft_ms=100 build_ms=10 verify_ms=700 walk_ms=5 commit_ms=20 host_ms=165"
        in log.lines[0]
    )
    assert " nodes=50 hist=0,10 running=1 queued=0 kv_used=3 kv_total=9 page=16 budget=4 graph=0" in log.lines[0]


def test_a_window_tells_what_was_looked_up_only_where_something_could_be() -> None:
    log = Log(interval_s=1.0)
    for _ in range(10):
        taken = step(kept=2, path=(0, 1))
        tree = replace(taken.round.tree, grafted=frozenset({1}))
        log.take(replace(taken, round=replace(taken.round, tree=tree), looks_up=True))
    log.take(step(kept=2, wall_ms=1000.0))
    assert log.lines[0].endswith(" graph=0 lookup=10")
    assert log.lines[1].endswith(" graph=0")


def test_what_a_step_is_cut_by_was_not_looked_up_either() -> None:
    taken = step(kept=2, path=(0, 1, 2, 3), parents=(-1, 0, 1, 2), weights=(0.0, -0.1, -0.2, -0.3))
    tree = replace(taken.round.tree, grafted=frozenset({2, 3}))
    assert replace(taken, round=replace(taken.round, tree=tree)).lookup_tokens == 1


def test_a_window_closes_with_its_request_before_the_requests_own_line() -> None:
    log = Log()
    log.take(step())
    log.telemetry.observe(finished())
    assert [line.split(" ")[0] for line in log.lines] == ["<6>decode", "<6>request"]
    assert "steps=1 " in log.lines[0]


def test_a_request_without_a_step_leaves_no_decode_line() -> None:
    log = Log()
    log.telemetry.observe(finished())
    assert [line.split(" ")[0] for line in log.lines] == ["<6>request"]


def test_windows_of_two_requests_are_kept_apart() -> None:
    log = Log()
    for name, kept in (("r1", 1), ("r2", 3), ("r1", 1), ("r2", 3)):
        log.take(step(kept=kept, request_id=name))
    for name in ("r1", "r2"):
        log.telemetry.observe(finished(name))
    windows = [line for line in log.lines if "decode" in line]
    assert ["req=r1" in windows[0], "tokens=2 " in windows[0]] == [True, True]
    assert ["req=r2" in windows[1], "tokens=6 " in windows[1]] == [True, True]


def test_levels_are_syslog_prefixes() -> None:
    log = Log()
    log.telemetry.observe(Refused(400, "unknown_parameter", "colour"))
    log.telemetry.observe(Failed("step", 'RuntimeError: it "broke" here', "r3"))
    assert log.lines == [
        "<4>refused seq=1 status=400 code=unknown_parameter param=colour",
        '<3>error seq=2 req=r3 where=step error="RuntimeError: it \\"broke\\" here"',
    ]


def test_a_log_nobody_reads_costs_lines_not_the_engine() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    log = LineLog(Closed())
    assert [log.write("ready", {}), log.write("ready", {})] == [1, 2]
    assert log.lost == 2


def test_lines_of_two_threads_are_whole_and_numbered_in_order() -> None:
    stream = io.StringIO()
    log = LineLog(stream)
    threads = [threading.Thread(target=lambda: [log.write("x", {"a": "b" * 50}) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert lines == [f"<6>x seq={number} a={'b' * 50}" for number in range(1, 801)]


@given(value=st.text(max_size=20))
def test_any_text_survives_as_one_value_on_one_line(value: str) -> None:
    line = logfmt("ready", {"a": value, "b": 1})
    assert len(line.splitlines()) == 1
    shown = line.removeprefix("ready a=").removesuffix(" b=1")
    assert (json.loads(shown) if shown.startswith('"') else shown) == value
    if not shown.startswith('"'):
        assert not any(character.isspace() or character in '="' for character in shown)


def test_values_are_written_as_the_contract_shows_them() -> None:
    values = {"n": 1, "ms": 3650.2, "whole": 5.0, "hist": [9, 8], "on": True, "off": False, "gone": None, "empty": ""}
    assert logfmt("x", values) == 'x n=1 ms=3650.2 whole=5 hist=9,8 on=true off=false empty=""'


@given(kept=st.lists(st.integers(1, 12), min_size=1, max_size=40))
def test_sums_count_each_step_once(kept: list[int]) -> None:
    sums = StepSums()
    for tokens in kept:
        sums.add(kept=tokens, wall_ms=2.0, nodes=3, stages_ms={"verify": 1.5})
    assert (sums.steps, sums.tokens, sums.nodes) == (len(kept), sum(kept), 3 * len(kept))
    assert sums.hist == [kept.count(tokens) for tokens in range(1, max(kept) + 1)]
    assert math.isclose(sums.host_ms, 0.5 * len(kept))


def test_acceptance_is_a_ratio_of_sums_over_trees_with_branches() -> None:
    window = AcceptanceWindow()
    branching = {"parents": (-1, 0, 0, 1), "weights": (0.0, math.log(0.5), math.log(0.3), math.log(0.2))}
    window.observe(step(path=(0, 1, 3), spine=3, **branching))  # all of it on the spine
    window.observe(step(path=(0, 2), spine=1, **branching))  # one token thanks to a branch
    window.observe(step(path=(0,), spine=1, parents=(-1, 0), weights=(0.0, math.log(0.5))))  # a chain, all wrong
    window.observe(step(path=(0,), spine=1, parents=(-1,), weights=(0.0,)))  # nothing drafted: tells nothing
    figures = window.figures()
    assert figures.spine_hit_rate == 0.5
    assert figures.branch_gain == 0.5
    assert figures.calibration == pytest.approx((2 + 1 + 0) / (1.0 + 1.0 + 0.5))


def test_what_was_looked_up_is_told_apart_from_what_branches_gained() -> None:
    window = AcceptanceWindow()
    tree = {"parents": (-1, 0, 0, 1), "weights": (0.0, math.log(0.5), math.log(0.3), math.log(0.2))}
    kept = step(path=(0, 1, 3), spine=2, **tree)
    looked_up = replace(kept.round, tree=replace(kept.round.tree, grafted=frozenset({3}), spine=(1,)))
    window.observe(replace(kept, round=looked_up, looks_up=True))
    window.observe(replace(step(path=(0,), spine=1, **tree), looks_up=True))
    assert window.figures().lookup_share == 0.25
    assert window.figures().branch_gain == 0.0
    assert AcceptanceWindow().figures().lookup_share is None


def test_a_chain_measures_no_branches_but_calibration() -> None:
    window = AcceptanceWindow()
    window.observe(step(path=(0, 1), spine=2, parents=(-1, 0, 1), weights=(0.0, math.log(0.8), math.log(0.4))))
    figures = window.figures()
    assert (figures.spine_hit_rate, figures.branch_gain) == (None, None)
    assert figures.calibration == pytest.approx(1 / 1.2)


def test_acceptance_keeps_the_newest_steps_only() -> None:
    window = AcceptanceWindow(size=2)
    for spine in (2, 2, 1, 1):
        window.observe(step(parents=(-1, 0, 0), weights=(0.0, -1.0, -2.0), path=(0, 2), spine=spine))
    assert window.figures().spine_hit_rate == 0.0


def test_without_a_step_nothing_is_claimed() -> None:
    figures = AcceptanceWindow().figures()
    assert (figures.spine_hit_rate, figures.branch_gain, figures.calibration) == (None, None, None)
