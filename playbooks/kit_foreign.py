"""Engines that are not ours: what SGLang and vLLM say of themselves and of one request, in the kit's own words.

SGLang's own endpoint tells the exact number of verify steps of a request (`spec_verify_ct`); vLLM counts drafts in
Prometheus counters, which at one request at a time are its steps. Neither tells the engine's own decode time, so the time
between the first chunk and the last stands for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from kit_end import Stop

SGLANG_CAPS = (
    "openai.chat", "openai.completions", "stream", "usage.stream", "ignore_eos", "cache.reported", "cache.flush", "logprobs",
    "steps.exact", "steps.log",
)  # fmt: skip
VLLM_CAPS = (
    "openai.chat", "openai.completions", "stream", "usage.stream", "ignore_eos", "seed", "logprobs", "metrics.prom",
)  # fmt: skip
_DRAFTS = "vllm:spec_decode_num_drafts"
_COUNTERS = {_DRAFTS: "drafts", "vllm:spec_decode_num_accepted_tokens": "accepted"}
_SAMPLE = re.compile(r"^(?P<name>[\w:]+?)(?:_total)?(?:\{[^}]*\})?\s+(?P<value>[-+.\deE]+)")


def sglang_info(raw: Mapping[str, Any]) -> Dict[str, Any]:
    """SGLang's server info in the kit's shape."""
    algorithm = raw.get("speculative_algorithm")
    settings = {
        "mode": str(algorithm).lower() if algorithm else "off",
        "tree_budget": raw.get("speculative_ddtree_budget") or raw.get("speculative_num_draft_tokens"),
        "steps": raw.get("speculative_num_steps"),
        "topk": raw.get("speculative_eagle_topk"),
        "page_size": raw.get("page_size"),
        "kv_dtype": raw.get("kv_cache_dtype"),
        "attention": raw.get("attention_backend"),
        "quantization": raw.get("quantization"),
        "tensor_parallel": raw.get("tp_size"),
        "context_length": raw.get("context_length"),
        "simulated_acceptance": raw.get("simulate_acc_len"),
    }
    known = {name: value for name, value in settings.items() if value is not None}
    return {
        "engine": "sglang",
        "version": raw.get("version"),
        "model": {"name": raw.get("served_model_name") or raw.get("model_path")},
        "drafter": {"path": raw["speculative_draft_model_path"]} if raw.get("speculative_draft_model_path") else None,
        "settings": known,
        "settings_sha": _sha(known),
        "kv": {"capacity_tokens": raw.get("max_total_num_tokens"), "page_size": raw.get("page_size")},
    }


def vllm_info(version: Mapping[str, Any], models: Mapping[str, Any], metrics: Optional[str]) -> Dict[str, Any]:
    """What vLLM tells without its log: version, model, and whether it counts drafts."""
    served = (models.get("data") or [{}])[0]
    counted = metrics is not None and _DRAFTS in metrics
    settings = {"mode": "speculative" if counted else "off", "context_length": served.get("max_model_len")}
    return {
        "engine": "vllm",
        "version": version.get("version"),
        "model": {"name": served.get("root") or served.get("id")},
        "drafter": None,
        "settings": settings,
        "settings_sha": _sha(settings),
        "kv": {},
    }


def _sha(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:12]


def counters_of(metrics: str) -> Dict[str, float]:
    """vLLM's speculation counters, summed over engines; empty where it does not draft."""
    found: Dict[str, float] = {}
    for line in metrics.splitlines():
        match = _SAMPLE.match(line)
        name = _COUNTERS.get(match["name"]) if match else None
        if match and name:
            found[name] = found.get(name, 0.0) + float(match["value"])
    return found


def steps_between(before: Mapping[str, float], after: Mapping[str, float], tokens: Optional[int]) -> Optional[int]:
    """Verify steps of the one request in between; None where counters went backwards or cannot be right.

    Steps without a draft (at the very end of an answer, say) give one token each and are in no counter: tokens that
    neither were accepted nor came with a draft's step are steps of their own.
    """
    drafts, accepted = (after.get(name, 0.0) - before.get(name, 0.0) for name in ("drafts", "accepted"))
    if tokens is None or drafts <= 0 or accepted < 0:
        return None  # no drafts at all where it drafts: the counter is not wired, not an acceptance of nought
    steps = tokens - accepted
    return int(steps) if steps >= max(drafts, 1) else None


def sglang_body(prompt: Sequence[int] | str, max_tokens: int, ignore_eos: bool) -> Dict[str, Any]:
    """A request to SGLang's own endpoint."""
    asked = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": ignore_eos}
    return {**asked, "sampling_params": sampling, "stream": True}


def sglang_chunks(lines: Sequence[Tuple[int, bytes]]) -> Tuple[List[Tuple[int, int, List[int]]], Dict[str, Any], str]:
    """(arrival, tokens, ids) of each chunk that brought any, the last `meta_info`, and the text.

    Text and ids come as all there is so far or as what is new, by server option: lengths tell which. Raises Stop for an
    error in the stream.
    """
    chunks: List[Tuple[int, int, List[int]]] = []
    meta: Dict[str, Any] = {}
    text, count = "", 0
    ids: List[int] = []
    for stamp, data in lines:
        if data == b"[DONE]":
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise Stop("engine", f"the engine broke off: {str(chunk['error'])[:300]}", "engine_broke_off")
        meta = chunk.get("meta_info") or meta
        said, new_ids = chunk.get("text") or "", list(chunk.get("output_ids") or ())
        text = said if said.startswith(text) else text + said
        fresh = new_ids[len(ids) :] if new_ids[: len(ids)] == ids and len(new_ids) > len(ids) else new_ids
        ids += fresh
        total = int(meta.get("completion_tokens") or len(ids))
        if total > count:
            chunks.append((stamp, total - count, fresh))
            count = total
    return chunks, meta, text


def sglang_steps(meta: Mapping[str, Any], tokens: Optional[int], drafting: bool) -> Optional[int]:
    """Exact steps: the engine's own count where it drafts, a step a token where it does not."""
    counted = meta.get("spec_verify_ct")
    if counted:
        return int(counted)
    return None if drafting or not tokens else max(tokens - 1, 0) or None
