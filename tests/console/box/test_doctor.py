"""The doctor's judgement: each thing that would stop the engine is found, with the mend that ends it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.box.doctor import Check, Findings, judge
from console.box.facts import BoxFacts
from console.box.layout import layout_for
from console.box.model_check import ModelFolders, misfits
from console.box.release import requirements
from console.box.values import ServiceState

TINY = Path(__file__).parents[2] / "data" / "tiny-ddtree"
TARGET = json.loads((TINY / "target" / "config.json").read_text())
DRAFTER = json.loads((TINY / "drafter" / "config.json").read_text())
INTERPRETER: dict[str, Any] = {
    "path": "/opt/llm/bin/python",
    "version": [3, 12, 1],
    "packages": dict.fromkeys(requirements(), "999"),
    "torch": {"version": "2.13.0", "cuda": "12.8", "gpus": 1},
}
GPU = {
    "index": "0",
    "name": "H200",
    "driver_version": "570.1",
    "memory.total": "143771",
    "memory.used": "0",
    "persistence_mode": "Enabled",
}
SURVEY: dict[str, Any] = {
    "interpreters": [INTERPRETER],
    "linger": True,
    "journal": {"persistent": True, "readable": True, "groups": []},
    "disk_free_bytes": 10**12,
    "gpus": [GPU],
    "port": {"number": 8765, "owner": None},
    "engines": [],
}
HEALTHY = Findings(
    facts=BoxFacts(1001, "ops", "/home/ops", True, 252, b""),
    latency_ms=12.0,
    layout=layout_for("user", "/home/ops", "ddtree-engine.service"),
    service=ServiceState("stopped", "ddtree-engine.service", "user"),
    survey=SURVEY,
    settings={"model": {"path": "/m", "drafter": "/d"}},
    model=ModelFolders("/m", TARGET, (), True, "/d", DRAFTER),
)


def bad(found: Findings) -> list[Check]:
    return [check for check in judge(found) if check.verdict != "pass"]


def surveyed(**changes: Any) -> Findings:
    return replace(HEALTHY, survey={**SURVEY, **changes})


def test_a_healthy_box_passes_everything_and_needs_no_mend() -> None:
    checks = judge(HEALTHY)
    assert bad(HEALTHY) == []
    assert [check for check in checks if check.mend] == []
    assert {check.group for check in checks} == {
        "link",
        "service",
        "journal",
        "python",
        "model",
        "drafter",
        "port",
        "disk",
        "gpus",
    }


@pytest.mark.parametrize(
    ("found", "verdict", "text", "mend"),
    [
        (replace(HEALTHY, latency_ms=450.0), "warn", "450 ms", "late"),
        (replace(HEALTHY, facts=replace(HEALTHY.facts, greeting=b"hi there")), "fail", "hi there", "print nothing"),
        (
            replace(HEALTHY, facts=replace(HEALTHY.facts, systemd_version=None)),
            "fail",
            "no systemd",
            "--scope supervisor",
        ),
        (
            replace(HEALTHY, facts=replace(HEALTHY.facts, has_runtime_dir=False)),
            "fail",
            "/run/user/1001",
            "enable-linger ops",
        ),
        (surveyed(linger=False), "fail", "last login", "loginctl enable-linger ops"),
        (
            replace(
                surveyed(journal={"persistent": True, "readable": False, "groups": []}),
                layout=layout_for("system", "/home/ops", "u"),
            ),
            "fail",
            "ops cannot read it",
            "usermod -aG systemd-journal ops",
        ),
        (surveyed(journal={"persistent": False, "readable": True, "groups": []}), "warn", "reboot", "/var/log/journal"),
        (surveyed(interpreters=[]), "fail", "no Python of 3.11", "--python"),
        (
            surveyed(interpreters=[{**INTERPRETER, "torch": {"error": "OSError: libcuda"}}]),
            "fail",
            "libcuda",
            "install torch",
        ),
        (
            surveyed(interpreters=[{**INTERPRETER, "torch": {**INTERPRETER["torch"], "gpus": 0}}]),
            "fail",
            "sees none",
            "driver",
        ),
        (
            surveyed(interpreters=[{**INTERPRETER, "packages": {**INTERPRETER["packages"], "starlette": "0.1"}}]),
            "warn",
            "lacks starlette",
            "/opt/llm/bin/python -m pip install starlette",
        ),
        (replace(HEALTHY, service="Failed to connect to bus"), "fail", "Failed to connect", "above"),
        (
            replace(HEALTHY, service=ServiceState("not-installed", "u", "user")),
            "warn",
            "not installed",
            "ddtree install",
        ),
        (
            replace(HEALTHY, service=ServiceState("start-limit-hit", "u", "user")),
            "fail",
            "start-limit-hit",
            "ddtree start",
        ),
        (replace(HEALTHY, service=ServiceState("stuck-in-stop", "u", "user")), "fail", "stuck-in-stop", "reboot"),
        (replace(HEALTHY, settings="Invalid value (at line 3)"), "fail", "line 3", "TOML"),
        (replace(HEALTHY, settings=None), "fail", "engine.toml", "ddtree install"),
        (
            surveyed(engines=[{"pid": 77, "command": "python -m engine serve"}]),
            "warn",
            "process 77 is not this unit's",
            "kill 77",
        ),
        (
            surveyed(port={"number": 8765, "owner": {"pid": 99, "command": "nginx"}}),
            "fail",
            "process 99: nginx",
            "--set port=N",
        ),
        (surveyed(disk_free_bytes=10**8), "fail", "0.1 GB", "room"),
        (surveyed(gpus=[], interpreters=[{**INTERPRETER}]), "warn", "processor", "trial"),
        (surveyed(gpus=[{**GPU, "persistence_mode": "Disabled"}]), "warn", "H200", "nvidia-smi -pm 1"),
        (
            replace(HEALTHY, model=ModelFolders("/m", None, (), False, "", None)),
            "fail",
            "config.json",
            "--set path=DIR",
        ),
    ],
)
def test_each_trouble_is_found_alone_with_its_mend(found: Findings, verdict: str, text: str, mend: str) -> None:
    troubles = [check for check in bad(found) if check.group != "drafter" or found.model is None or found.model.config]
    assert [check.verdict for check in troubles] == [verdict]
    assert text in troubles[0].text
    assert troubles[0].mend is not None and mend in troubles[0].mend


def test_the_port_held_by_the_engine_itself_is_as_it_should_be() -> None:
    serving = ServiceState("serving", "u", "user", main_pid=42)
    port = {"number": 8765, "owner": {"pid": 42, "command": "python -m engine serve"}}
    engines = [{"pid": 42, "command": "python -m engine serve"}]
    assert bad(replace(surveyed(port=port, engines=engines), service=serving)) == []


def test_a_model_with_missing_shards_names_them() -> None:
    broken = ModelFolders("/m", TARGET, ("model-00002-of-00002.safetensors",), True, "/d", DRAFTER)
    assert "model-00002-of-00002.safetensors" in bad(replace(HEALTHY, model=broken))[0].text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 128}, "hidden size 128, the model's is 64"),
        ({"vocab_size": 99}, "vocabulary 99, the model's is 64"),
        ({"dflash_config": {"target_layer_ids": [1, 6]}}, "taps layer 6, the model has 6"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel is another kind of drafter than DFlash"),
    ],
)
def test_a_drafter_made_for_something_else_is_found(change: dict[str, Any], said: str) -> None:
    assert misfits(TARGET, {**DRAFTER, **change}) == [said]
    assert misfits(TARGET, DRAFTER) == []
