"""What an engine is and can do, from its own report."""

from __future__ import annotations

import os
from typing import Any, Mapping

from kit_end import Stop
from kit_engine import Engine

_BUNDLED = (
    "openai.chat", "openai.completions", "stream", "usage.stream", "ignore_eos", "seed", "accept.length", "accept.histogram",
    "steps.exact", "steps.log", "metrics.prom", "cache.reported", "journal", "stage.times",
)  # fmt: skip


def probe(engine: Engine) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the engine says of itself, and the capabilities that follow from it."""
    info = engine.get("/server_info") or {}
    if info.get("engine") != "bundled":
        raise Stop(
            "missing",
            f"{engine.base_url} is not the bundled engine, the only one this playbook knows",
            "engine_unknown",
        )
    caps = list(_BUNDLED)
    if engine.post("/tokenize", {"prompt": "a"}, optional=True) is not None:
        caps.append("tokens.count")
    if (info.get("settings") or {}).get("mode", "off") != "off":
        caps.append("spec.on")
    if os.environ.get("DDT_RESTARTS"):
        caps += ["unit.restart", "unit.edit"]
    return info, tuple(caps)


def environment(info: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `env` event: what makes two runs comparable."""
    model, drafter, gpus = info.get("model") or {}, info.get("drafter") or {}, info.get("gpus") or []
    host = info.get("host") or {}
    return {
        "engine": info.get("engine"),
        "version": info.get("version"),
        "settings": info.get("settings"),
        "settings_sha": info.get("settings_sha"),
        "invocation": info.get("invocation"),
        "pid": info.get("pid"),
        "start_ts": info.get("started"),
        "model": model.get("name"),
        "drafter": drafter.get("path"),
        "block_size": drafter.get("block_size"),
        "kv": info.get("kv"),
        "versions": info.get("versions"),
        "gpu": [gpu.get("name") for gpu in gpus],
        "clocks": {str(gpu.get("index")): gpu.get("sm_clock_mhz") for gpu in gpus},
        "host": {name: host.get(name) for name in ("cpu_count", "load_1m", "cpu_percent")} if host else None,
        "throttle": {str(gpu.get("index")): gpu.get("throttle") for gpu in gpus if gpu.get("throttle")},
    }


def vocabulary(info: Mapping[str, Any]) -> int:
    """Token ids below this are safe to send to a model that has no tokenizer."""
    return int((info.get("model") or {}).get("vocab_size") or 64)


def max_context(engine: Engine, info: Mapping[str, Any]) -> int:
    """Tokens that one request may reach: what the model serves and what the pool holds."""
    models = (engine.get("/v1/models") or {}).get("data") or [{}]
    limits = [models[0].get("max_model_len"), (info.get("kv") or {}).get("capacity_tokens")]
    known = [int(limit) for limit in limits if limit]
    if not known:
        raise Stop("missing", "the engine does not say how long a context it serves", "capability_missing")
    return min(known)
