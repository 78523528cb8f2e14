"""load_target: a Hugging Face folder with safetensors -> Decoder.

The model is built without storage; every parameter is then found in the checkpoint by name, its parts fused, its shape
checked. What is missing and what is left over are both errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.errors import EngineError
from engine.models import deepseek_v3, llama, qwen3, qwen3_moe
from engine.models.config import ModelConfig, architecture_name, family_names
from engine.models.decoder import Decoder
from engine.models.fields import Fields, read_json, refuse_pointer
from engine.models.fp8 import make_plain
from engine.models.quantization import FloatBlocks, packed_group, read_quantization

FAMILIES: tuple[ModuleType, ...] = (llama, qwen3, qwen3_moe, deepseek_v3)

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""A fused projection and the checkpoint's names of its parts, in row order."""

_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_DERIVED = ("rotary_emb.inv_freq",)  # old checkpoints store these; they follow from the config


def read_model_config(folder: Path) -> ModelConfig:
    """The target's config, whatever form it is written in. Raises EngineError for an architecture not known here."""
    raw, where = read_json(folder / "config.json"), str(folder)
    for name in family_names(raw, where):
        for family in FAMILIES:
            if name in family.ARCHITECTURES:
                config: ModelConfig = family.read_config(raw, where)
                if packed_group(raw, where) and config.experts is None:
                    mend = "give a folder with plain weights"
                    raise EngineError("packed weights are supported in routed experts only", where=where, mend=mend)
                return config
    known = ", ".join(family.ARCHITECTURES[0] for family in FAMILIES)
    raise EngineError(
        f"the architecture {architecture_name(raw)} is not one the engine knows", where=where, mend=f"it knows {known}"
    )


def load_target(folder: Path | str, dtype: torch.dtype, config: ModelConfig | None = None) -> Decoder:
    """The target model of a folder, its weights cast to `dtype`, frozen. `config` is the folder's, or a change of it.

    Raises EngineError in one clear line.
    """
    folder = Path(folder)
    config = config or read_model_config(folder)
    raw, tensors, where = read_json(folder / "config.json"), read_tensors(folder), str(folder)
    if raw.get("text_config"):
        tensors = {name: tensor for name, tensor in tensors.items() if "vision" not in name and "projector" not in name}
    if config.tie_word_embeddings and _has_a_head_of_its_own(tensors):
        config = replace(config, tie_word_embeddings=False)
    if config.tie_word_embeddings:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head.")}
    with torch.device("meta"):
        model = Decoder(config)
    if config.latent is not None:
        tensors = deepseek_v3.without_prediction_layers(tensors, config.layers)
    if isinstance(quantization := read_quantization(raw, where), FloatBlocks):
        make_plain(tensors, quantization, dtype, where=where)
    if config.latent is not None and config.latent.interleaved:
        deepseek_v3.put_rotary_rows_apart(tensors, config.latent, config.heads)
    if config.experts is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(".weight_shape")}
    assign_parameters(model, tensors, dtype, where=where)
    return model.requires_grad_(False).eval()


def _has_a_head_of_its_own(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a head is stored that is not the embedding: then it is the head, whatever the config says, as in `transformers`."""
    head, embedding = tensors.get("lm_head.weight"), tensors.get("embed_tokens.weight")
    return head is not None and embedding is not None and not torch.equal(head, embedding)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files by name, prefixes such as `model.` taken off."""
    tensors: dict[str, Tensor] = {}
    for shard in shards(folder):
        refuse_pointer(shard)
        try:
            loaded = load_file(shard)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"cannot read {shard.name} ({error})", where=str(folder)) from error
        for name, tensor in loaded.items():
            bare = _bare(name)
            if bare in tensors:
                raise EngineError(f"the weights hold {bare} twice, again in {shard.name}", where=str(folder))
            if not name.endswith(_DERIVED):
                tensors[bare] = tensor
    return tensors


def assign_parameters(model: nn.Module, tensors: dict[str, Tensor], dtype: torch.dtype, *, where: str) -> None:
    """Give every parameter of `model` (built on the meta device) its tensor; `tensors` is used up.

    Whole numbers (packed weights) and float32 parameters keep their type, all others are cast to `dtype`. Raises
    EngineError naming the first missing tensors, a wrong shape with both shapes, or the first left over.
    """
    for name, parameter in list(model.named_parameters()):
        tensor = _assembled(name, parameter, tensors, where)
        keep = not parameter.is_floating_point() or name.endswith("e_score_correction_bias")
        owner = model.get_submodule(name.rpartition(".")[0])
        # A copy of its own: a view into the file would keep the whole file in memory, fused parts twice.
        stored = tensor.to(parameter.dtype if keep else dtype, copy=True).contiguous()
        setattr(owner, name.rpartition(".")[2], nn.Parameter(stored, requires_grad=False))
    if tensors:
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        raise EngineError(
            f"the weights hold tensors the model has no place for: {', '.join(sorted(tensors)[:3])}{more}", where=where
        )


def _assembled(name: str, parameter: Tensor, tensors: dict[str, Tensor], where: str) -> Tensor:
    """A parameter from its parts in the checkpoint: rows of fused projections joined, experts stacked."""
    experts = len(parameter) if _is_stacked(name) and name not in tensors else 0
    rows = [checkpoint_names(_of_expert(name, expert)) for expert in range(experts)] or [checkpoint_names(name)]
    if name in tensors:  # stored as the engine has it
        rows = [[name]]
    missing = [source for sources in rows for source in sources if source not in tensors]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise EngineError(f"the weights lack {', '.join(missing[:3])}{more}", where=where)
    stack = []
    for sources in rows:
        parts = [_of_its_kind(source, tensors.pop(source), parameter, where) for source in sources]
        widths = {part.shape[1:] for part in parts}
        joined = torch.cat(parts) if len(parts) > 1 and len(widths) == 1 else parts[0]
        wanted = parameter.shape[1:] if experts else parameter.shape
        if joined.shape != wanted or len(widths) > 1:
            shown = list(joined.shape) if len(widths) == 1 else " and ".join(str(list(part.shape)) for part in parts)
            shapes = f"{shown}, and the config asks for {list(wanted)}"
            raise EngineError(f"{' + '.join(sources)} has shape {shapes}", where=where)
        stack.append(joined)
    return torch.stack(stack) if experts else stack[0]


def _of_its_kind(name: str, tensor: Tensor, parameter: Tensor, where: str) -> Tensor:
    """`tensor`, where it holds what the parameter can be made of: joined to others it would become their kind unseen."""
    if tensor.is_floating_point() and tensor.itemsize == 1:
        said = "and the config names no scales for it (quantization_config)"
        raise EngineError(f"{name} holds {tensor.dtype}, {said}", where=where)
    if tensor.is_floating_point() is not parameter.is_floating_point():
        wanted = "floating-point numbers" if parameter.is_floating_point() else "packed whole numbers"
        raise EngineError(f"{name} holds {tensor.dtype}, and {wanted} are needed", where=where)
    return tensor


def checkpoint_names(parameter: str) -> list[str]:
    """The checkpoint's tensors behind one parameter: its own name, or the parts of a fused projection."""
    for fused, parts in FUSED.items():
        if f".{fused}." in parameter:
            return [parameter.replace(fused, part) for part in parts]
    return [parameter]


def _is_stacked(parameter: str) -> bool:
    return ".mlp.experts." in parameter


def _of_expert(parameter: str, expert: int) -> str:
    """`…mlp.experts.gate_up_proj` of expert 3 -> `…mlp.experts.3.gate_up_proj.weight`; packed parts keep their endings."""
    stem, _, name = parameter.rpartition(".")
    projection, ending = name.removesuffix("_packed").removesuffix("_scale"), "weight"
    if name != projection:
        ending = f"weight_{name.rpartition('_')[2]}"
    return f"{stem}.{expert}.{projection}.{ending}"


def shards(folder: Path) -> list[Path]:
    """The safetensors files of a folder. Raises EngineError where there are none or one is missing."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        single = folder / "model.safetensors"
        if not single.exists():
            raise EngineError("no model.safetensors in the folder", where=str(folder), mend=_instead(folder))
        return [single]
    files = Fields(read_json(index), str(index)).raw.get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise EngineError("it has no weight_map of tensors to files", where=str(index))
    names = sorted(set(files.values()))
    if strange := [name for name in names if Path(name).name != name or name == ".."]:
        raise EngineError(f"weight_map names {strange[0]}, which is no file of the folder", where=str(index))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise EngineError(f"missing {', '.join(missing)}, one of {len(names)} weight files", where=str(folder))
    return [folder / name for name in names]


def _instead(folder: Path) -> str | None:
    """What to do about a folder whose weights go by another name."""
    found = sorted(
        path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth", ".gguf")
    )
    if not found:
        return None
    if len(found) > 1 and all(name.endswith(".safetensors") for name in found):
        return f"{found[0]} and {len(found) - 1} more need their model.safetensors.index.json"
    shard = re.search(r"-of-0*([1-9]\d*)\.safetensors$", found[0])
    if shard and int(shard[1]) > 1:
        return f"{found[0]} is one of {shard[1]} parts; copy the others and their model.safetensors.index.json"
    if found[0].endswith(".safetensors"):
        return f"{found[0]} is there; rename it if it holds the whole model"
    return f"{found[0]} is there; the engine reads safetensors, so convert it"


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
