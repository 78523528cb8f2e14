"""Samples of the box: processor and memory by psutil, the engine's process, GPUs by NVML where there is a driver."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import psutil

from engine.options import OneLineParser

PERCENT_OVER_S = 0.2
"""How long `host` watches the processor before it gives a percentage."""
THROTTLES = {
    "power cap": 0x4,
    "hardware slowdown": 0x8,
    "software thermal": 0x20,
    "hardware thermal": 0x40,
    "power brake": 0x80,
}
"""NVML's reasons for a clock held down against the load (nvmlClocksThrottleReason… bits); idling is none of them."""


@dataclass(frozen=True)
class HostSample:
    """The machine. `cpu_percent` is of all cores together, since the sample before."""

    cpu_percent: float
    cpu_count: int
    load_1m: float
    memory_used_bytes: int
    memory_total_bytes: int


@dataclass(frozen=True)
class ProcessSample:
    """One process. `cpu_percent` may exceed 100 where it has several threads."""

    pid: int
    cpu_percent: float
    rss_bytes: int
    threads: int


@dataclass(frozen=True)
class GpuSample:
    """One GPU; a figure that the driver does not give is None. `throttle` names the reasons, None when there are none."""

    index: int
    name: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    sm_clock_mhz: int | None
    power_w: float | None
    temperature_c: float | None
    throttle: str | None


class HostSampler:
    """Reads the box again and again. Percentages are over the time since the last read, so the first is a warm-up."""

    def __init__(self) -> None:
        self._process = psutil.Process(os.getpid())
        self._nvml = _open_nvml()
        psutil.cpu_percent()
        self._process.cpu_percent()

    def host(self) -> HostSample:
        """The machine now."""
        memory = psutil.virtual_memory()
        return HostSample(
            cpu_percent=psutil.cpu_percent(),
            cpu_count=psutil.cpu_count() or 1,
            load_1m=psutil.getloadavg()[0],
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
        )

    def process(self) -> ProcessSample:
        """This process now."""
        with self._process.oneshot():
            return ProcessSample(
                pid=self._process.pid,
                cpu_percent=self._process.cpu_percent(),
                rss_bytes=self._process.memory_info().rss,
                threads=self._process.num_threads(),
            )

    def gpus(self) -> tuple[GpuSample, ...]:
        """Every GPU the driver shows; empty without a driver."""
        if self._nvml is None:
            return ()
        return tuple(_gpu(self._nvml, index) for index in range(self._nvml.nvmlDeviceGetCount()))

    def driver(self) -> str | None:
        """The GPU driver's version; None without one."""
        if self._nvml is None:
            return None
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None


def _open_nvml() -> ModuleType | None:
    """NVML, or None where the package or the driver is missing: a box without a GPU is no error."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _gpu(nvml: ModuleType, index: int) -> GpuSample:
    def read(call: Callable[[], Any]) -> Any:
        """None where this GPU or its driver does not give the figure."""
        try:
            return call()
        except nvml.NVMLError:
            return None

    handle = read(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:  # fallen off the bus, say
        return GpuSample(index, "not answering", *(None,) * 7)
    memory = read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rates = read(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    milliwatts = read(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    celsius = read(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return GpuSample(
        index=index,
        name=str(read(lambda: nvml.nvmlDeviceGetName(handle)) or "GPU"),
        utilization_percent=None if rates is None else float(rates.gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        sm_clock_mhz=read(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        power_w=None if milliwatts is None else milliwatts / 1000.0,
        temperature_c=None if celsius is None else float(celsius),
        throttle=throttle_words(read(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
    )


def throttle_words(reasons: int | None) -> str | None:
    """The reasons that hold the clock down, in words; None when there are none or the driver does not say."""
    words = [word for word, bit in THROTTLES.items() if reasons and reasons & bit]
    return ", ".join(words) or None


def main(argv: Sequence[str]) -> int:
    """`python -m engine host [--json]`: one sample of the box, for when no engine answers."""
    parser = OneLineParser(prog="python -m engine host", description="One sample of this machine.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    as_json = parser.parse_args(argv).json
    sampler = HostSampler()
    time.sleep(PERCENT_OVER_S)
    host, gpus = sampler.host(), sampler.gpus()
    if as_json:
        sys.stdout.write(json.dumps({"host": asdict(host), "gpus": [asdict(gpu) for gpu in gpus]}) + "\n")
        return 0
    for figures in (asdict(host), *(asdict(gpu) for gpu in gpus)):
        sys.stdout.write("  ".join(f"{name} {value}" for name, value in figures.items()) + "\n")
    return 0
