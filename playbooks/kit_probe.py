"""What an engine is and can do, from its own report."""

from __future__ import annotations

import os
from typing import Any, Mapping

from kit_end import Stop
from kit_engine import Engine
from kit_foreign import SGLANG_CAPS, VLLM_CAPS, sglang_info, vllm_info

_BUNDLED = (
    "openai.chat", "openai.completions", "stream", "usage.stream", "ignore_eos", "seed", "accept.length", "accept.histogram",
    "steps.exact", "steps.log", "metrics.prom", "cache.reported", "journal", "stage.times",
)  # fmt: skip


def probe(engine: Engine) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the engine says of itself, and the capabilities that follow from it. Raises Stop(missing) for a stranger."""
    told = engine.get("/server_info") or engine.get("/get_server_info") or {}
    if told.get("engine") == "bundled":
        info, caps = told, list(_BUNDLED)
    elif "max_total_num_tokens" in told or "speculative_algorithm" in told:
        info, caps = sglang_info(told), list(SGLANG_CAPS)
    else:
        models, version = engine.get("/v1/models") or {}, engine.get("/version") or {}
        if not any(one.get("owned_by") == "vllm" for one in models.get("data") or ()):
            known = "it is none of bundled, sglang and vllm"
            raise Stop(
                "missing", f"{engine.base_url} is an engine that playbooks do not know: {known}", "engine_unknown"
            )
        metrics = engine.text("/metrics")
        info, caps = vllm_info(version, models, metrics), list(VLLM_CAPS)
        engine.model = engine.model or models["data"][0].get("id")
        if metrics is not None:
            caps += ["steps.exact", "accept.length"]
    engine.kind = info["engine"]
    engine.drafting = (info.get("settings") or {}).get("mode", "off") != "off"
    if (
        engine.post("/tokenize", {"prompt": "a", **({"model": engine.model} if engine.model else {})}, optional=True)
        is not None
    ):
        caps.append("tokens.count")
    if engine.drafting:
        caps += ["spec.on"] if "accept.length" in caps else ["spec.on", "accept.length"]
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
        "release": info.get("release"),
        "unit": os.environ.get("DDT_UNIT"),
        "settings": info.get("settings"),
        "settings_sha": info.get("settings_sha"),
        "invocation": info.get("invocation"),
        "pid": info.get("pid"),
        "start_ts": info.get("started"),
        "model": model.get("name"),
        "model_sha": model.get("weights_sha"),
        "drafter": drafter.get("path"),
        "drafter_sha": drafter.get("weights_sha"),
        "block_size": drafter.get("block_size"),
        "drafter_window": drafter.get("max_position_embeddings"),
        "kv": info.get("kv"),
        "versions": info.get("versions"),
        "driver": info.get("driver"),
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
