"""All fourteen playbooks as `ddtree run` runs them: the bundled model under its own unit on a real machine, small sizes.

One engine for all. What is asserted holds on a machine that is busy with other things: speeds are not judged here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from box_machine import Box, free_port

from console.actions import VERBS
from console.analysis.run_verdict import exit_code_of
from console.analysis.screening import screen
from console.errors import ExitCode
from console.experiments.playbook import catalogue
from console.verbs.verb import Call, Session
from console.verbs.words import Style
from engine.fetch_model import default_model_folder

MODEL = default_model_folder()
DRAFTER = Path("engine/drafters/smollm2-135m-instruct")
CONTEXT, BUDGET = 640, 16
SETTINGS = {
    "context_length": str(CONTEXT), "tree_budget": str(BUDGET), "lookup": "off", "prefix_cache": "false",
    "interval_s": "0.5", "max_running_requests": "2",
}  # fmt: skip
ONE_THREAD = "/etc/systemd/system/ddtree-engine.service.d/threads.conf"
"""What an operator of a machine that others compute on as well would add: two threads that wait for each other crawl there."""
LONG_S = {"budget_seconds": "60"}
NEITHER = ("void", "inconsistent_data", "broken")
"""What no sound engine on a busy machine is called."""
pytestmark = [pytest.mark.box, pytest.mark.model]


class Operator:
    """Somebody at a shell with a configuration of their own: verbs in, exit status and JSON out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ddtree(self, verb: str, **arguments: Any) -> tuple[ExitCode, list[dict[str, Any]]]:
        """One verb with `--json --yes`."""
        said: list[dict[str, Any]] = []

        async def no_console(*_: object) -> ExitCode:
            raise AssertionError("no console is opened here")

        session = Session(lambda data, _: said.append(dict(data)), Style(False), no_console, None)
        flags = {"yes": True, "dry-run": False, "check": False, "detach": False}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(self.folder / "config"))
            patch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
            status: Awaitable[ExitCode] = VERBS[verb].run(Call(VERBS[verb], {**flags, **arguments}, session))
            return asyncio.run(finished(status)), said

    def run(self, playbook: str, **params: object) -> Mapping[str, Any]:
        """A playbook to its end; what `ddtree run --json` says last, with its samples and its events under "events"."""
        given = {name: str(value) for name, value in params.items()}
        began = time.monotonic()
        status, said = self.ddtree("run", host="box", playbook=playbook, param=given)
        last = said[-1]
        print(f"{playbook}: {time.monotonic() - began:.1f} s, {last['class']}: {last['headline']}")
        assert last["type"] == "verdict", last
        assert last["status"] == "done", (last["message"], last["headline"])
        assert last["class"].split(":")[0] in declared(playbook)
        assert status == last["exit"] == exit_code_of(last["class"])
        return {**last, "events": said[:-1]}


async def finished(status: Awaitable[ExitCode]) -> ExitCode:
    async with asyncio.timeout(600):
        return await status


def declared(playbook: str) -> tuple[str, ...]:
    """The verdicts that its header declares."""
    return next(one.verdicts for one in catalogue() if one.id == playbook)


def samples(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [event["req"] for event in result["events"] if event["type"] == "sample"]


@pytest.fixture(scope="module")
def operator(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The bundled model and its drafter installed as a system unit, and serving."""
    folder = tmp_path_factory.mktemp("operator")
    config = folder / "config" / "ddtree"
    config.mkdir(parents=True)
    hosts = f'[box]\naddress = "127.0.0.1"\nport = {box.port}\nuser = "root"\nkey = "{box.key}"\n'
    (config / "hosts.toml").write_text(hosts)
    (config / "known_hosts").write_text(box.known_hosts.read_text())
    found = Operator(folder)
    install = {
        "model": str(MODEL),
        "drafter": str(box.checkout / DRAFTER),
        "python": str(box.python),
        "scope": "system",
    }
    status, said = found.ddtree("install", host="box", set={**SETTINGS, "port": str(free_port())}, **install)
    assert status is ExitCode.DONE, said
    box.run(["mkdir", "-p", ONE_THREAD.rpartition("/")[0]])
    box.run(["tee", ONE_THREAD], input=b"[Service]\nEnvironment=OMP_NUM_THREADS=1\n")
    box.run(["systemctl", "daemon-reload"])
    try:
        status, said = found.ddtree("start", host="box", set={})
        assert status is ExitCode.DONE, said
        yield found
    finally:
        found.ddtree("uninstall", host="box", scope="system")
        box.run(["rm", "-rf", ONE_THREAD.rpartition("/")[0]])


@pytest.fixture
def settings(operator: Operator) -> dict[str, Any]:
    """The settings in force before the test."""
    return status_of(operator)["settings"]


def status_of(operator: Operator) -> dict[str, Any]:
    _, said = operator.ddtree("status", host="box")
    assert said[-1]["service"]["state"] == "serving", json.dumps(said[-1])
    return said[-1]


def test_quick_probe_tells_the_rate_as_commit_length_over_step_time(operator: Operator) -> None:
    found = operator.run("quick_probe", reps=2, tokens=48, prompt=64)
    assert found["class"] == "healthy"
    both = samples(found)
    assert [one["kind"] for one in both] == ["prose", "chat", "chat", "prose"]
    assert {(one["engine_src"], one["N"]) for one in both} == {("speculation", 47)}
    counted, _ = screen(both)  # an answer that loops does not count
    tokens, steps = sum(one["N"] for one in counted), sum(one["steps"] for one in counted)
    assert 1.2 < tokens / steps < 4.0  # the drafter was trained for this model
    assert f"commit length {tokens / steps:.2f} / step" in found["headline"]


def test_context_curve_measures_every_level_and_fits_it(operator: Operator) -> None:
    found = operator.run("context_curve", levels="[32, 64, 128, 192, 320]", tokens=32, reps=2, **LONG_S)
    assert not found["class"].startswith(NEITHER)
    assert [level["level"] for level in found["levels"]] == [32, 64, 128, 192, 320]
    assert {one["P"] for one in samples(found)} == {32, 64, 128, 192, 320}  # exact lengths, by the engine's tokenizer
    assert found["fit"]["a_ms"] > 1.0 and found["fit"]["levels"] == 5


def test_output_sweep_measures_every_length(operator: Operator) -> None:
    found = operator.run("output_sweep", outputs="[16, 24, 32, 40, 48]", prompt=48, reps=2, **LONG_S)
    assert not found["class"].startswith(NEITHER)
    lengths = {one["N_usage"] for one in samples(found) if one["finish"] == "length"}
    assert {16, 24, 32, 40, 48} <= lengths


def test_accept_drift_has_windows_along_the_answer(operator: Operator) -> None:
    found = operator.run("accept_drift", tokens=160, prompt=48, window=25, reps=2, **LONG_S)
    assert found["class"] in ("explained", "acceptance_drift")
    assert len(found["windows"]) >= 10 and all(1.0 <= one["commit"] <= 16 for one in found["windows"])
    assert sum(one["tokens"] for one in found["windows"]) == sum(one["N"] for one in samples(found))


def test_drafter_kinds_ranks_all_six(operator: Operator) -> None:
    found = operator.run("drafter_kinds", tokens=32, short=48, long=0, reps=2, **LONG_S)
    assert found["class"] in ("healthy", "commit_collapsed")
    assert {one["kind"] for one in samples(found)} == {"chat", "code", "copy", "json", "math", "prose"}
    assert len(found["kinds"]) >= 4  # a kind whose answers loop is left out, and a warning says so
    assert len(found["kinds"]) == 6 or "excluded" in {one["code"] for one in found["warnings"]}
    commits = [one["commit_length"] for one in found["kinds"]]
    assert commits == sorted(commits) and commits[-1] > 1.5
    assert commits[0] <= 1 + sum(found["survival"]) <= commits[-1]


def test_burst_vs_full_reads_one_stream_both_ways(operator: Operator) -> None:
    found = operator.run("burst_vs_full", tokens=120, prompt=64, last=60, reps=2, **LONG_S)
    assert found["class"] in ("explained", "unexplained")
    bias = found["bias"]
    assert bias["measured"]["ratio"] == pytest.approx(bias["step"] * bias["acceptance"] * bias["outside"]["ratio"])


def test_client_vs_box_stamps_the_same_chunks_twice(operator: Operator) -> None:
    found = operator.run("client_vs_box", tokens=48, streams=2, **LONG_S)
    assert found["class"] in ("explained", "network", "inconclusive")
    assert 0.5 < found["way"]["slope"] < 2.0
    for one in samples(found):
        assert len(one["client_s"]) == len(one["box_s"]) > 8


def test_budget_sweep_ends_in_a_budget_for_the_context(operator: Operator) -> None:
    found = operator.run("budget_sweep", tokens=32, short=48, long=0, budgets="[4, 32]", reps=2, **LONG_S)
    assert found["class"] in ("faster", "equivalent", "small", "inconclusive")
    by_arm = {
        arm: [one for one in samples(found) if one["arm"] == arm]
        for arm in ("now", "off", "chain", "tree 4", "tree 32")
    }
    assert all(len(rows) == 2 for rows in by_arm.values())
    assert all(one["steps"] == one["N"] for one in by_arm["off"])  # a step a token
    assert all(one["steps"] < one["N"] for one in by_arm["tree 32"])


def test_concurrency_sweep_finds_a_knee(operator: Operator) -> None:
    found = operator.run("concurrency_sweep", levels="[1, 2]", tokens=32, prompt=32, **LONG_S)
    assert found["class"] == "explained" and found["knee"] in (1, 2)
    cells = {(entry["arm"], entry["level"]) for entry in found["levels_of_arms"]}
    assert cells == {("now", 1), ("now", 2), ("off", 1), ("off", 2)}


def test_kv_capacity_holds_what_is_served(operator: Operator) -> None:
    found = operator.run("kv_capacity", **LONG_S)
    assert found["class"] == "healthy"
    numbers = found["capacity"]
    assert (numbers["asked_tokens"], numbers["served_tokens"], numbers["model_tokens"]) == (CONTEXT, CONTEXT, 8192)
    assert numbers["pool_tokens"] >= CONTEXT and numbers["probed_tokens"] == numbers["limit_tokens"]
    keys_and_values, layers, heads, head_dim, bytes_each = 2, 30, 3, 64, 2
    target = keys_and_values * layers * heads * head_dim * bytes_each
    assert target < numbers["bytes_per_token"] < 1.5 * target  # the drafter's cache is the rest


def test_lossless_finds_the_drafted_answers_to_be_the_plain_ones(operator: Operator) -> None:
    found = operator.run("lossless", prompts=4, tokens=32, long=256, **LONG_S)
    assert found["class"] in ("lossless", "near_tie", "inconclusive")  # bfloat16: near ties may fall the other way
    assert all(one["gap_nat"] is not None and one["gap_nat"] < 0.5 for one in found["partings"])
    assert len({one["pair"] for one in samples(found)}) == 4


def test_diagnose_is_held_against_the_run_that_was_pinned(operator: Operator) -> None:
    small = {"tokens": 32, "short": 48, "long": 160, "reps": 2, "wait": 10, **LONG_S}
    first = operator.run("diagnose", **small)
    assert first["class"] == "healthy" and "pin it" in first["next"]
    status, _ = operator.ddtree("pin", run=first["run_id"])
    assert status is ExitCode.DONE
    second = operator.run("diagnose", **small)
    assert second["golden"] == first["run_id"]
    # Others may have the machine by now; nothing is named that was not there.
    assert second["class"] in ("healthy", "inconclusive", "step_regression", "unexplained", "contention")
    assert second["effects"]["commit_length"]["ratio"] == pytest.approx(1.0, abs=0.1)
    probes = {(one["pair"], one["arm"]): one["out_sha"] for one in samples(second) if one.get("probe")}
    then = {(one["pair"], one["arm"]): one["out_sha"] for one in samples(first) if one.get("probe")}
    assert len(probes) == 4 and probes == then  # the same weights give the same tokens


def test_page_size_ab_measures_both_and_puts_the_old_one_back(operator: Operator, settings: Mapping[str, Any]) -> None:
    found = operator.run("page_size_ab", page_size=64, blocks=1, requests=1, tokens=24, prompt=48)
    assert found["class"] == "inconclusive"  # one block explores
    assert "exploratory" in {one["code"] for one in found["warnings"]}
    assert {one["arm"] for one in samples(found)} == {"page 16", "page 64"}
    answers = {(one["pair"], one["out_sha"]) for one in samples(found) if one.get("probe")}
    assert len(answers) == 3  # three questions, each answered alike under both
    assert status_of(operator)["settings"] == settings and settings["page_size"] == 16


def test_parser_ab_measures_both_and_puts_the_old_one_back(operator: Operator, settings: Mapping[str, Any]) -> None:
    found = operator.run(
        "parser_ab", setting="reasoning_parser", value="deepseek_r1", blocks=1, requests=1, tokens=24, prompt=48
    )
    assert found["class"] == "inconclusive"
    assert {one["arm"] for one in samples(found)} == {"reasoning_parser off", "reasoning_parser deepseek_r1"}
    (fields,) = (one["msg"] for one in found["warnings"] if one["code"] == "fields")  # it takes all for reasoning
    assert fields.startswith("text comes in content under reasoning_parser off and in reasoning")
    assert status_of(operator)["settings"] == settings and settings["reasoning_parser"] == ""


def test_these_are_all_that_there_are() -> None:
    here = {name for name in globals() if name.startswith("test_")}
    assert len(catalogue()) == 14
    assert all(any(name.startswith(f"test_{one.id}_") for name in here) for one in catalogue())
