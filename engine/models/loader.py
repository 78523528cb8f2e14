"""load_target: a Hugging Face folder with safetensors -> Decoder.

The model is built without storage; every parameter is then found in the checkpoint by name, its parts fused, its shape
checked. What is missing and what is left over are both errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.errors import EngineError
from engine.models import llama, qwen3
from engine.models.config import ModelConfig, architecture_name, language_model, read_json
from engine.models.decoder import Decoder

FAMILIES: tuple[ModuleType, ...] = (llama, qwen3)

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""A fused projection and the checkpoint's names of its parts, in row order."""

_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_DERIVED = ("rotary_emb.inv_freq",)  # old checkpoints store these; they follow from the config


def read_model_config(folder: Path) -> ModelConfig:
    """The target's config, whatever form it is written in. Raises EngineError for an architecture not known here."""
    raw = read_json(folder / "config.json")
    names = {architecture_name(raw), raw.get("model_type"), language_model(raw).get("model_type")}
    for family in FAMILIES:
        if names & set(family.ARCHITECTURES):
            return family.read_config(raw, str(folder))
    known = ", ".join(family.ARCHITECTURES[0] for family in FAMILIES)
    raise EngineError(
        f"the architecture {architecture_name(raw)} is not one the engine knows",
        where=str(folder),
        mend=f"it knows {known}",
    )


def load_target(folder: Path | str, dtype: torch.dtype) -> Decoder:
    """The target model of a folder, its weights cast to `dtype`, frozen. Raises EngineError in one clear line."""
    folder = Path(folder)
    config = read_model_config(folder)
    with torch.device("meta"):
        model = Decoder(config)
    tensors = read_tensors(folder)
    if "text_config" in read_json(folder / "config.json"):
        tensors = {name: tensor for name, tensor in tensors.items() if "vision" not in name and "projector" not in name}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    assign_parameters(model, tensors, dtype, where=str(folder))
    return model.requires_grad_(False).eval()


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files by name, prefixes such as `model.` taken off."""
    tensors: dict[str, Tensor] = {}
    for shard in _shards(folder):
        try:
            loaded = load_file(shard)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"cannot read {shard.name} ({error})", where=str(folder)) from error
        tensors.update((_bare(name), tensor) for name, tensor in loaded.items() if not name.endswith(_DERIVED))
    return tensors


def assign_parameters(model: nn.Module, tensors: dict[str, Tensor], dtype: torch.dtype, *, where: str) -> None:
    """Give every parameter of `model` (built on the meta device) its tensor; `tensors` is used up.

    Raises EngineError naming the first missing tensors, a wrong shape with both shapes, or the first left over.
    """
    for name, parameter in list(model.named_parameters()):
        sources = checkpoint_names(name)
        missing = [source for source in sources if source not in tensors]
        if missing:
            raise EngineError(f"the weights lack {', '.join(missing)}", where=where)
        parts = [tensors.pop(source) for source in sources]
        tensor = (torch.cat(parts) if len(parts) > 1 else parts[0]).to(dtype)
        if tensor.shape != parameter.shape:
            shapes = f"{list(tensor.shape)}, and the config asks for {list(parameter.shape)}"
            raise EngineError(f"{' + '.join(sources)} has shape {shapes}", where=where)
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], nn.Parameter(tensor.contiguous(), requires_grad=False))
    if tensors:
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        raise EngineError(
            f"the weights hold tensors the model has no place for: {', '.join(sorted(tensors)[:3])}{more}", where=where
        )


def checkpoint_names(parameter: str) -> list[str]:
    """The checkpoint's tensors behind one parameter: its own name, or the parts of a fused projection."""
    for fused, parts in FUSED.items():
        if f".{fused}." in parameter:
            return [parameter.replace(fused, part) for part in parts]
    return [parameter]


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        single = folder / "model.safetensors"
        if not single.exists():
            raise EngineError("no model.safetensors in the folder", where=str(folder))
        return [single]
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise EngineError(f"missing {', '.join(missing)}, one of {len(names)} weight files", where=str(folder))
    return [folder / name for name in names]


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
