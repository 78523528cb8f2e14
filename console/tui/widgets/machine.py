"""The box: its GPUs, its processor and memory, and the engine's process."""

from __future__ import annotations

from textual.content import Content

from console.snapshot import GpuFigures
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import ACCENT, BAD, LABEL_WIDTH, PLAIN, QUIET, Piece, row, within
from console.tui.view import View
from console.tui.widgets.bars import gauge
from console.tui.words import byte_size

_GAUGE = 8
_SPACIOUS = 70  # columns from which sizes stand beside shares


def draw_gpus(view: View, width: int, height: int) -> list[Content]:
    """One row a GPU; when there are more than rows, the busiest two and how many there are beside them."""
    snapshot = view.snapshot
    if snapshot is None or (snapshot.machine is None and not snapshot.gpus):
        return []
    if not snapshot.gpus:
        return [row("GPUs", ("no GPU on this box", QUIET))]
    lines = [_gpu(gpu, width, view.glyphs, first=index == 0) for index, gpu in enumerate(snapshot.gpus)]
    if height and len(lines) > height:
        more = len(lines) - height + 1
        lines = [*lines[: height - 1], row("", (f"and {more} more: z shows all", QUIET))]
    return lines


def draw_machine(view: View, width: int, _height: int) -> list[Content]:
    """Host and engine process, each in a row; what does not fit is left out, the least telling first."""
    room = width - LABEL_WIDTH
    named = (("host", _host(view, brief=width < _SPACIOUS)), ("engine", _process(view)))
    return [row(name, within(parts, room)) for name, parts in named if parts]


def _gpu(gpu: GpuFigures, width: int, glyphs: Glyphs, *, first: bool) -> Content:
    used = (gpu.utilization_percent or 0.0) / 100.0
    filled, track = gauge(used, _GAUGE, glyphs)
    parts: list[Piece] = [(f"{gpu.index} ", QUIET), (filled, ACCENT), (track, QUIET)]
    parts.append((" -   " if gpu.utilization_percent is None else f" {gpu.utilization_percent:3.0f} %", PLAIN))
    if gpu.memory_used_bytes is not None:
        total = f" / {byte_size(gpu.memory_total_bytes)}" if gpu.memory_total_bytes else ""
        parts += [(f"  {byte_size(gpu.memory_used_bytes)}", PLAIN), (total, QUIET)]
    if gpu.sm_clock_mhz is not None:
        parts.append((f"  {gpu.sm_clock_mhz / 1000:.2f} GHz", PLAIN))
    if gpu.power_w is not None and width >= 76:
        parts.append((f"  {gpu.power_w:.0f} W", PLAIN))
    if gpu.temperature_c is not None and width >= 76:
        parts.append((f"  {gpu.temperature_c:.0f} °C" if not glyphs.ascii else f"  {gpu.temperature_c:.0f} C", PLAIN))
    if gpu.throttle and gpu.throttle != "none":
        parts.append((f"  throttle: {shown(gpu.throttle, glyphs)}", BAD))
    elif width >= 100:
        parts.append(("  throttle: none", QUIET))
    return row("GPUs" if first else "", *parts)


def _host(view: View, *, brief: bool) -> list[Content]:
    machine = view.snapshot.machine if view.snapshot else None
    if machine is None:
        return []
    parts = []
    if machine.cpu_percent is not None:
        cores = f" of {machine.cpu_count} cores" if machine.cpu_count and not brief else ""
        parts.append(_figure("cpu", f"{machine.cpu_percent:>4.0f} %", cores))
    if machine.memory_used_bytes is not None and machine.memory_total_bytes:
        share = 100 * machine.memory_used_bytes / machine.memory_total_bytes
        size = "" if brief else f" of {byte_size(machine.memory_total_bytes)}"
        parts.append(_figure("mem", f"{share:>3.0f} %", size, BAD if share > 95 else PLAIN))
    if machine.load_1m is not None:
        parts.append(_figure("load", f"{machine.load_1m:.2f}"))
    return parts


def _process(view: View) -> list[Content]:
    process = view.snapshot.process if view.snapshot else None
    if process is None:
        return []
    parts = []
    if process.cpu_percent is not None:
        parts.append(_figure("cpu", f"{process.cpu_percent:>4.0f} %"))
    if process.rss_bytes is not None:
        parts.append(_figure("mem", byte_size(process.rss_bytes)))
    parts.append(_figure("pid", str(process.pid)))
    if process.threads is not None:
        parts.append(_figure("threads", str(process.threads)))
    return parts


def _figure(name: str, value: str, of: str = "", tone: str = PLAIN) -> Content:
    return Content.assemble((f"{name} ", QUIET), (value, tone), (of, QUIET))
