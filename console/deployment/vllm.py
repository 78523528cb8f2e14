"""vLLM as a Deployment (facts: its arguments, endpoints and metrics as of 2026).

Names are the bundled engine's where they mean the same. `block_size` counts the seed token, so it is one more than
vLLM's `num_speculative_tokens`. Speculation stands in one JSON argument; keys of it that the console does not know stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console.deployment.argument_file import parse_argument_file
from console.deployment.base import Endpoint, ModelFacts
from console.deployment.capacity import Capacity
from console.deployment.foreign import check_context_length, default_values, edited, need_drafter, predicted_pool
from console.deployment.options import Option, read_options
from console.deployment.settings import Setting, Value
from console.deployment.sglang import api_key_in, metric
from console.errors import UsageError
from console.telemetry.reader import LogReader
from console.telemetry.sample import Sample
from console.telemetry.vllm import VllmReader

MODES = ("off", "dflash", "ddtree", "dspark", "eagle", "eagle3", "mtp", "draft_model", "medusa", "ngram", "suffix")
DRAFTING = ("dflash", "ddtree", "dspark", "eagle", "eagle3", "draft_model", "medusa")
KV_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
PAGE_SIZES = (0, 1, 8, 16, 32, 64, 128, 256)
MEMORY_FRACTION = 0.9
LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
SPECULATION = "--speculative-config"
FAKES = ("synthetic_acceptance_rates", "synthetic_acceptance_length")


def _count(name: str, table: str, help: str, default: int = 0, least: int = 0) -> Setting:
    return Setting(name, table, "int", default, help, minimum=least, automatic=default)


def _text(name: str, help: str) -> Setting:
    return Setting(name, "server", "text", "", help, automatic="")


OPTIONS: tuple[Option, ...] = (
    Option(Setting("path", "model", "path", "", "model folder or hub name"), ("--model",)),
    Option(
        _count("context_length", "context", "longest prompt plus output, in tokens; 0: the model's own"),
        ("--max-model-len",),
        shown="max_model_len",
    ),
    Option(_count("page_size", "kv", "tokens in a page; 0: as the attention backend has it"), ("--block-size",), shown="block_size"),
    Option(
        Setting("kv_dtype", "kv", "choice", "auto", "element type of the KV pool", choices=KV_DTYPES, automatic="auto"),
        ("--kv-cache-dtype",),
        shown="cache_dtype",
    ),
    Option(
        Setting(
            "memory_fraction", "kv", "float", MEMORY_FRACTION, "share of memory it fills",
            minimum=0.01, maximum=0.99, automatic=MEMORY_FRACTION,
        ),
        ("--gpu-memory-utilization",),
        shown="gpu_memory_utilization",
    ),
    Option(
        Setting("prefix_cache", "kv", "bool", True, "keep pages for prompts that begin alike"),
        ("--no-enable-prefix-caching",),
        "off",
    ),
    Option(Setting("host", "server", "text", "127.0.0.1", "address it listens on"), ("--host",)),
    Option(Setting("port", "server", "int", 8000, "TCP port it listens on", minimum=1, maximum=65535), ("--port",)),
    Option(_count("max_running_requests", "server", "requests decoded at the same time; 0: its own choice"), ("--max-num-seqs",)),
    Option(_text("reasoning_parser", "format of the model's reasoning"), ("--reasoning-parser",)),
    Option(_text("tool_parser", "format of the model's tool calls"), ("--tool-call-parser",)),
    Option(
        _count("tensor_parallel", "parallel", "GPUs the model is spread over", 1, 1),
        ("--tensor-parallel-size", "-tp"),
    ),
    Option(
        Setting("attention_backend", "engine", "text", "", "kernels for attention; empty: its own choice", automatic=""),
        ("--attention-backend",),
    ),
    Option(Setting("cuda_graph", "engine", "bool", True, "decode from captured graphs"), ("--enforce-eager",), "off"),
)  # fmt: skip
SPECULATIVE: tuple[Setting, ...] = (
    Setting("mode", "speculation", "choice", "off", "way of speculation", choices=MODES, automatic="off"),
    Setting("drafter", "speculation", "path", "", "drafter folder or hub name", automatic=""),
    _count("block_size", "speculation", "tokens of a draft, the seed included; 0: its own choice"),
    _count("tree_budget", "speculation", "drafted nodes verified at once (ddtree); 0: its own choice"),
)
# Ours -> the key in --speculative-config.
KEYS = {"mode": "method", "drafter": "model", "block_size": "num_speculative_tokens", "tree_budget": "ddtree_budget"}


@dataclass(frozen=True)
class Vllm:
    """See console.deployment.base.Deployment. `variable` holds the arguments in the unit's EnvironmentFile."""

    variable: str = "VLLM_ARGS"
    identifier: str = ""
    kind: str = "vllm"
    suffix: str = ".env"
    info_paths: tuple[str, ...] = ("/v1/models", "/metrics", "/version")

    @property
    def settings(self) -> tuple[Setting, ...]:
        return (*(option.setting for option in OPTIONS), *SPECULATIVE)

    def reader(self) -> LogReader:
        return VllmReader()

    def values(self, text: str) -> dict[str, Value]:
        words = parse_argument_file(text, self.variable).words
        given = read_options(words, OPTIONS)
        if words and not words[0].startswith("-"):  # `vllm serve MODEL …`
            given["path"] = words[0]
        given |= _speculation_values(speculation_in(words))
        return default_values(self.settings, given)

    def environment(self, text: str) -> Mapping[str, str]:
        return parse_argument_file(text, self.variable).environment

    def edit(self, text: str, changes: Mapping[str, Value]) -> str:
        file = parse_argument_file(text, self.variable)
        plain = dict(changes)
        words = list(file.words)
        if "path" in plain and words and not words[0].startswith("-"):
            words[0] = str(plain.pop("path"))
        edited_words = list(edited(type(file)(file.lines, file.at, file.name, tuple(words)), plain, OPTIONS))
        speculative = {name: value for name, value in changes.items() if name in KEYS}
        if speculative:
            edited_words = _with_speculation(edited_words, _speculation(speculation_in(words), speculative))
        return text if tuple(edited_words) == file.words else file.with_words(tuple(edited_words))

    def read_back(self, text: str) -> dict[str, Value]:
        values = self.values(text)
        return {
            option.name: values[option.name]
            for option in OPTIONS
            if option.shown and values[option.name] != option.setting.automatic
        }

    def from_start(self, sample: Sample) -> dict[str, Value]:
        length = sample.extra.get("context_length")
        return {"context_length": length} if isinstance(length, int) else {}

    def endpoint(self, text: str) -> Endpoint:
        values = self.values(text)
        words = parse_argument_file(text, self.variable).words
        return Endpoint(str(values["host"]), int(values["port"]), api_key=api_key_in(words))

    def gate(self) -> dict[str, Any]:
        labels = {option.name: option.shown for option in OPTIONS if option.shown and option.name != "context_length"}
        return {
            "ready_path": "/health",
            "strict": False,
            "names_model": True,
            "sources": [
                {"path": "/v1/models", "at": ["data", 0], "names": {"context_length": "max_model_len"}},
                {"path": "/metrics", "metric": "vllm:cache_config_info", "names": labels},
            ],
            "running": {"path": "/metrics", "metric": "vllm:num_requests_running"},
        }

    def check_argv(self, python: str) -> list[str]:
        return []

    def inspect(self, text: str, model: ModelFacts | None) -> tuple[str, ...]:
        file = parse_argument_file(text, self.variable)
        values = self.values(text)
        if not values["path"]:
            raise UsageError("no model is named", where="path", mend="set it to a model folder on the box")
        need_drafter(values, DRAFTING)
        check_context_length(values, model, overridden=file.environment.get(LONGER, "0") not in ("0", ""), how=LONGER)
        if values["page_size"] not in PAGE_SIZES:
            sizes = ", ".join(map(str, PAGE_SIZES[1:]))
            raise UsageError(
                f"{values['page_size']} is no page size of vLLM", where="page_size", mend=f"use one of {sizes}"
            )
        if values["block_size"] == 1:
            raise UsageError("1 drafts nothing: it counts the seed token", where="block_size", mend="use 2 or more")
        if values["mode"] == "ddtree" and values["attention_backend"] != "TREE_ATTN":
            raise UsageError(
                f"is {values['attention_backend'] or 'left to the engine'}; ddtree needs TREE_ATTN in vLLM",
                where="attention_backend",
                mend="set attention_backend=TREE_ATTN, or mode=dflash",
            )
        fakes = [name for name in FAKES if speculation_in(file.words).get(name)]
        return tuple(f"{name} is set: acceptance is made up, and no figure is real" for name in fakes)

    def capacity(self, values: Mapping[str, Value], model: ModelFacts, memory_bytes: int | None) -> Capacity | None:
        return predicted_pool(values, model, memory_bytes, float(values["memory_fraction"]))

    def server_info(self, answers: Mapping[str, bytes]) -> Mapping[str, Any] | None:
        return shown_by(answers)


# --- the one argument that holds speculation


def speculation_in(words: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """The object behind --speculative-config; {} without one. Raises UsageError for JSON that is none."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == SPECULATION:
            text = value if equals else words[at + 1] if at + 1 < len(words) else ""
            try:
                found = json.loads(text)
            except ValueError as error:
                raise UsageError(f"is no JSON: {error}", where=SPECULATION) from error
            if not isinstance(found, dict):
                raise UsageError("is no JSON object", where=SPECULATION)
            return found
    return {}


def _speculation_values(config: Mapping[str, Any]) -> dict[str, Value]:
    given = {name: config[key] for name, key in KEYS.items() if config.get(key) is not None}
    if "block_size" in given:
        given["block_size"] = int(given["block_size"]) + 1
    if config.get("ddtree_enabled"):  # the builds that keep the method's name
        given["mode"] = "ddtree"
    settings = {setting.name: setting for setting in SPECULATIVE}
    return {name: settings[name].accept(value) for name, value in given.items()}


def _speculation(config: dict[str, Any], changes: Mapping[str, Value]) -> dict[str, Any]:
    if changes.get("mode") == "off":
        return {}
    out = dict(config)
    kept_name = "ddtree_enabled" in config
    for name, value in changes.items():
        unset = next(setting.automatic for setting in SPECULATIVE if setting.name == name)
        if value == unset:
            out.pop(KEYS[name], None)
        elif name == "block_size":
            out[KEYS[name]] = int(value) - 1
        elif name == "mode" and kept_name:
            out["method"], out["ddtree_enabled"] = ("dflash", True) if value == "ddtree" else (value, False)
        else:
            out[KEYS[name]] = value
    return out


def _with_speculation(words: list[str], config: Mapping[str, Any]) -> list[str]:
    at = next((at for at, word in enumerate(words) if word.partition("=")[0] == SPECULATION), len(words))
    behind = at + (1 if at < len(words) and "=" in words[at] else 2)
    new = [SPECULATION, json.dumps(config, separators=(",", ":"))] if config else []
    return [*words[:at], *new, *words[behind:]]


# --- what it shows of itself


def shown_by(answers: Mapping[str, bytes]) -> Mapping[str, Any] | None:
    """What vLLM tells over HTTP, in the shape of the bundled engine's `/server_info`; None without an answer."""
    try:
        card = json.loads(answers.get("/v1/models", b""))["data"][0]
        version = json.loads(answers.get("/version", b"{}")).get("version")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    if not isinstance(card, dict) or "id" not in card:
        return None
    metrics = answers.get("/metrics", b"").decode("utf-8", "replace")
    line = next((line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")), "")
    labels = dict(
        part.split('="', 1) for part in line.partition("{")[2].rpartition('"}')[0].split('",') if '="' in part
    )
    settings: dict[str, Any] = {
        option.name: option.setting.accept(labels[option.shown])
        for option in OPTIONS
        if option.shown in labels and option.name in ("page_size", "memory_fraction")
    }
    if "cache_dtype" in labels:
        settings["kv_dtype"] = labels["cache_dtype"]
    if card.get("max_model_len") is not None:
        settings["context_length"] = card["max_model_len"]
    return {
        "engine": "vllm",
        "version": version,
        "model": {"name": card["id"], "max_position_embeddings": card.get("max_model_len")},
        "settings": settings,
        "requests": {
            "running": metric(metrics, "vllm:num_requests_running"),
            "queued": metric(metrics, "vllm:num_requests_waiting"),
        },
        "kv": _pool(metrics, labels, settings.get("page_size")),
    }


def _pool(metrics: str, labels: Mapping[str, str], page_size: Any) -> dict[str, Any]:
    pages = labels.get("num_gpu_blocks", "")
    shares = [
        line.rpartition(" ")[2]
        for line in metrics.splitlines()
        if line.startswith(("vllm:kv_cache_usage_perc{", "vllm:gpu_cache_usage_perc{"))
    ]
    if not pages.isdigit() or not shares or not isinstance(page_size, int) or not page_size:
        return {}
    try:
        used = round(float(shares[0]) * int(pages))
    except (ValueError, OverflowError):
        return {}
    return {"pages_used": used, "pages_total": int(pages), "page_size": page_size}
