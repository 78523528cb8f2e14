"""Whether a model folder is whole, and whether a drafter is made for it, from their config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

KNOWN_ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM")
KNOWN_TYPES = ("llama", "qwen3", "qwen3_moe", "deepseek_v3", "kimi_k2")  # `model_type`, of a nested text model too
OTHER_KINDS = ("dflash2", "domino", "dspark", "jetspec", "eagle", "medusa")
Row = tuple[str, str, Literal["pass", "warn", "fail"], str, str | None]


@dataclass(frozen=True)
class ModelFolders:
    """The two folders that the settings name, as they were found on the box. A config is None where there is none."""

    path: str
    config: Mapping[str, Any] | None
    missing_shards: tuple[str, ...]
    has_tokenizer: bool
    drafter: str
    drafter_config: Mapping[str, Any] | None
    weight_bytes: int | None = None
    """Of the model's shards together; None where one is missing."""

    @property
    def loaded_bytes(self) -> int | None:
        """What the weights take once loaded: those in 8-bit blocks become 16 bits each."""
        config = self.config or {}
        nested = config.get("text_config")
        text = {**config, **nested} if isinstance(nested, Mapping) else config
        kept = text.get("quantization_config")
        in_blocks = isinstance(kept, Mapping) and kept.get("quant_method") == "fp8"
        return self.weight_bytes * 2 if in_blocks and self.weight_bytes is not None else self.weight_bytes


def judge_model(found: ModelFolders) -> list[Row]:
    """Rows of (group, name, verdict, text, mend)."""
    if found.config is None:
        return [
            (
                "model",
                "folder",
                "fail",
                f"{found.path} holds no readable config.json",
                "ddtree restart HOST --set path=DIR",
            )
        ]
    rows: list[Row] = []
    architecture = next(iter(found.config.get("architectures") or ["none"]))
    nested = found.config.get("text_config")
    types = {found.config.get("model_type"), nested.get("model_type") if isinstance(nested, Mapping) else None}
    if architecture not in KNOWN_ARCHITECTURES and not types & set(KNOWN_TYPES):
        known = ", ".join(KNOWN_ARCHITECTURES)
        rows.append(
            ("model", "architecture", "fail", f"{architecture} is not known to the engine", f"it knows {known}")
        )
    if found.missing_shards:
        lost = ", ".join(found.missing_shards[:3]) + (" …" if len(found.missing_shards) > 3 else "")
        rows.append(("model", "weights", "fail", f"{found.path} lacks {lost}", "fetch the model anew"))
    if not found.has_tokenizer:
        text = "no tokenizer.json: prompts must come as token ids"
        rows.append(
            ("model", "tokenizer", "warn", text, f"to serve text, put the model's tokenizer.json into {found.path}")
        )
    if not rows:
        rows.append(("model", "folder", "pass", f"{found.path}: {architecture}", None))
    return [*rows, *_judge_drafter(found)]


def _judge_drafter(found: ModelFolders) -> list[Row]:
    if not found.drafter:
        return [
            (
                "drafter",
                "folder",
                "warn",
                "none: the engine decodes without speculation",
                "ddtree restart HOST --set drafter=DIR",
            )
        ]
    if found.drafter_config is None:
        return [("drafter", "folder", "fail", f"{found.drafter} holds no readable config.json", "name another folder")]
    wrong = misfits(found.config or {}, found.drafter_config)
    if wrong:
        return [
            ("drafter", "fit", "fail", f"{found.drafter}: {'; '.join(wrong)}", "use a drafter trained for this model")
        ]
    return [("drafter", "fit", "pass", f"{found.drafter}: made for this model", None)]


def misfits(target: Mapping[str, Any], drafter: Mapping[str, Any]) -> list[str]:
    """Why this drafter cannot work with this target; empty where nothing in the two configs speaks against it."""
    wrong = []
    for key, word in (("hidden_size", "hidden size"), ("vocab_size", "vocabulary")):
        ours, its = target.get(key), drafter.get(key)
        if ours is not None and its is not None and ours != its:
            wrong.append(f"{word} {its}, the model's is {ours}")
    layers = target.get("num_hidden_layers")
    taps = (drafter.get("dflash_config") or {}).get("target_layer_ids") or []
    beyond = [tap for tap in taps if layers is not None and tap >= layers]
    if beyond:
        wrong.append(f"taps layer {beyond[0]}, the model has {layers}")
    kind = str(next(iter(drafter.get("architectures") or ["none"])))
    if any(other in kind.lower() for other in OTHER_KINDS):
        wrong.append(f"{kind} is another kind of drafter than DFlash")
    return wrong
