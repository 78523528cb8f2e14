"""Runtime: a loaded target, its drafter and the KV pool they share; what every request runs on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil
import torch

from engine.budget import RoundCost
from engine.cache import KvStore, PagePool
from engine.config import EngineConfig, SpeculationTable
from engine.draft import Drafting
from engine.draft_head import DraftHead, draft_head, read_draft_vocabulary
from engine.drafter import Drafter, load_drafter
from engine.drafter_config import DrafterConfig
from engine.errors import EngineError
from engine.models.config import ModelConfig, factor_for, with_rope_scaling
from engine.models.decoder import Decoder, pack_linears
from engine.models.loader import load_target, read_model_config
from engine.sampling import Sampling
from kernels.launch import triton
from kernels.linear import packs

__all__ = ["Runtime", "Sampling", "Speculation", "give_back_freed_memory", "load_runtime"]

OLDEST_GPU = (8, 0)
"""The least compute capability that the kernels are compiled for."""


@dataclass(frozen=True)
class Speculation:
    """How a request drafts: "ddtree" with `tree_budget` nodes a round, "dflash" (the block as one chain), or "off".

    `lookup`: whether continuations found in the text itself compete for the budget: "on" by a rule of thumb, "auto" by how they
    have fared in this request as well. Without a drafter at work nothing is looked up.
    """

    mode: Literal["off", "dflash", "ddtree"]
    tree_budget: int = 16
    lookup: Literal["off", "on", "auto"] = "off"

    @property
    def looks_up(self) -> bool:
        """Whether anything is looked up."""
        return self.mode != "off" and self.lookup != "off"


@dataclass(frozen=True)
class Runtime:
    """What is loaded. `config` holds the settings in force: zeros and "auto" replaced by what they came to.

    `cost`: what rounds cost, measured, where trees are to be as large as is worth their time.
    """

    config: EngineConfig
    target: Decoder
    pool: PagePool
    target_kv: KvStore
    drafting: Drafting | None
    cost: RoundCost | None = None

    @property
    def max_context(self) -> int:
        """The most tokens a request may have, prompt and answer together."""
        return self.config.context.context_length

    @property
    def drafter(self) -> Drafter | None:
        return self.drafting.drafter if self.drafting else None

    @property
    def block_size(self) -> int:
        """Tokens a draft block has, the seed included; 1 without a drafter."""
        return self.drafting.block_size if self.drafting else 1

    @property
    def pages_total(self) -> int:
        return self.pool.total

    @property
    def pages_used(self) -> int:
        return self.pool.used

    @property
    def capacity_tokens(self) -> int:
        """Tokens the pool holds."""
        return self.pool.total * self.pool.page_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes a token takes in the target's cache and the drafter's."""
        drafter = self.drafter.config if self.drafter else None
        return kv_bytes_per_token(self.target.config, drafter, self.target.dtype)


def load_runtime(
    config: EngineConfig, on_phase: Callable[[str], None] = lambda phase: None, device: torch.device | None = None
) -> Runtime:
    """Load what `config` names onto `device`, by default a GPU where there is one; `on_phase` is told each phase in words.

    Raises EngineError in one line: a folder that does not hold what it should, a drafter that does not fit, a context
    longer than the model or the pool holds, a GPU that cannot be used.
    """
    device = device or best_device()
    shape = target_config(config)
    dtype = resolve_dtype(config.model.dtype, shape)
    on_phase("loading the target's weights")
    target = load_target(config.model.path, dtype, shape)
    drafter, head = None, DraftHead()
    if config.model.drafter:
        on_phase("loading the drafter's weights")
        drafter = load_drafter(Path(config.model.drafter), target.config, dtype)
        vocabulary = read_draft_vocabulary(Path(config.model.drafter), target.config.vocab_size)
        head = draft_head(target, vocabulary, packed=packs(dtype) and device.type == "cpu")
    if device.type != "cpu":
        on_phase(f"moving weights to {device}")
        head = _moved(target, drafter, head, device)
    elif packs(dtype):
        on_phase("packing weights")
        target.pack()
        if drafter is not None:
            pack_linears(drafter)
    give_back_freed_memory()
    memory = free_bytes(device)
    config = settings_in_force(config, target.config, drafter.config if drafter else None, dtype, memory)
    pages, page_size = config.kv.pages, config.kv.page_size
    on_phase(f"making a KV pool of {pages} pages of {page_size} tokens")
    latent_rank = shape.latent.rank if shape.latent else 0
    return Runtime(
        config,
        target,
        PagePool(pages, page_size, keep_prefixes=config.kv.prefix_cache),
        KvStore(pages * page_size, shape.layers, shape.kv_heads, shape.head_dim, dtype, latent_rank, device),
        _drafting(drafter, head, config.speculation, pages * page_size, dtype, device),
    )


def best_device() -> torch.device:
    """The GPU that torch sees, else the processor. Raises EngineError for a GPU that the kernels cannot run on."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if triton is None:
        mend = "install the triton that this torch was built with, or hide the GPU with CUDA_VISIBLE_DEVICES="
        raise EngineError("a GPU needs the triton package", mend=mend)
    if torch.cuda.get_device_capability() < OLDEST_GPU:
        name, capability = torch.cuda.get_device_name(), ".".join(map(str, OLDEST_GPU))
        mend = "hide it with CUDA_VISIBLE_DEVICES= to run on the processor"
        raise EngineError(f"{name} is older than compute capability {capability}, the kernels' least", mend=mend)
    return torch.device("cuda", torch.cuda.current_device())


def free_bytes(device: torch.device) -> int:
    """Memory that can be had where the pool will lie."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def target_config(config: EngineConfig) -> ModelConfig:
    """The target's config under the setting `rope_scaling`. Raises EngineError for a folder that cannot be run."""
    stored = read_model_config(Path(config.model.path))
    return with_rope_scaling(stored, config.context.rope_scaling, where=config.model.path)


def resolve_dtype(asked: str, stored: ModelConfig) -> torch.dtype:
    """The arithmetic: as asked; "auto" is float32 for weights stored in float32, and bfloat16 for all others."""
    name = ("float32" if stored.dtype == "float32" else "bfloat16") if asked == "auto" else asked
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def kv_bytes_per_token(target: ModelConfig, drafter: DrafterConfig | None, dtype: torch.dtype) -> int:
    """Bytes of keys and values a token takes over all layers, the drafter's included."""
    drafts = 2 * drafter.layers * drafter.kv_heads * drafter.head_dim if drafter else 0
    return target.kv_bytes_per_token(dtype.itemsize) + drafts * dtype.itemsize


def pool_pages(config: EngineConfig, context_length: int, lookahead: int, token_bytes: int, memory_bytes: int) -> int:
    """Pages of the pool: as asked, else what the running requests need at full length, as far as memory goes.

    `lookahead` slots beyond the context serve a round's tree or block until it is committed.
    """
    if config.kv.pages:
        return config.kv.pages
    page_size = config.kv.page_size
    wanted = -(-(context_length + lookahead) // page_size) * config.server.max_running_requests
    return min(wanted, int(memory_bytes * config.kv.memory_fraction) // (token_bytes * page_size))


def settings_in_force(
    config: EngineConfig, target: ModelConfig, drafter: DrafterConfig | None, dtype: torch.dtype, memory_bytes: int
) -> EngineConfig:
    """`config` with each zero and "auto" replaced by what it comes to with these models and this much free memory.

    Raises EngineError for a context longer than the model or the pool holds, with both numbers, and for a block the
    drafter was not trained for.
    """
    limit = target.max_position_embeddings
    context_length = config.context.context_length or limit
    if context_length > limit:
        scaling = factor_for(target, context_length)
        raise EngineError(
            f"context_length = {context_length} is more than the model's {limit}",
            where=config.model.path,
            mend=f"lower it to {limit}" + (f', or set rope_scaling = "{scaling}"' if scaling else ""),
        )
    block_size = config.speculation.block_size or (drafter.block_size if drafter else 0)
    if drafter and not 2 <= block_size <= drafter.block_size:
        raise EngineError(
            f"block_size = {block_size} is outside 2-{drafter.block_size}, what the drafter was trained for",
            where=config.model.drafter,
        )
    window = config.speculation.draft_window
    if drafter and window and window < block_size:
        raise EngineError(f"draft_window = {window} is less than the block of {block_size}", mend="raise it, or set 0")
    lookahead = max(config.speculation.tree_budget + 1, block_size) if drafter else 1
    token_bytes = kv_bytes_per_token(target, drafter, dtype)
    pages = pool_pages(config, context_length, lookahead, token_bytes, memory_bytes)
    capacity = pages * config.kv.page_size
    if capacity * token_bytes > memory_bytes:
        raise EngineError(
            f"pages = {config.kv.pages} take {capacity * token_bytes:,} bytes, and {memory_bytes:,} are free",
            mend=f"lower it to {memory_bytes // (token_bytes * config.kv.page_size)}",
        )
    if capacity < context_length:
        if config.context.context_length:
            raise EngineError(
                f"context_length = {context_length} is more than the {capacity} tokens the KV pool holds",
                where=config.model.path,
                mend=f"lower it to {capacity}, or raise pages or memory_fraction",
            )
        context_length = capacity
    if context_length < 2:
        raise EngineError(f"the KV pool holds {capacity} tokens, too few to run", mend="raise pages or memory_fraction")
    return replace(
        config,
        model=replace(config.model, dtype=str(dtype).removeprefix("torch.")),
        context=replace(config.context, context_length=context_length),
        kv=replace(config.kv, pages=pages),
        speculation=replace(config.speculation, block_size=block_size),
    )


def _drafting(
    drafter: Drafter | None,
    head: DraftHead,
    settings: SpeculationTable,
    slots: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Drafting | None:
    if drafter is None:
        return None
    shape = drafter.config
    kv = KvStore(slots, shape.layers, shape.kv_heads, shape.head_dim, dtype, device=device)
    return Drafting(drafter, kv, settings.block_size, settings.draft_window, head)


def _moved(target: Decoder, drafter: Drafter | None, head: DraftHead, device: torch.device) -> DraftHead:
    """Put the weights on `device`; gives the draft head there. Raises EngineError where they do not fit."""
    try:
        target.place(device)
        if drafter is not None:
            drafter.place(device)
        return head.on(device)
    except torch.OutOfMemoryError as error:
        weights = sum(parameter.nbytes for parameter in target.parameters())
        raise EngineError(
            f"the weights of {weights:,} bytes do not fit on {device}", mend="take a smaller model or another GPU"
        ) from error


def give_back_freed_memory() -> None:
    """What loading took and freed goes back to the system, where the C library knows how."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
