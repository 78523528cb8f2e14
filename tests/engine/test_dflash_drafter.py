"""The DFlash drafter: its forward written out a second time from the paper, and what is refused at loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.cache import KvStore, PagePool, PageTable
from engine.draft import Drafting, DraftRequest, DraftState, draft_candidates, take_in_context
from engine.drafter import load_drafter
from engine.drafter_config import default_target_layers, read_drafter_config
from engine.errors import EngineError
from engine.models.loader import load_target, read_model_config

HEADS, KV_HEADS, HEAD_DIM, LAYERS, BLOCK, MASK, VOCAB = 4, 2, 16, 2, 8, 63, 64
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}

ChangedDrafter = Callable[..., Path]


@pytest.fixture
def changed_drafter(tiny_folder: Path, tmp_path: Path) -> ChangedDrafter:
    """The tiny drafter's folder with changed config keys; `own` changes dflash_config, `weights` the tensors."""

    def make(
        own: dict[str, Any] | None = None, weights: dict[str, Tensor | None] | None = None, **changes: Any
    ) -> Path:
        source = tiny_folder / "drafter"
        config = {**json.loads((source / "config.json").read_text()), **changes}
        config["dflash_config"] = {**config["dflash_config"], **(own or {})}
        tensors = {**load_file(source / "model.safetensors"), **(weights or {})}
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file({name: t for name, t in tensors.items() if t is not None}, tmp_path / "model.safetensors")
        return tmp_path

    return make


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turn(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate x [rows, heads, head_dim] in pairs (i, i + head_dim / 2), by complex multiplication."""
    angles = positions[:, None] / 10000.0 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    half = HEAD_DIM // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def draft_from_scratch(
    all_weights: dict[str, Tensor], features: Tensor, block: Tensor, window: int = 0, causal: bool = False
) -> Tensor:
    """Normed block rows of one forward over the whole context, without a cache. `window`: of layer 0, 0 for none."""
    start = len(features)
    queries, keys = torch.arange(start, start + BLOCK), torch.arange(start + BLOCK)
    context, x = rms(features @ all_weights["fc.weight"].T, all_weights["hidden_norm.weight"]), block
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        w = {name.removeprefix(prefix): tensor for name, tensor in all_weights.items() if name.startswith(prefix)}
        h = rms(x, w["input_layernorm.weight"])
        rows = torch.cat((context, h))
        q = (h @ w["self_attn.q_proj.weight"].T).view(-1, HEADS, HEAD_DIM)
        k = (rows @ w["self_attn.k_proj.weight"].T).view(-1, KV_HEADS, HEAD_DIM)
        v = (rows @ w["self_attn.v_proj.weight"].T).view(-1, KV_HEADS, HEAD_DIM)
        q = turn(rms(q, w["self_attn.q_norm.weight"]), queries)
        k = turn(rms(k, w["self_attn.k_norm.weight"]), keys)
        unseen = torch.zeros(BLOCK, start + BLOCK, dtype=torch.bool)
        if window and layer == 0:
            unseen |= keys <= queries[:, None] - window
            unseen |= (keys > queries[:, None]) & causal
        heads = []
        for head in range(HEADS):
            scores = q[:, head] @ k[:, head // 2].T / HEAD_DIM**0.5
            heads.append(scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v[:, head // 2])
        x = x + torch.cat(heads, dim=-1) @ w["self_attn.o_proj.weight"].T
        h = rms(x, w["post_attention_layernorm.weight"])
        gate = h @ w["mlp.gate_proj.weight"].T
        x = x + (gate * gate.sigmoid() * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return rms(x, all_weights["norm.weight"])


@pytest.mark.parametrize(
    ("changes", "window", "causal"),
    [
        ({}, 0, False),
        (SLIDING, 5, False),
        ({**SLIDING, "own": {"sliding_window_non_causal": False}}, 5, True),
    ],
)
@pytest.mark.parametrize(("context", "prefilled"), [(3, 3), (3, 0), (21, 16)])
@torch.inference_mode()
def test_drafts_are_those_of_the_forward_written_from_scratch(
    tiny_folder: Path,
    changed_drafter: ChangedDrafter,
    changes: dict[str, Any],
    window: int,
    causal: bool,
    context: int,
    prefilled: int,
) -> None:
    target = load_target(tiny_folder / "target", torch.float32)
    folder = changed_drafter(**changes)
    drafter = load_drafter(folder, target.config, torch.float32)
    pool = PagePool(40, 3)
    drafting = Drafting(drafter, KvStore(120, LAYERS, KV_HEADS, HEAD_DIM, torch.float32), BLOCK)
    drafting.kv.keys.fill_(torch.nan)
    drafting.kv.values.fill_(torch.nan)  # a slot read before it is written would poison everything
    table = PageTable(pool)
    table.grow(context + BLOCK)
    features = torch.randn(context, 128, generator=torch.Generator().manual_seed(1)) * 3

    state = DraftState(features[:prefilled])
    if prefilled:
        take_in_context(drafting, table, state)
    state.features = features[prefilled:]
    ((token_ids, log_probs),) = draft_candidates(drafting, target, [DraftRequest(table, state, 17, VOCAB)])

    block = target.embed(torch.tensor([17] + [MASK] * (BLOCK - 1)))
    hidden = draft_from_scratch(load_file(folder / "model.safetensors"), features, block, window, causal)
    theirs = target.logits(hidden[1:]).log_softmax(-1)  # row i predicts the token at position start + i
    ours = torch.tensor(log_probs)
    assert torch.allclose(ours, theirs.gather(1, torch.tensor(token_ids)), atol=2e-4)
    assert bool((ours.diff(dim=1) <= 0).all())
    assert (state.rows, len(state.features)) == (context, 0)


@torch.inference_mode()
def test_what_the_drafter_sees_of_the_seed_changes_its_drafts(tiny_folder: Path) -> None:
    target = load_target(tiny_folder / "target", torch.float32)
    drafter = load_drafter(tiny_folder / "drafter", target.config, torch.float32)
    drafts = []
    for seed in (3, 4, 3):
        drafting = Drafting(drafter, KvStore(64, LAYERS, KV_HEADS, HEAD_DIM, torch.float32), BLOCK)
        table = PageTable(PagePool(4, 16))
        table.grow(40)
        state = DraftState(torch.ones(5, 128))
        ((_, log_probs),) = draft_candidates(drafting, target, [DraftRequest(table, state, seed, 4)])
        drafts.append(torch.tensor(log_probs))
    assert torch.equal(drafts[0], drafts[2])
    assert (drafts[0] - drafts[1]).abs().max() > 0.1


@pytest.mark.parametrize(
    ("target_layers", "draft_layers", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (48, 8, (1, 7, 14, 20, 26, 32, 39, 45)),
        (61, 6, (1, 12, 24, 35, 47, 58)),
        (64, 5, (1, 16, 31, 46, 61)),
        (32, 5, (1, 8, 15, 22, 29)),
        (30, 5, (1, 8, 14, 20, 27)),
        (30, 3, (1, 14, 27)),
        (24, 3, (1, 11, 21)),
        (16, 1, (8,)),
        (4, 2, (1, 1)),
    ],
)
def test_taps_unsaid_follow_the_papers_rule(target_layers: int, draft_layers: int, taps: tuple[int, ...]) -> None:
    assert default_target_layers(target_layers, draft_layers) == taps


def test_an_unsaid_tap_list_is_read_by_that_rule(tiny_folder: Path, changed_drafter: ChangedDrafter) -> None:
    folder = changed_drafter(own={"target_layer_ids": None})
    assert read_drafter_config(folder, read_model_config(tiny_folder / "target")).target_layer_ids == (1, 3)


def test_what_stands_beside_dflash_config_counts_as_if_it_stood_in_it(
    tiny_folder: Path, changed_drafter: ChangedDrafter
) -> None:
    keys: dict[str, Any] = {"target_layer_ids": [0, 2], "mask_token_id": 5, "sliding_window_non_causal": False}
    target = read_model_config(tiny_folder / "target")
    inside = read_drafter_config(changed_drafter(own=keys, **SLIDING), target)
    beside = read_drafter_config(changed_drafter(own=dict.fromkeys(keys), **SLIDING, **keys), target)
    assert beside == inside
    assert (beside.target_layer_ids, beside.mask_token_id, beside.causal_windows) == ((0, 2), 5, True)


def test_tensor_names_may_carry_a_model_prefix(tiny_folder: Path, changed_drafter: ChangedDrafter) -> None:
    weights = load_file(tiny_folder / "drafter" / "model.safetensors")
    prefixed: dict[str, Tensor | None] = {f"model.{name}": tensor for name, tensor in weights.items()}
    folder = changed_drafter(weights={**dict.fromkeys(weights), **prefixed})
    config = read_model_config(tiny_folder / "target")
    ours = load_drafter(folder, config, torch.float32).state_dict()
    assert ours.keys() == weights.keys()
    assert all(torch.equal(ours[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 96}, "the drafter's hidden size is 96, the target's is 64"),
        ({"vocab_size": 65}, "the drafter's vocabulary is 65, the target's is 64"),
        ({"num_target_layers": 7}, "the drafter's number of target layers is 7, the target's is 6"),
        ({"own": {"target_layer_ids": [1, 6]}}, "the drafter taps target layers 6, outside 0-5 of the target"),
        ({"own": {"target_layer_ids": [-1, 2]}}, "the drafter taps target layers -1, outside 0-5 of the target"),
        ({"own": {"target_layer_ids": [1, 2, 3]}}, "fc.weight has shape [64, 128], and the config asks for [64, 192]"),
        ({"weights": {"fc.weight": None}}, "the weights lack fc.weight"),
        ({"weights": {"layers.1.self_attn.k_norm.weight": None}}, "the weights lack layers.1.self_attn.k_norm.weight"),
        ({"weights": {"lm_head.weight": torch.zeros(9, 64)}}, "a drafter with its own lm_head.weight is not supported"),
        ({"weights": {"d2t": torch.zeros(9)}}, "a drafter with its own d2t is not supported"),
        ({"weights": {"gate.bias": torch.zeros(9)}}, "the weights hold tensors the model has no place for: gate.bias"),
        ({"own": {"conv_kernel_size": 3, "conv_group_size": 1}}, "a DFlash2 drafter is not supported"),
        ({"own": {"selector_rank": 64}}, "a DFlash2 drafter is not supported (selector_rank is set)"),
        ({"architectures": ["DFlash2DraftModel"]}, "a DFlash2 drafter is not supported"),
        ({"own": {"projector_type": "domino"}}, "a Domino drafter is not supported (projector_type is set)"),
        ({"architectures": ["DSparkDraftModel"]}, "a DSpark drafter is not supported"),
        ({"own": {"causal_head": True}}, "a JetSpec drafter is not supported (causal_head is set)"),
        ({"speculators_model_type": "dflash"}, "a drafter in the speculators format is not supported"),
        ({"own": {"output_multiplier": 0.5}}, "output_multiplier = 0.5 is not supported in a drafter"),
        ({"own": {"mixture": 4}}, "dflash_config has keys the engine does not know: mixture"),
        ({"own": {"mask_token_id": 64}}, "mask_token_id 64 lies outside the vocabulary of 64"),
        ({"own": {"mask_token_id": None}}, "dflash_config names no mask_token_id"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only silu"),
        ({"num_key_value_heads": 3}, "4 attention heads do not divide over 3 key-value heads"),
        ({"block_size": 1}, "block_size is 1, and a block holds at least 2 tokens"),
        ({**SLIDING, "sliding_window": None}, "layer_types has sliding_attention, but sliding_window is None"),
        ({**SLIDING, "sliding_window": 0}, "layer_types has sliding_attention, but sliding_window is 0"),
        ({"layer_types": ["full_attention"]}, "layer_types: 1 entries for 2 layers"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types: unknown linear_attention"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_in_one_line(
    tiny_folder: Path, changed_drafter: ChangedDrafter, changes: dict[str, Any], says: str
) -> None:
    folder = changed_drafter(**changes)
    with pytest.raises(EngineError) as caught:
        load_drafter(folder, read_model_config(tiny_folder / "target"), torch.float32)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{folder}: ") and "\n" not in str(caught.value)


def test_a_target_given_as_drafter_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(EngineError, match=r"this is no DFlash drafter \(config\.json has no dflash_config\)"):
        load_drafter(tiny_folder / "target", read_model_config(tiny_folder / "target"), torch.float32)
