"""Qwen3-MoE, DeepSeek-V3 and Kimi K2 against `transformers` on small random models in float32; packed weights; YaRN."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from engine.config import config_from_toml
from engine.errors import EngineError
from engine.generate import generate
from engine.models.config import with_rope_scaling
from engine.models.fields import Fields
from engine.models.int4 import pack, unpack
from engine.models.loader import load_target, read_model_config
from engine.models.rope import Rope, RotaryTables, frequencies, read_rope, yarn_range
from engine.runtime import Sampling, Speculation, load_runtime
from kernels.tree_attention import tree_attention, tree_bias

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA: dict[str, Any] = {**BASE, "num_key_value_heads": 2}
QWEN: dict[str, Any] = {
    **BASE,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
DEEPSEEK: dict[str, Any] = {
    **BASE,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KIMI = {**DEEPSEEK, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "routed_scaling_factor": 2.827}

CASES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {**QWEN, "norm_topk_prob": True}),
    "qwen3-moe, some layers dense": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {**QWEN, "mlp_only_layers": [0], "norm_topk_prob": False},
    ),
    "qwen3-moe, every second layer": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {**QWEN, "decoder_sparse_step": 2}),
    "deepseek": (DeepseekV3Config, DeepseekV3ForCausalLM, DEEPSEEK),
    "deepseek, halves, no query rank, biased": (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        {**DEEPSEEK, "q_lora_rank": None, "rope_interleave": False, "attention_bias": True},
    ),
    "deepseek, yarn": (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        {**DEEPSEEK, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "kimi k2": (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        {**KIMI, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0}},
    ),
    "yarn, unlike amplitudes": (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        {**KIMI, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}},
    ),
    "llama, yarn": (LlamaConfig, LlamaForCausalLM, {**LLAMA, "rope_parameters": YARN}),
    "llama, unscaled": (LlamaConfig, LlamaForCausalLM, LLAMA),
    "llama, short": (LlamaConfig, LlamaForCausalLM, {**LLAMA, "max_position_embeddings": 32}),
    # 32 // 10 is odd, which no rotary embedding could turn; latent attention has no head of that width.
    "deepseek, heads that do not divide the hidden size": (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        {**DEEPSEEK, "hidden_size": 32, "num_attention_heads": 10, "num_key_value_heads": 10},
    ),
    "packable": (DeepseekV3Config, DeepseekV3ForCausalLM, {**KIMI, "hidden_size": 64}),
}
Folder = Callable[[str], tuple[Path, PreTrainedModel]]
PROMPT = [(11 * i + 5) % 97 for i in range(70)]  # longer than the 32 positions that YaRN stretches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Case name -> (its model folder as `transformers` saves it, the model)."""
    made: dict[str, tuple[Path, PreTrainedModel]] = {}

    def make(name: str) -> tuple[Path, PreTrainedModel]:
        if name not in made:
            config_kind, model_kind, settings = CASES[name]
            torch.manual_seed(5)
            model = model_kind(config_kind(**settings)).eval()
            with torch.no_grad():
                for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                    if "e_score_correction_bias" in tensor_name:
                        tensor.copy_(torch.randn_like(tensor) * 0.3)
                    elif "norm" in tensor_name or tensor_name.endswith("bias"):
                        tensor.add_(torch.randn_like(tensor) * 0.2)
                    elif "gate.weight" in tensor_name or "experts" in tensor_name:
                        tensor.copy_(torch.randn_like(tensor) * 0.2)
            path = tmp_path_factory.mktemp("target")
            model.save_pretrained(path)
            made[name] = path, model
        return made[name]

    return make


def run_plain(path: Path, token_ids: list[int]) -> Tensor:
    """Logits over a whole text, each token seeing those before it."""
    model = load_target(path, torch.float32)
    config, length = model.config, len(token_ids)
    bias = tree_bias(
        torch.ones(length, length, dtype=torch.bool).tril(), length, config.heads // config.kv_heads, model.dtype
    )

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tree_attention(q, k, k[..., : config.latent.rank] if config.latent else v, slice(0, length), bias)

    return model.logits(model(torch.tensor(token_ids), torch.arange(length), attend)[0])


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-4 * theirs.abs().max())


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_logits_are_those_of_transformers(folder: Folder, name: str) -> None:
    path, reference = folder(name)
    theirs = reference(torch.tensor([PROMPT])).logits[0]
    assert theirs.std() > 0.1
    assert close(run_plain(path, PROMPT), theirs)


@pytest.mark.parametrize("page_size", [1, 7])
@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek", "kimi k2", "llama, yarn"])
def test_greedy_answers_are_those_of_transformers(folder: Folder, name: str, page_size: int) -> None:
    path, reference = folder(name)
    runtime = load_runtime(config_from_toml(f'[model]\npath = "{path}"\n[kv]\npage_size = {page_size}'))
    answer = generate(runtime, PROMPT, Sampling(), Speculation("off"), max_tokens=40)
    theirs = reference.generate(torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False)
    assert answer.token_ids == theirs[0, len(PROMPT) :].tolist()


def test_latent_attention_caches_one_latent_and_one_rotary_key_a_token(folder: Folder) -> None:
    path, _ = folder("kimi k2")
    runtime = load_runtime(config_from_toml(f'[model]\npath = "{path}"\n[kv]\npages = 8'))
    assert runtime.kv_bytes_per_token == 3 * (24 + 8) * 4
    assert runtime.target_kv.keys.shape == (3, 8 * 16, 1, 32) and runtime.target_kv.values.numel() == 0


def test_a_kimi_folder_caches_576_values_a_token_and_layer(tmp_path: Path) -> None:
    inner = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "vocab_size": 163840,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "max_position_embeddings": 262144,
        "rope_scaling": {
            "type": "yarn",
            "factor": 64.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "quantization_config": QUANTIZED,
    }
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": inner}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    config = read_model_config(tmp_path)
    assert config.architecture == "DeepseekV3ForCausalLM"
    assert config.kv_bytes_per_token(2) == 70_272
    assert config.latent is not None and config.experts is not None
    assert config.latent.score_scale == pytest.approx(0.1446796, rel=1e-6)
    assert config.rope.amplitude == 1.0
    assert yarn_range(config.rope, 64) == (8, 20)
    assert yarn_range(replace(config.rope, beta_fast=1.0), 64) == (19, 20)
    assert (config.experts.packed_group, config.experts.count, sum(config.experts.sparse)) == (32, 384, 60)


QUANTIZED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}}
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
}


def test_four_bit_steps_are_packed_lowest_input_first() -> None:
    assert pack(torch.arange(-8, 0)).tolist() == [0x76543210]
    assert pack(torch.zeros(8, dtype=torch.int64)).tolist() == [0x88888888 - 2**32]
    words = torch.tensor([[0x76543210, 0x88888888 - 2**32]], dtype=torch.int32)
    scales = torch.tensor([[0.5]])
    assert unpack(words, scales, torch.float32).tolist() == [
        [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5] + [0.0] * 8
    ]


@torch.inference_mode()
def test_packed_experts_give_what_their_unpacked_weights_give(folder: Folder, tmp_path: Path) -> None:
    path, _ = folder("packable")
    config = json.loads((path / "config.json").read_text())
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    weights, small = load_file(path / "model.safetensors"), {}
    for name in [name for name in weights if ".mlp.experts." in name]:
        weight = weights.pop(name)
        grouped = weight.view(len(weight), -1, 32)
        scales = (grouped.abs().amax(dim=-1) / 7).to(torch.bfloat16)
        steps = (grouped / scales.float().unsqueeze(-1)).round().clamp(-8, 7)
        small[name.replace("weight", "weight_packed")] = pack(steps.flatten(1))
        small[name.replace("weight", "weight_scale")] = scales
        small[name.replace("weight", "weight_shape")] = torch.tensor(weight.shape, dtype=torch.int32)
        weights[name] = (steps * scales.float().unsqueeze(-1)).flatten(1)
    rest = {name: tensor for name, tensor in weights.items() if ".mlp.experts." not in name}
    for target, changed, held in (
        (plain, config, weights),
        (packed, {**config, "quantization_config": QUANTIZED}, {**rest, **small}),
    ):
        target.mkdir()
        (target / "config.json").write_text(json.dumps(changed))
        save_file(held, target / "model.safetensors", {"format": "pt"})
    assert len(small) == 3 * 3 * 8 * 2
    ours = run_plain(packed, PROMPT)
    assert close(ours, run_plain(plain, PROMPT)) and not close(ours, run_plain(path, PROMPT))
    assert load_target(packed, torch.float32).layers[1].mlp.experts.gate_up_proj_packed.dtype is torch.int32


@torch.inference_mode()
def test_a_kimi_folder_nested_under_text_config_is_the_same_model(folder: Folder, tmp_path: Path) -> None:
    path, _ = folder("kimi k2")
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"], config["rope_scaling"] = rope.pop("rope_theta"), {**rope, "type": rope.pop("rope_type")}
    nested = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}
    (tmp_path / "config.json").write_text(json.dumps({**nested, "text_config": {**config, "model_type": "kimi_k2"}}))
    weights = {f"language_model.{name}": tensor for name, tensor in load_file(path / "model.safetensors").items()}
    weights["vision_tower.patch_embed.proj.weight"] = torch.zeros(2, 2)
    weights["mm_projector.proj.weight"] = torch.zeros(2, 2)
    weights["language_model.model.layers.3.eh_proj.weight"] = torch.zeros(2, 2)  # a prediction layer, not run here
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(run_plain(tmp_path, PROMPT), run_plain(path, PROMPT))


@pytest.mark.parametrize(
    ("stated", "scaling", "reach"),
    [
        (40960, None, 40960),
        (40960, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (262144, {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}, 262144),
        (32768, {"type": "yarn", "factor": 2.0}, 65536),
        (131072, {**LLAMA3, "original_max_position_embeddings": 8192}, 131072),
    ],
)
def test_a_models_own_yarn_counts_once_in_the_context_it_reaches(
    tmp_path: Path, stated: int, scaling: dict[str, Any] | None, reach: int
) -> None:
    shape = {**LLAMA, "max_position_embeddings": stated, "rope_theta": 1e6, "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps({**shape, "architectures": ["LlamaForCausalLM"]}))
    assert read_model_config(tmp_path).max_position_embeddings == reach


def test_a_drafter_and_a_target_take_unlike_amplitudes_from_the_same_yarn() -> None:
    scaling = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0}
    raw = {"rope_theta": 50000.0, "rope_scaling": {**scaling, "mscale": 1.0, "mscale_all_dim": 1.0}}
    target, drafter = read_rope(Fields(raw, "t")), read_rope(Fields(raw, "d"), amplitude_rule="plain")
    at_0 = torch.tensor([0])
    assert RotaryTables(target, 64)(at_0, torch.float32)[0].unique().tolist() == [1.0]
    assert RotaryTables(drafter, 128)(at_0, torch.float32)[0].unique().tolist() == pytest.approx([1.4158883083359672])
    assert yarn_range(drafter, 128) == (17, 39)
    written = {**raw, "rope_scaling": {**scaling, "attention_factor": 1.25}}
    assert read_rope(Fields(written, "d"), amplitude_rule="plain").amplitude == 1.25


def test_yarn_keeps_fast_pairs_and_slows_the_slow_ones_by_the_factor() -> None:
    rope = Rope(50000.0, "yarn", factor=64.0, original_max_positions=4096)
    plain = frequencies(Rope(50000.0), 64)
    scaled = frequencies(rope, 64)
    assert torch.equal(scaled[:9], plain[:9])
    assert torch.allclose(scaled[20:], plain[20:] / 64, rtol=1e-6)
    half = 1 - (14 - 8) / (20 - 8)
    assert scaled[14].item() == pytest.approx(plain[14].item() * (half + (1 - half) / 64), rel=1e-6)


def test_a_context_beyond_the_model_is_refused_with_the_scaling_that_would_reach_it(folder: Folder) -> None:
    path, _ = folder("llama, unscaled")

    def settings(lines: str) -> str:
        return f'[model]\npath = "{path}"\n[kv]\npages = 200\n[context]\n{lines}'

    with pytest.raises(EngineError) as refused:
        load_runtime(config_from_toml(settings("context_length = 1500")))
    assert "context_length = 1500 is more than the model's 512" in str(refused.value)
    assert 'lower it to 512, or set rope_scaling = "yarn:2.93"' in str(refused.value)
    runtime = load_runtime(config_from_toml(settings('context_length = 1500\nrope_scaling = "yarn:2.93"')))
    assert runtime.max_context == 1500
    assert runtime.target.config.rope.amplitude == pytest.approx(0.1 * math.log(2.93) + 1)
    stretched = with_rope_scaling(read_model_config(path), "yarn:512", where="here")
    assert stretched.max_position_embeddings == 262_144
    for scaling, says in (
        ("yarn:513", 'reaches 262656 positions, beyond 262144; at most "yarn:512" for this model'),
        ("yarn", 'rope_scaling = "yarn" is not known; write "yarn:F"'),
        ("yarn:nan", 'rope_scaling = "yarn:nan" is not known'),
        ("ntk:2", 'rope_scaling = "ntk:2" is not known'),
    ):
        with pytest.raises(EngineError) as refused:
            with_rope_scaling(read_model_config(path), scaling, where="here")
        assert says in str(refused.value)
    with pytest.raises(EngineError, match="the model is scaled by yarn already"):
        with_rope_scaling(read_model_config(folder("llama, yarn")[0]), "yarn:2", where="here")


@torch.inference_mode()
def test_a_stretched_model_equals_transformers_with_the_same_scaling(folder: Folder) -> None:
    path, reference = folder("llama, short")
    runtime = load_runtime(config_from_toml(f'[model]\npath = "{path}"\n[context]\nrope_scaling = "yarn:8"'))
    config = reference.config
    config.rope_parameters = {**YARN, "factor": 8.0}
    stretched = LlamaForCausalLM(config).eval()
    stretched.load_state_dict(reference.state_dict())
    theirs = stretched.generate(torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False)[0, len(PROMPT) :].tolist()
    assert generate(runtime, PROMPT, Sampling(), Speculation("off"), max_tokens=40).token_ids == theirs


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scoring_func": "softmax"}, 'scoring_func = "softmax" is not supported, only sigmoid'),
        ({"topk_method": "greedy"}, 'topk_method = "greedy" is not supported, only noaux_tc'),
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2 is not supported, only 1"),
        ({"n_group": 3}, "n_group = 3 does not divide the 8 experts"),
        ({"topk_group": 9}, "topk_group = 9 is more than the 4 groups there are"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok = 7 is more than the 4 to choose from"),
        ({"kv_lora_rank": None}, "config.json lacks kv_lora_rank"),
        (
            {"quantization_config": {**QUANTIZED, "format": "int-quantized"}},
            "quantization compressed-tensors int-quantized is not supported",
        ),
        ({"n_routed_experts": 12}, "layers.1.mlp.gate.weight has shape [8, 48], and the config asks for [12, 48]"),
        ({"quantization_config": QUANTIZED}, "the weights lack layers.1.mlp.experts.0.gate_proj.weight_packed"),
        ({"moe_intermediate_size": 30}, "has shape [64, 48], and the config asks for [60, 48]"),
    ],
)
def test_a_mixture_the_engine_cannot_run_is_refused_in_one_line(
    folder: Folder, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path, _ = folder("deepseek")
    (tmp_path / "config.json").write_text(json.dumps({**json.loads((path / "config.json").read_text()), **changes}))
    save_file(load_file(path / "model.safetensors"), tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(EngineError) as caught:
        load_target(tmp_path, torch.float32)
    assert says in str(caught.value) and "\n" not in str(caught.value)
