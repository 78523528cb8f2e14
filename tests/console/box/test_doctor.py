"""The doctor's judgement: each thing that would stop the engine is found, with the mend that ends it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.box.doctor import Check, Findings, judge
from console.box.doctor_link import LinkFindings
from console.box.empty_log import EmptyLog
from console.box.facts import BoxFacts
from console.box.layout import layout_for
from console.box.model_check import KNOWN_ARCHITECTURES, KNOWN_TYPES, ModelFolders, misfits
from console.box.release import requirements
from console.box.skipped_options import SkippedOption
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
    "memory": {"total": 64 * 10**9, "available": 32 * 10**9},
}
LINK = LinkFindings("ops", latency_ms=12.0, host_key="ssh-ed25519 SHA256:abc", clock_ahead_s=-0.2)
HEALTHY = Findings(
    facts=BoxFacts(1001, "ops", "/home/ops", True, 252, b""),
    link=LINK,
    layout=layout_for("user", "/home/ops", "ddtree-engine.service"),
    service=ServiceState("stopped", "ddtree-engine.service", "user"),
    survey=SURVEY,
    settings={"model": {"path": "/m", "drafter": "/d"}},
    model=ModelFolders("/m", TARGET, (), True, "/d", DRAFTER, weight_bytes=10**9),
)

REVOKED = SkippedOption("RevokedHostKeys", "/etc/revoked", "~/.ssh/config line 3", "not known", "mark them @revoked")
STRICT = SkippedOption("StrictHostKeyChecking", "no", "~/.ssh/config line 4", "always checked strictly")


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
        "keys",
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
        (replace(HEALTHY, link=replace(LINK, latency_ms=450.0)), "warn", "450 ms", "late"),
        (replace(HEALTHY, link=replace(LINK, greeting=b"hi there")), "fail", "hi there", "print nothing"),
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
            surveyed(engines=[{"pid": 77, "command": "python -m engine serve", "memory_bytes": 3 * 10**9}]),
            "warn",
            "process 77 is not this unit's and holds 3.0 GB",
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
        (replace(HEALTHY, link=replace(LINK, clock_ahead_s=63.0)), "warn", "63.0 s ahead of", "timedatectl set-ntp"),
        (
            replace(HEALTHY, link=replace(LINK, skipped=(REVOKED, STRICT))),
            "warn",
            "/etc/revoked (~/.ssh/config line 3) has no effect here",
            "@revoked",
        ),
        (
            replace(
                HEALTHY, log=EmptyLog("namespace", "logs into the journal namespace gpu", "journalctl --namespace=gpu")
            ),
            "fail",
            "namespace gpu",
            "journalctl --namespace=gpu",
        ),
        (replace(HEALTHY, log=EmptyLog("rate limit", "journald drops lines", "log less")), "warn", "drops", "log less"),
        (
            replace(HEALTHY, model=replace(HEALTHY.model, weight_bytes=140 * 10**9)),
            "fail",
            "weights of 140.0 GB, a GPU has 150.8 GB",
            "smaller",
        ),
        (
            surveyed(gpu_processes=[{"pid": 5, "gpu_bytes": 30 * 10**9, "command": "python old", "unit_pid": 1}]),
            "warn",
            "holds 30.0 GB of GPU memory and is not the engine's: python old",
            "kill 5",
        ),
        (surveyed(gpus=[{**GPU, "throttle": "hw slowdown"}]), "warn", "held down by hw slowdown", "PERFORMANCE"),
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


def test_the_engines_own_gpu_memory_and_that_of_its_children_is_no_trouble() -> None:
    serving = ServiceState("serving", "u", "user", main_pid=42)
    held = [
        {"pid": 42, "gpu_bytes": 80 * 10**9, "command": "engine", "unit_pid": 1},
        {"pid": 43, "gpu_bytes": 80 * 10**9, "command": "rank 1", "unit_pid": 42},
        {"pid": 9, "gpu_bytes": 4 * 10**8, "command": "a display", "unit_pid": 1},
    ]
    assert bad(replace(surveyed(gpu_processes=held), service=serving)) == []


def test_an_engine_that_is_not_the_consoles_own_needs_no_torch_and_no_settings_file_of_ours() -> None:
    found = replace(surveyed(interpreters=[]), bundled=False, settings=None, model=None)
    assert bad(found) == []


def test_the_doctor_knows_the_architectures_that_the_engine_runs() -> None:
    from engine.models import deepseek_v3, llama, qwen3, qwen3_moe

    runs = {name for module in (deepseek_v3, llama, qwen3, qwen3_moe) for name in module.ARCHITECTURES}
    assert {*KNOWN_ARCHITECTURES, *KNOWN_TYPES} == runs
    nested = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"model_type": "kimi_k2"}}
    assert HEALTHY.model is not None
    troubles = bad(replace(HEALTHY, model=replace(HEALTHY.model, config=nested, drafter="")))
    assert [check.group for check in troubles] == ["drafter"]  # there is none


@pytest.mark.parametrize("nested", [False, True])
def test_weights_in_eight_bit_blocks_count_twice_because_they_are_made_plain(nested: bool) -> None:
    kept = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    config = {**TARGET, "text_config": kept} if nested else {**TARGET, **kept}
    model = ModelFolders("/m", config, (), True, "", None, weight_bytes=80 * 10**9)
    (check,) = [check for check in judge(replace(HEALTHY, model=model)) if check.name == "memory"]
    assert (check.verdict, check.text) == ("fail", "weights of 160.0 GB, a GPU has 150.8 GB")
