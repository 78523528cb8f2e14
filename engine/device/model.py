"""What a device-resident round runs on: the target, the drafter, their caches, and one request's state in fixed tensors.

All of it is allocated once and written in place, which is what a captured graph needs. The caches belong to the pool of
all requests; a `DeviceState` is one request's at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from engine.drafter import Drafter, DraftLayer
from engine.errors import EngineError
from engine.models.decoder import Decoder
from kernels.accept_walk import Accepted
from kernels.token_choice import SamplingTensors
from kernels.tree_build import TreeTensors, ancestor_words


@dataclass(frozen=True)
class Cache:
    """Keys and values of every layer, [layers, slots, kv_heads, head_dim]. A latent cache has one key head and no values."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class DraftProjections:
    """A draft layer's projections, joined: `weight` [(heads + 2 * kv_heads) * head_dim, hidden], `bias` alike or None."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class DeviceModel:
    """A loaded target and drafter on one device. `block_size`: tokens a draft block has, the seed included; 1 without one."""

    target: Decoder
    drafter: Drafter | None
    projections: tuple[DraftProjections, ...]
    target_cache: Cache
    draft_cache: Cache | None
    page_size: int
    block_size: int
    block_words: (
        Tensor  # int32 [block, words]: each row of a block sees itself and those before it, as causal windows do
    )

    @property
    def device(self) -> torch.device:
        """Where all of it lives."""
        return self.target.embed_tokens.weight.device

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers whose output the drafter reads."""
        return self.drafter.config.target_layer_ids if self.drafter else ()

    @property
    def most_accepted(self) -> int:
        """The most tokens a round can add: every drafted position and the bonus."""
        return self.block_size


@dataclass(frozen=True)
class DeviceState:
    """One request on the device, every tensor written in place.

    seed int64 [1]: the last token, whose keys are not cached yet. length int32 [1]: committed tokens, its position.
    page_table int32 [pages]. features [most accepted, taps * hidden]: the target's features of the last `waiting`
    positions, which the drafter has not taken in; waiting int32 [1]. accepted: what the last round added.
    """

    seed: Tensor
    length: Tensor
    page_table: Tensor
    features: Tensor
    waiting: Tensor
    sampling: SamplingTensors
    accepted: Accepted


def device_model(
    target: Decoder, drafter: Drafter | None, *, slots: int, page_size: int, block_size: int, device: torch.device
) -> DeviceModel:
    """Move target and drafter to `device` and make their caches of `slots` slots. Raises EngineError for no memory."""
    target.to(device)
    target.rotary.frequencies = target.rotary.frequencies.to(device)
    shape = target.config
    width = shape.latent.rank + shape.latent.rotary_dim if shape.latent is not None else 0
    if drafter is not None:
        drafter.to(device)
        drafter.rotary.frequencies = drafter.rotary.frequencies.to(device)
    try:
        target_cache = (
            Cache(*(_cache(target, shape.layers, slots, 1, size, device) for size in (width, 0)))
            if width
            else Cache(*(_cache(target, shape.layers, slots, shape.kv_heads, shape.head_dim, device) for _ in range(2)))
        )
        drafts = drafter.config if drafter else None
        draft_cache = (
            Cache(*(_cache(target, drafts.layers, slots, drafts.kv_heads, drafts.head_dim, device) for _ in range(2)))
            if drafts
            else None
        )
    except torch.OutOfMemoryError as error:
        raise EngineError(f"no memory on {device} for a KV pool of {slots:,} slots", mend="lower pages") from error
    layers = [cast(DraftLayer, layer) for layer in drafter.layers] if drafter else []
    projections = tuple(_joined(layer) for layer in layers)
    block = block_size if drafter else 1
    words = ancestor_words(list(range(-1, block - 1))).to(device)
    return DeviceModel(target, drafter, projections, target_cache, draft_cache, page_size, block, words)


def device_state(model: DeviceModel, *, pages: int, sampling: SamplingTensors) -> DeviceState:
    """State for one request that may own up to `pages` pages."""
    device, most = model.device, model.most_accepted
    on_device = SamplingTensors(
        *(torch.empty_like(t, device=device) for t in (sampling.seed, sampling.top_k, sampling.factors))
    )
    on_device.fill(sampling)
    width = len(model.taps) * model.target.config.hidden_size
    return DeviceState(
        seed=torch.zeros(1, dtype=torch.int64, device=device),
        length=torch.zeros(1, dtype=torch.int32, device=device),
        page_table=torch.zeros(pages, dtype=torch.int32, device=device),
        features=torch.zeros(most, width, dtype=model.target.dtype, device=device),
        waiting=torch.zeros(1, dtype=torch.int32, device=device),
        sampling=on_device,
        accepted=Accepted.empty(most, device),
    )


def root_tree(device: torch.device) -> TreeTensors:
    """The tree of budget 0: the root, which sees itself. Its token is the caller's to fill in."""
    tree = TreeTensors.empty(1, device)
    for tensor, value in (
        (tree.parents, -1),
        (tree.depths, 0),
        (tree.log_weights, 0),
        (tree.ancestors, 1),
        (tree.live, 1),
    ):
        tensor.fill_(value)
    return tree


def _cache(target: Decoder, layers: int, slots: int, heads: int, dim: int, device: torch.device) -> Tensor:
    return torch.empty(layers, slots, heads, dim, dtype=target.dtype, device=device)


def _joined(layer: DraftLayer) -> DraftProjections:
    parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
    weights: list[Tensor] = [part.weight for part in parts]
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    return DraftProjections(torch.cat(weights), torch.cat(biases) if biases else None)
