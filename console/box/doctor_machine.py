"""What the doctor says of the machine: disk, memory for the weights, GPUs with what they hold and how they are clocked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from console.box.check import Check, Verdict

DISK_LEAST_BYTES = 500_000_000  # a release, its journal and runs
DISK_LOW_BYTES = 5_000_000_000
GPU_TAKEN_BYTES = 1_000_000_000  # held by others: less is a display or a driver's own
WEIGHTS_SHARE = 0.9  # of the memory; the pool and the activations need the rest


def judge_machine(
    survey: Mapping[str, Any], *, weight_bytes: int | None, ours: tuple[int, ...], root: bool
) -> list[Check]:
    """The checks of disk, memory and GPUs. `ours` are the service's own processes, `root` whether the login is."""
    free = survey["disk_free_bytes"]
    enough: Verdict = "fail" if free < DISK_LEAST_BYTES else "warn" if free < DISK_LOW_BYTES else "pass"
    checks = [Check("disk", "home", enough, f"{free / 1e9:.1f} GB free", None if enough == "pass" else "make room")]
    if weight_bytes is not None:
        checks.append(_weights(survey, weight_bytes))
    if not survey["gpus"]:
        none = Check("gpus", "nvidia", "warn", "none found: the engine runs on the processor", "fine for a trial")
        return [*checks, none]
    for gpu in survey["gpus"]:
        checks += _gpu(gpu, root)
    return [*checks, *_held_by_others(survey, ours)]


def _weights(survey: Mapping[str, Any], weight_bytes: int) -> Check:
    """Whether the model's weights have room: on one GPU, or in the machine's memory where there is none."""
    gpus = survey["gpus"]
    room = min(int(gpu["memory.total"]) * 2**20 for gpu in gpus) if gpus else survey["memory"]["total"]
    where = "a GPU" if gpus else "the machine"
    text = f"weights of {weight_bytes / 1e9:.1f} GB, {where} has {room / 1e9:.1f} GB"
    if weight_bytes > WEIGHTS_SHARE * room:
        mend = "take a smaller or a more compressed model, or a machine with more memory"
        return Check("model", "memory", "fail", text, mend)
    return Check("model", "memory", "pass", text)


def _gpu(gpu: Mapping[str, str], root: bool) -> list[Check]:
    used, total = gpu["memory.used"], gpu["memory.total"]
    text = f"{gpu['name']}, driver {gpu['driver_version']}, {used} of {total} MiB in use"
    sm, most = gpu.get("clocks.sm", ""), gpu.get("clocks.max.sm", "")
    if sm.isdigit() and most.isdigit():
        text += f", SM clock {sm} of {most} MHz"
    lazy = gpu["persistence_mode"] == "Disabled"
    itself = (("nvidia-smi", "-pm", "1"),) if lazy and root else ()
    checks = [
        Check(
            "gpus",
            gpu["index"],
            "warn" if lazy else "pass",
            text,
            "sudo nvidia-smi -pm 1" if lazy else None,
            itself,
        )
    ]
    held_down = gpu.get("throttle", "")
    if held_down:
        mend = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER tells more; see to cooling and power limits"
        checks.append(Check("clocks", gpu["index"], "warn", f"held down by {held_down}", mend))
    return checks


def _held_by_others(survey: Mapping[str, Any], ours: tuple[int, ...]) -> list[Check]:
    """Processes that hold GPU memory and are not the service's: what an engine that died badly leaves behind."""
    return [
        Check(
            "gpus",
            f"process {one['pid']}",
            "warn",
            f"holds {one['gpu_bytes'] / 1e9:.1f} GB of GPU memory and is not the engine's: {one['command']}",
            f"if nobody needs it: kill {one['pid']}",
        )
        for one in survey.get("gpu_processes", ())
        if one["gpu_bytes"] >= GPU_TAKEN_BYTES and one["pid"] not in ours and one.get("unit_pid") not in ours
    ]
