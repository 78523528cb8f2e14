"""What a device-resident round runs on: the target, the drafter, their caches, and one request's state in fixed tensors.

All of it is allocated once and written in place, which is what a captured graph needs. The caches are the pool of all
requests; a `DeviceState` is one request's at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from engine.cache import KvStore
from engine.draft import Drafting
from engine.drafter import Drafter, DraftLayer
from engine.lookup import LONGEST
from engine.models.decoder import Decoder
from kernels.accept_walk import Accepted
from kernels.token_choice import SamplingTensors
from kernels.tree_build import TreeTensors, ancestor_words

if TYPE_CHECKING:
    from engine.runtime import Runtime


@dataclass(frozen=True)
class DraftProjections:
    """A draft layer's projections, joined: `weight` [(heads + 2 * kv_heads) * head_dim, hidden], `bias` alike or None."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class DeviceModel:
    """A loaded target and drafter on one device. `block_size`: tokens a draft block has, the seed included; 1 without one.

    `block_words` int32 [block, words]: each row of a block sees itself and those before it, as causal windows do.
    `most_accepted`: the most tokens a round can add, every drafted depth and the bonus.
    """

    target: Decoder
    target_cache: KvStore
    drafting: Drafting | None
    projections: tuple[DraftProjections, ...]
    page_size: int
    block_size: int
    block_words: Tensor
    most_accepted: int

    @property
    def device(self) -> torch.device:
        """Where all of it lives."""
        return self.target.device

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers whose output the drafter reads."""
        return self.drafting.taps if self.drafting else ()


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


def model_of(runtime: Runtime) -> DeviceModel:
    """The runtime's models over its own pool: what prefills and host rounds have cached is there for device rounds."""
    deepest = LONGEST if runtime.drafting and runtime.config.speculation.lookup != "off" else 0
    return _assembled(runtime.target, runtime.target_kv, runtime.drafting, runtime.pool.page_size, deepest)


def device_model(
    target: Decoder, drafter: Drafter | None, *, slots: int, page_size: int, block_size: int, device: torch.device
) -> DeviceModel:
    """Move target and drafter to `device` and make caches of `slots` slots of their own. Raises EngineError for no memory."""
    target.place(device)
    shape, drafting = target.config, None
    latent_rank = shape.latent.rank if shape.latent is not None else 0
    cache = KvStore(slots, shape.layers, shape.kv_heads, shape.head_dim, target.dtype, latent_rank, device)
    if drafter is not None:
        drafter.place(device)
        drafts = drafter.config
        kv = KvStore(slots, drafts.layers, drafts.kv_heads, drafts.head_dim, target.dtype, device=device)
        drafting = Drafting(drafter, kv, block_size)
    return _assembled(target, cache, drafting, page_size, 0)


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


def _assembled(target: Decoder, cache: KvStore, drafting: Drafting | None, page_size: int, deepest: int) -> DeviceModel:
    """`deepest`: the deepest node that somebody else than the drafter proposes."""
    layers = [cast(DraftLayer, layer) for layer in drafting.drafter.layers] if drafting else []
    block = drafting.block_size if drafting else 1
    return DeviceModel(
        target=target,
        target_cache=cache,
        drafting=drafting,
        projections=tuple(_joined(layer) for layer in layers),
        page_size=page_size,
        block_size=block,
        block_words=ancestor_words(list(range(-1, block - 1))).to(target.device),
        most_accepted=max(block, deepest + 1),
    )


def _joined(layer: DraftLayer) -> DraftProjections:
    parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
    weights: list[Tensor] = [part.weight for part in parts]
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    return DraftProjections(torch.cat(weights), torch.cat(biases) if biases else None)
