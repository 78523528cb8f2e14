"""SGLang as a Deployment (facts: its server arguments, endpoints and metrics as of 2026).

Names are the bundled engine's where they mean the same. `block_size` counts the seed token, as
`--speculative-num-draft-tokens` does. DDTREE exists only in builds that carry it; what they cannot do is refused here,
before a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.deployment.argument_file import parse_argument_file
from console.deployment.base import Endpoint, ModelFacts
from console.deployment.capacity import Capacity
from console.deployment.foreign import (
    check_context_length,
    edited,
    need_drafter,
    predicted_pool,
    shown_names,
    to_be_shown,
    values_of,
)
from console.deployment.options import Option
from console.deployment.settings import Setting, Value
from console.errors import UsageError
from console.telemetry.reader import LogReader
from console.telemetry.sample import Sample
from console.telemetry.sglang import SglangReader

MODES = ("off", "dflash", "ddtree", "dspark", "eagle", "eagle3", "nextn", "standalone", "ngram")
DRAFTING = ("dflash", "ddtree", "dspark", "eagle", "eagle3", "standalone")
EAGLES = ("eagle", "eagle3", "nextn", "standalone")
PAGED_TREES = ("flashinfer", "fa3", "triton")
"""Attention backends whose newest releases draft a tree (topk above 1) over pages of several tokens; flashinfer was first."""
KV_DTYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1")
MEMORY_FRACTION = 0.88  # about what it takes when it is not told
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
FAKES = "SGLANG_SIMULATE_ACC_LEN"


def _text(name: str, table: str, help: str, kind: Any = "text") -> Setting:
    return Setting(name, table, kind, "", help, automatic="")


def _count(name: str, table: str, help: str, default: int = 0, least: int = 0) -> Setting:
    return Setting(name, table, "int", default, help, minimum=least, automatic=default)


OPTIONS: tuple[Option, ...] = (
    Option(Setting("path", "model", "path", "", "model folder or hub name"), ("--model-path", "--model"), shown="model_path"),
    Option(
        _text("drafter", "model", "drafter folder or hub name; empty: none", "path"),
        ("--speculative-draft-model-path", "--speculative-draft-model"),
        shown="speculative_draft_model_path",
    ),
    Option(
        _count("context_length", "context", "longest prompt plus output, in tokens; 0: the model's own"),
        ("--context-length",),
        shown="context_length",
    ),
    Option(_count("page_size", "kv", "tokens in a page; 0: as the attention backend has it"), ("--page-size",), shown="page_size"),
    Option(
        Setting("kv_dtype", "kv", "choice", "auto", "element type of the KV pool", choices=KV_DTYPES, automatic="auto"),
        ("--kv-cache-dtype",),
        shown="kv_cache_dtype",
    ),
    Option(
        Setting(
            "memory_fraction", "kv", "float", 0.0, "share of memory for weights and pool; 0: its own choice",
            minimum=0.0, maximum=0.99, automatic=0.0,
        ),
        ("--mem-fraction-static",),
        shown="mem_fraction_static",
    ),
    Option(
        Setting("prefix_cache", "kv", "bool", True, "keep pages for prompts that begin alike"),
        ("--disable-radix-cache",),
        "off",
    ),
    Option(
        Setting("mode", "speculation", "choice", "off", "way of speculation", choices=MODES, automatic="off"),
        ("--speculative-algorithm", "--speculative-algo"),
        shown="speculative_algorithm",
        spelling={mode: mode.upper() for mode in MODES},
    ),
    Option(
        _count("block_size", "speculation", "tokens of a draft, the seed included; 0: the drafter's own"),
        ("--speculative-num-draft-tokens", "--speculative-dflash-block-size"),
        shown="speculative_num_draft_tokens",
    ),
    Option(
        _count("tree_budget", "speculation", "drafted nodes verified at once (ddtree); 0: its own choice"),
        ("--speculative-ddtree-budget",),
        shown="speculative_ddtree_budget",
    ),
    Option(
        _count("draft_window", "speculation", "context tokens the drafter looks back on; 0: all"),
        ("--speculative-dflash-draft-window-size", "--speculative-draft-window-size"),
        shown="speculative_dflash_draft_window_size",
    ),
    Option(Setting("host", "server", "text", "127.0.0.1", "address it listens on"), ("--host",)),
    Option(Setting("port", "server", "int", 30000, "TCP port it listens on", minimum=1, maximum=65535), ("--port",)),
    Option(
        _count("max_running_requests", "server", "requests decoded at the same time; 0: its own choice"),
        ("--max-running-requests",),
        shown="max_running_requests",
    ),
    Option(_text("reasoning_parser", "server", "format of the model's reasoning"), ("--reasoning-parser",), shown="reasoning_parser"),
    Option(_text("tool_parser", "server", "format of the model's tool calls"), ("--tool-call-parser",), shown="tool_call_parser"),
    Option(
        _count("tensor_parallel", "parallel", "GPUs the model is spread over", 1, 1),
        ("--tp-size", "--tp", "--tensor-parallel-size"),
        shown="tp_size",
    ),
    Option(_text("attention_backend", "engine", "kernels for attention; empty: its own choice"), ("--attention-backend",), shown="attention_backend"),
    Option(Setting("cuda_graph", "engine", "bool", True, "decode from captured graphs"), ("--disable-cuda-graph",), "off"),
    Option(
        Setting("overlap_schedule", "engine", "bool", True, "schedule the next step while this one runs"),
        ("--disable-overlap-schedule",),
        "off",
    ),
    Option(Setting("metrics", "log", "bool", False, "serve /metrics"), ("--enable-metrics",), "on"),
)  # fmt: skip


@dataclass(frozen=True)
class Sglang:
    """See console.deployment.base.Deployment. `variable` holds the arguments in the unit's EnvironmentFile."""

    variable: str = "SGLANG_ARGS"
    identifier: str = ""
    kind: str = "sglang"
    suffix: str = ".env"
    info_paths: tuple[str, ...] = ("/server_info", "/metrics")

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(option.setting for option in OPTIONS)

    def reader(self) -> LogReader:
        return SglangReader()

    def values(self, text: str) -> dict[str, Value]:
        return values_of(text, self.variable, OPTIONS)

    def environment(self, text: str) -> Mapping[str, str]:
        return parse_argument_file(text, self.variable).environment

    def edit(self, text: str, changes: Mapping[str, Value]) -> str:
        file = parse_argument_file(text, self.variable)
        words = edited(file, changes, OPTIONS)
        return text if words == file.words else file.with_words(words)

    def read_back(self, text: str) -> dict[str, Value]:
        return to_be_shown(self.values(text), OPTIONS)

    def from_start(self, sample: Sample) -> dict[str, Value]:
        told = {"context_length": "context_len", "max_running_requests": "max_running_requests"}
        return {name: sample.extra[key] for name, key in told.items() if isinstance(sample.extra.get(key), int)}

    def endpoint(self, text: str) -> Endpoint:
        values = self.values(text)
        words = parse_argument_file(text, self.variable).words
        return Endpoint(str(values["host"]), int(values["port"]), api_key=api_key_in(words))

    def gate(self) -> dict[str, Any]:
        return {
            "ready_path": "/health",
            "strict": False,
            "names_model": True,
            "sources": [{"path": "/server_info", "at": [], "names": shown_names(OPTIONS)}],
            "running": {"path": "/metrics", "metric": "sglang:num_running_reqs"},
        }

    def check_argv(self, python: str) -> list[str]:
        return []

    def inspect(self, text: str, model: ModelFacts | None) -> tuple[str, ...]:
        file = parse_argument_file(text, self.variable)
        values, environment = self.values(text), file.environment
        if not values["path"]:
            raise UsageError("no model is named", where="path", mend="set it to a model folder on the box")
        need_drafter(values, DRAFTING)
        overridden = environment.get(LONGER, "0") not in ("0", "")
        check_context_length(values, model, overridden=overridden, how=LONGER)
        if not overridden:
            _check_stretched_context(values, model)
        if values["mode"] in EAGLES:
            _check_eagle_tree(values, file.words)
        if values["mode"] in ("dflash", "ddtree"):
            _check_block_drafting(values, file.words)
        if values["mode"] == "ddtree":
            _check_ddtree(values, file.words)
        return (*_warnings(values, environment), *_eagle_tree_warnings(values, file.words))

    def capacity(self, values: Mapping[str, Value], model: ModelFacts, memory_bytes: int | None) -> Capacity | None:
        return predicted_pool(values, model, memory_bytes, float(values["memory_fraction"]) or MEMORY_FRACTION)

    def server_info(self, answers: Mapping[str, bytes]) -> Mapping[str, Any] | None:
        return shown_by(answers)


def _check_stretched_context(values: Mapping[str, Value], model: ModelFacts | None) -> None:
    """SGLang does not count a RoPE factor whose original length the config names: beyond what is stated it wants a flag."""
    context = int(values["context_length"])
    if model is None or model.target.stated_positions is None or context <= model.target.stated_positions:
        return
    reach, stated = model.target.max_position_embeddings, model.target.stated_positions
    raise UsageError(
        f"{context} is above the {stated} that SGLang takes from the config, although RoPE scaling reaches {reach}",
        where="context_length",
        mend=f"set {LONGER}=1 in the environment file, or use {stated} or less",
    )


def _tree_on_pages(values: Mapping[str, Value], words: Sequence[str]) -> tuple[str, int] | None:
    """(topk, page size) of an EAGLE tree over pages of several tokens; None for a chain, or pages of one token."""
    topk, page = _after(words, "--speculative-eagle-topk"), int(values["page_size"])
    return (topk, page) if topk.isdigit() and int(topk) > 1 and page > 1 else None


def _check_eagle_tree(values: Mapping[str, Value], words: Sequence[str]) -> None:
    """A draft tree over pages of several tokens reads other branches' pages, but in backends made for it."""
    both = _tree_on_pages(values, words)
    backend = str(values["attention_backend"])
    if both is not None and backend and backend not in PAGED_TREES:
        raise UsageError(
            f"{both[1]} does not work with --speculative-eagle-topk {both[0]} on {backend}",
            where="page_size",
            mend=f"set page_size=1, or attention_backend to one of {', '.join(PAGED_TREES)}",
        )


def _eagle_tree_warnings(values: Mapping[str, Value], words: Sequence[str]) -> list[str]:
    both = _tree_on_pages(values, words) if values["mode"] in EAGLES else None
    if both is None or values["attention_backend"] == "flashinfer":
        return []
    return [
        f"page_size {both[1]} with --speculative-eagle-topk {both[0]}: older releases answer wrongly or crash with it on"
        " any backend but flashinfer; ask lossless after the restart"
    ]


def _check_block_drafting(values: Mapping[str, Value], words: Sequence[str]) -> None:
    """What DFLASH, and with it DDTREE, cannot be combined with."""
    if "--enable-dp-attention" in words:
        raise UsageError(f"{values['mode']} does not work with --enable-dp-attention", where="mode")
    if _after(words, "--pp-size", "--pipeline-parallel-size") not in ("", "1"):
        raise UsageError(f"{values['mode']} needs --pp-size 1", where="mode")
    if "--enable-mixed-chunk" in words:
        raise UsageError(f"{values['mode']} does not work with --enable-mixed-chunk", where="mode")
    blocks = {_after(words, flag) for flag in ("--speculative-num-draft-tokens", "--speculative-dflash-block-size")} - {
        ""
    }
    if len(blocks) > 1:
        raise UsageError(f"is given twice and differently: {' and '.join(sorted(blocks))}", where="block_size")
    window, block = int(values["draft_window"]), int(values["block_size"])
    if window and block and window < block:
        raise UsageError(
            f"{window} is less than the block of {block}", where="draft_window", mend=f"use {block} or more"
        )


def _check_ddtree(values: Mapping[str, Value], words: Sequence[str]) -> None:
    """What DDTREE cannot do in SGLang: the tree needs single-token pages and the one backend with tree masks."""
    if int(values["page_size"]) > 1:
        raise UsageError(
            f"{values['page_size']} is too much for ddtree, which needs pages of 1 token in SGLang",
            where="page_size",
            mend="set page_size=1, or mode=dflash",
        )
    if values["attention_backend"] != "triton":
        now = values["attention_backend"] or "left to the engine"
        raise UsageError(
            f"is {now}; ddtree's tree masks exist in the triton backend alone",
            where="attention_backend",
            mend="set attention_backend=triton, or mode=dflash",
        )
    if values["overlap_schedule"]:
        raise UsageError("has to be off for ddtree", where="overlap_schedule", mend="set overlap_schedule=false")
    if "--speculative-use-rejection-sampling" in words:
        raise UsageError("ddtree does not work with --speculative-use-rejection-sampling", where="mode")


def _warnings(values: Mapping[str, Value], environment: Mapping[str, str]) -> list[str]:
    out = []
    if FAKES in environment:
        out.append(f"{FAKES} is set in the environment file: acceptance is made up, and no figure is real")
    if values["mode"] == "ddtree":
        out.append("ddtree in SGLang answers greedily at every temperature, and takes no grammar and no logprobs")
        if int(values["tensor_parallel"]) > 1:
            out.append(
                "ddtree in SGLang was seen to draft wrong tokens with tensor_parallel above 1: compare commit lengths"
            )
    return out


def _after(words: Sequence[str], *flags: str) -> str:
    """The value of an option the console does not set; "" without it."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            return value if equals else words[at + 1] if at + 1 < len(words) else ""
    return ""


def api_key_in(words: Sequence[str]) -> str:
    """The key requests must carry; "" without one."""
    return _after(words, "--api-key")


def shown_by(answers: Mapping[str, bytes]) -> Mapping[str, Any] | None:
    """SGLang's `/server_info` in the shape of the bundled engine's, which the console reads; None without an answer."""
    try:
        info = json.loads(answers.get("/server_info", b""))
    except ValueError:
        return None
    if not isinstance(info, dict) or "model_path" not in info:
        return None
    states = info.get("internal_states")
    state: Mapping[str, Any] = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    settings = {
        option.name: info[option.shown] for option in OPTIONS if option.shown and info.get(option.shown) is not None
    }
    if "mode" in settings:
        settings["mode"] = str(settings["mode"]).lower()
    metrics = answers.get("/metrics", b"").decode("utf-8", "replace")
    return {
        "engine": "sglang",
        "version": info.get("version"),
        "model": {
            "name": info.get("served_model_name") or str(info["model_path"]).rstrip("/").rpartition("/")[2],
            "max_position_embeddings": info.get("context_length"),
        },
        "drafter": {
            "path": info.get("speculative_draft_model_path"),
            "block_size": info.get("speculative_num_draft_tokens"),
        },
        "settings": settings,
        "requests": {
            "running": metric(metrics, "sglang:num_running_reqs"),
            "queued": metric(metrics, "sglang:num_queue_reqs"),
        },
        "kv": _pool(info, state, metric(metrics, "sglang:num_used_tokens")),
    }


def _pool(info: Mapping[str, Any], state: Mapping[str, Any], used_tokens: int | None) -> dict[str, Any]:
    usage = state.get("memory_usage")
    tokens = usage.get("token_capacity") if isinstance(usage, dict) else None
    page = info.get("page_size") or 1
    if not isinstance(tokens, int) or not isinstance(page, int) or used_tokens is None:
        return {}
    return {"pages_used": -(-used_tokens // page), "pages_total": tokens // page, "page_size": page}


def metric(text: str, name: str) -> int | None:
    """A Prometheus metric summed over its labels, as a whole number; None where it is not there."""
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    try:
        return int(sum(map(float, found))) if found else None
    except (ValueError, OverflowError):
        return None
