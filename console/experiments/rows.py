"""Events -> rows of the runs database, each a mapping from column to value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SAMPLE_COLUMNS = {  # column -> field of the sample's request
    "arm": "arm", "block": "block", "level": "level", "kind": "kind", "P": "P", "N": "N", "n_usage": "N_usage",
    "ttft": "ttft_s", "decode_s": "decode_s", "e2e_s": "e2e_s", "steps": "steps", "commit": "commit",
    "step_ms": "step_ms", "cached": "cached", "chunks": "chunks", "finish": "finish", "out_sha": "out_sha",
    "distinct2": "distinct2", "src": "engine_src", "clock_mhz": "clock_mhz", "throttle": "throttle",
}  # fmt: skip


def env_rows(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row a phase; the last of a phase counts."""
    phases = {str(event.get("phase", "start")): event for event in events if event.get("type") == "env"}
    for phase, event in phases.items():
        gpus = event.get("gpu") or []
        yield {
            "phase": phase,
            "engine": event.get("engine"),
            "engine_version": event.get("version"),
            "release": event.get("release"),
            "driver": event.get("driver"),
            "model": event.get("model"),
            "model_sha": event.get("model_sha"),
            "drafter": event.get("drafter"),
            "drafter_sha": event.get("drafter_sha"),
            "settings_json": json.dumps(event.get("settings")),
            "settings_sha": event.get("settings_sha"),
            "gpu_name": gpus[0] if gpus else None,
            "gpu_n": len(gpus),
            "clocks_json": json.dumps(event.get("clocks")),
        }


def sample_rows(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row a measured request, in order."""
    samples = [event for event in events if event.get("type") == "sample" and isinstance(event.get("req"), Mapping)]
    for number, event in enumerate(samples):
        request = event["req"]
        columns = {column: _plain(request.get(name)) for column, name in _SAMPLE_COLUMNS.items()}
        yield {"i": number, **columns, "counts": int(bool(event.get("counts", True)))}


def point_rows(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row a point of each series."""
    counts: dict[str, int] = {}
    for event in events:
        if event.get("type") == "series":
            name = str(event.get("name"))
            for x, y in zip(event.get("x") or (), event.get("y") or (), strict=False):
                number = counts.get(name, 0)
                counts[name] = number + 1
                yield {"series": name, "i": number, "x": _real(x), "y": _real(y)}


def fit_row(fit: Mapping[str, Any]) -> tuple[Any, ...]:
    """model, a, b, q and the whole fit as JSON."""
    return fit.get("model"), fit.get("a_ms"), fit.get("b_ms_per_token"), fit.get("q"), json.dumps(dict(fit))


def effect_rows(verdict: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row a metric of an A/B verdict: the ratio B / A with its 95 % interval."""
    for metric, effect in (verdict.get("effects") or {}).items():
        if isinstance(effect, Mapping) and effect.get("ratio"):
            low, high = effect.get("ci") or (None, None)
            count = effect.get("freedom")
            yield {
                "metric": metric,
                "est": effect["ratio"],
                "lo": low,
                "hi": high,
                "n": count,
                "p": effect.get("p_flip"),
            }


def attribution_rows(verdict: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row a slowdown factor, as a logarithm."""
    factors = verdict.get("factors") or {}
    for part in ("total", "acceptance", "context", "kernel", "residual"):
        if isinstance(factors.get(part), int | float) and factors[part] > 0:
            low, high = factors.get(f"{part}_ci") or (None, None)
            logs = [math.log(edge) if edge and edge > 0 else None for edge in (low, high)]
            yield {"part": part, "log_ratio": math.log(factors[part]), "lo": logs[0], "hi": logs[1]}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
