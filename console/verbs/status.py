"""`ddtree status`: one Snapshot as the contract's object, or in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from console.box.values import LinkState
from console.errors import ExitCode
from console.snapshot import GpuFigures, KvFigures, Snapshot
from console.verbs.on_host import on_host
from console.verbs.samples import rates_in_words
from console.verbs.service import service_json, service_text
from console.verbs.verb import Call
from console.verbs.words import Style, gigabytes, printable


async def status(call: Call) -> ExitCode:
    """Say how the host is; with --check, exit 3 when an alarm sounds."""
    async with on_host(call) as host:
        snapshot = await host.snapshot()
    call.say(status_json(snapshot), status_text(snapshot, call.session.style))
    return ExitCode.CHECK_SAYS_NO if call.flag("check") and snapshot.alarms else ExitCode.DONE


def status_json(snapshot: Snapshot) -> dict[str, Any]:
    """The object of contracts.md section 1; parts that are not known are null or empty."""
    service, engine = snapshot.service, snapshot.engine
    return {
        "host": snapshot.host,
        "link": snapshot.link.name,
        "service": service and service_json(service),
        "engine": engine and {"kind": engine.kind, "version": engine.version, "port": engine.port},
        "settings": dict(snapshot.settings),
        "sample": snapshot.sample and snapshot.sample.to_json(),
        "kv": snapshot.kv and asdict(snapshot.kv),
        "gpus": [asdict(gpu) for gpu in snapshot.gpus],
        "alarms": [asdict(alarm) for alarm in snapshot.alarms],
    }


def status_text(snapshot: Snapshot, style: Style) -> str:
    """The same for people: one line a subject, the subject in front."""
    lines = [("host", _host_words(snapshot, style))]
    if snapshot.service:
        lines.append(("service", service_text(snapshot.service, style)))
    if snapshot.engine:
        lines.append(("engine", _engine_words(snapshot)))
    if snapshot.sample:
        idle = snapshot.running == 0  # then nothing has been decoded since that window, however long ago it was
        at = f"window of {snapshot.sample.time}" if snapshot.sample.time else "time unknown"
        at = f"   ({at}, no request runs)" if idle else f"   ({at})"
        lines.append(("now" if snapshot.engine and not idle else "last", rates_in_words(snapshot.sample) + at))
        if snapshot.sample.stages_ms:
            stages = "   ".join(f"{stage} {ms:.1f}" for stage, ms in snapshot.sample.stages_ms.items())
            lines.append(("stages", f"{stages}   ms a step"))
    elif snapshot.engine:
        lines.append(("now", "no decode window yet"))
    if snapshot.kv:
        lines.append(("KV pool", _kv_words(snapshot.kv)))
    if snapshot.running is not None:
        lines.append(("requests", f"{snapshot.running} running, {snapshot.queued or 0} queued"))
    lines += [(f"GPU {gpu.index}", _gpu_words(gpu)) for gpu in snapshot.gpus]
    lines += [("alarm", style.bad(alarm.sentence)) for alarm in snapshot.alarms] or [("alarms", "none")]
    return "\n".join(f"{subject:<9} {words}" for subject, words in lines)


def _host_words(snapshot: Snapshot, style: Style) -> str:
    tag = f" [{snapshot.tag}]" if snapshot.tag else ""
    return f"{style.strong(snapshot.host)}{tag}  {_link_words(snapshot.link, style)}"


def _link_words(link: LinkState, style: Style) -> str:
    paint = style.good if link.name == "LIVE" else style.doubtful if link.name == "DEGRADED" else style.bad
    latency = f", {link.latency_ms:.0f} ms" if link.latency_ms is not None else ""
    reason = f" ({printable(link.reason)})" if link.reason and link.name != "LIVE" else ""
    return f"link {paint(link.name)}{latency}{reason}"


def _engine_words(snapshot: Snapshot) -> str:
    engine = snapshot.engine
    assert engine is not None
    settings = snapshot.settings
    words = [f"{engine.kind} {engine.version or '?'}"]
    if engine.port is not None:
        words.append(f"port {engine.port}")
    if engine.model:
        words.append(engine.model)
    words += [
        f"{word} {settings[name]}"
        for word, name in (("context", "context_length"), ("page", "page_size"))
        if name in settings
    ]
    if "mode" in settings:
        budget = f" {settings['tree_budget']}" if settings["mode"] == "ddtree" and "tree_budget" in settings else ""
        words.append(f"{settings['mode']}{budget}")
    return "  ".join(words)


def _kv_words(kv: KvFigures) -> str:
    share = 100 * kv.pages_used / kv.pages_total if kv.pages_total else 0.0
    per_token = f", {kv.bytes_per_token:,} B a token" if kv.bytes_per_token else ""
    return f"{kv.pages_used} of {kv.pages_total} pages of {kv.page_size} tokens ({share:.0f} %){per_token}"


def _gpu_words(gpu: GpuFigures) -> str:
    figures = [
        gpu.name,
        f"{gpu.utilization_percent:.0f} %" if gpu.utilization_percent is not None else None,
        f"{gigabytes(gpu.memory_used_bytes)} of {gigabytes(gpu.memory_total_bytes)}",
        f"{gpu.sm_clock_mhz / 1000:.2f} GHz" if gpu.sm_clock_mhz is not None else None,
        f"{gpu.power_w:.0f} W" if gpu.power_w is not None else None,
        f"{gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else None,
        f"throttled: {gpu.throttle}" if gpu.throttle else None,
    ]
    return "   ".join(figure for figure in figures if figure)
