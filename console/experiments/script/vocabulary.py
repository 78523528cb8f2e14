"""The closed lists of the header: kinds, engines, effects, capabilities and verdict classes (measurement.md 3.5, 4.2)."""

from __future__ import annotations

API = 1
KINDS = ("probe", "sweep", "ab", "check", "diagnose")
ENGINES = ("bundled", "sglang", "vllm", "llamacpp")
EFFECTS = ("load", "restarts_service", "edits_unit", "flushes_cache", "writes_gpu_clock")
CAPABILITIES = (
    "openai.chat", "openai.completions", "stream", "usage.stream", "ignore_eos", "tokens.count", "logprobs", "seed",
    "spec.on", "accept.length", "accept.histogram", "steps.exact", "steps.log", "metrics.prom", "cache.flush",
    "cache.reported", "journal", "unit.restart", "unit.edit", "sim.acc_len", "stage.times",
)  # fmt: skip
VERDICTS = (
    "not_comparable", "inconsistent_data", "step_regression", "acceptance_regression", "contention", "throttled",
    "network", "explained", "unexplained", "inconclusive", "faster", "slower", "equivalent", "small", "lossless",
    "near_tie", "broken", "healthy", "commit_collapsed", "acceptance_drift", "engine_stalled", "buffered_stream", "void",
)  # fmt: skip
ENGINE_FACTS = ("engine.max_context", "engine.block_size", "engine.page_size")
