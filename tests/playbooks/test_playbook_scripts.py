"""The playbooks that come with the console: sound by their own check, and runnable by hand on any Python from 3.9 on."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import kit_params
import pytest
from kit_canned import CannedEngine
from kit_end import Stop
from speaking_engine import PLAYBOOKS

from console.experiments.playbook import Playbook, catalogue, kit_files

ALONE = (
    "accept_drift", "budget_sweep", "burst_vs_full", "concurrency_sweep", "context_curve", "diagnose", "drafter_kinds",
    "kv_capacity", "lossless", "output_sweep", "quick_probe",
)  # fmt: skip
EFFECTS = {
    "concurrency_sweep": ("load",), "page_size_ab": ("restarts_service",), "parser_ab": ("restarts_service",)
}  # fmt: skip
WITH_CONSOLE = ("client_vs_box", "page_size_ab", "parser_ab")  # they need it as a client, or for the transaction
SCRIPTS = tuple(sorted((*ALONE, *WITH_CONSOLE)))


def by_hand(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", PLAYBOOKS / f"{script}.py", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env={"PATH": os.environ["PATH"], **environment},
    )  # fmt: skip


def built_in() -> dict[str, Playbook]:
    return {playbook.id: playbook for playbook in catalogue([PLAYBOOKS])}


def test_the_catalogue_holds_them_all_valid_with_keys_of_their_own() -> None:
    found = built_in()
    assert tuple(sorted(found)) == SCRIPTS
    for playbook in found.values():
        assert playbook.faults == (), playbook.id
        assert playbook.warnings == (), playbook.id
        assert playbook.effects == EFFECTS.get(playbook.id, ())
        assert playbook.engines == ("bundled", "sglang", "vllm")
    assert len({playbook.key for playbook in found.values()}) == len(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_estimate_is_below_the_limit_and_a_few_minutes_at_most(name: str) -> None:
    playbook = built_in()[name]
    estimate = playbook.estimate_s({param.name: param.default for param in playbook.params})
    assert estimate is not None
    assert 10 <= estimate <= 300 < playbook.max_seconds or playbook.restarts()


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.py")), ids=lambda path: path.name)
def test_every_file_reads_as_python_3_9_and_imports_the_standard_library_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = {one.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {name.removesuffix(".py") for name in kit_files()}
    assert imported - own <= sys.stdlib_module_names
    assert "tomllib" not in imported or path.name == "kit_params.py"  # 3.11 and newer: guarded there


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_plain_reader_reads_a_header_as_tomllib_does(name: str) -> None:
    lines = (PLAYBOOKS / f"{name}.py").read_text().splitlines()
    text = "\n".join(line[2:] for line in lines[1 : lines.index("# ///", 1)])
    assert kit_params.read_plain_toml(text) == tomllib.loads(text)


def test_the_plain_reader_says_what_it_cannot_read() -> None:
    with pytest.raises(Stop, match="2026-01-01"):
        kit_params.read_plain_toml("when = 2026-01-01T00:00:00Z")


@pytest.mark.parametrize("name", SCRIPTS)
def test_describe_prints_the_plan_and_runs_nothing(name: str) -> None:
    done = by_hand(name, "--describe", DDT_BASE_URL="http://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (0, "")
    described = json.loads(done.stdout)
    assert described["id"] == name
    assert described["plan"]["est_s"] > 0
    assert described["params"].keys() == {param.name for param in built_in()[name].params}


def test_describe_states_how_the_context_curve_keeps_to_its_budget() -> None:
    described = json.loads(by_hand("context_curve", "--describe", "--param", "budget_seconds=60").stdout)
    assert described["plan"]["est_s"] == 60
    assert "within about 60 s" in described["plan"]["budget"]
    assert "half of the engine's context" in described["plan"]["levels"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_names_every_parameter_and_exit_status(name: str) -> None:
    done = by_hand(name, "--help")
    assert done.returncode == 0
    for param in built_in()[name].params:
        assert f"{param.name} ({param.type}, default {param.default}" in done.stdout
    assert "75 busy" in done.stdout


NEEDS = [
    ("client_vs_box", "no console followed within 1 s", "wait=1"),
    ("page_size_ab", "lacks unit.restart", "blocks=1"),
    ("parser_ab", "lacks unit.restart", "blocks=1"),
]


@pytest.mark.parametrize(("name", "says", "param"), NEEDS)
def test_a_playbook_that_needs_the_console_says_so_by_hand(name: str, says: str, param: str) -> None:
    done = by_hand(name, "--selftest", "--param", param)
    assert done.returncode == 4
    assert says in done.stderr


@pytest.mark.parametrize("name", ALONE)
def test_selftest_runs_through_on_the_canned_engine(name: str) -> None:
    done = by_hand(name, "--selftest", *(("--param", "wait=0") if name == "diagnose" else ()))
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"], events[-1]["status"]) == ("hello", "end", "done")
    assert events[-1]["seq_total"] == len(events)
    for event in events:
        if event["type"] == "sample":
            assert event["req"]["commit"] == pytest.approx(CannedEngine.COMMIT, rel=0.3)
            assert event["req"]["step_ms"] == pytest.approx(1 + 0.001 * (event["req"]["ctx_mid"] + 1), rel=0.02)


def test_the_context_curve_finds_the_canned_slope_over_five_levels() -> None:
    events = [json.loads(line) for line in by_hand("context_curve", "--selftest").stdout.splitlines()]
    levels = next(event["stats"]["levels"] for event in events if event["type"] == "summary")
    assert len(levels) == 5
    assert levels[-1]["level"] == 2000  # the highest rung up to half of the engine's 4,096 tokens
    first, last = levels[0], levels[-1]
    slope = (last["step_ms"] - first["step_ms"]) / (last["level"] - first["level"])
    assert slope == pytest.approx(0.001, rel=0.01)
    order = [event["req"]["level"] for event in events if event["type"] == "sample"]
    assert sorted(order[:5]) == sorted(order[5:10]) == [level["level"] for level in levels]
    assert order[:5] != sorted(order[:5])  # rounds are shuffled, so that drift spreads over all levels


def test_a_budget_too_small_lowers_the_levels_and_then_the_repeats() -> None:
    done = by_hand("context_curve", "--selftest", "--param", "budget_seconds=5", "--param", "reps=50")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    samples = [event["req"]["level"] for event in events if event["type"] == "sample"]
    assert len(set(samples)) == 5
    assert len(samples) >= 10


def test_a_level_beyond_the_engines_context_is_refused_with_both_numbers() -> None:
    done = by_hand("context_curve", "--selftest", "--param", "levels=64,4090")
    assert done.returncode == 2
    assert "4090" in done.stderr and "4096" in done.stderr


def test_a_prompt_shorter_than_any_rung_stays_as_short_as_it_was_asked_for() -> None:
    done = by_hand("burst_vs_full", "--selftest", "--param", "prompt=64", "--param", "reps=2")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["req"]["P"] for event in events if event["type"] == "sample"} == {64}
