"""8-bit float weights with a scale to each block: the model of their plain values, whatever is left of the edge blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from engine.config import config_from_toml
from engine.errors import EngineError
from engine.generate import generate
from engine.models.fp8 import dequantized
from engine.models.loader import load_target
from engine.models.quantization import FloatBlocks
from engine.runtime import Sampling, Speculation, load_runtime

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
CASES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {**SHAPE, "head_dim": 12}),
    "qwen3-moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {**SHAPE, "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "deepseek": (DeepseekV3Config, DeepseekV3ForCausalLM, {**SHAPE, **LATENT}),
}
PROMPT = [(11 * i + 5) % 61 for i in range(40)]
FP8: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def quantized(weight: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """(e4m3 values, one scale a block, the plain values the two stand for), block by block as they are defined."""
    small = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    plain = torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            scales[i, j] = weight[block].abs().max() / 448.0
            small[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            plain[block] = small[block].float() * scales[i, j]
    return small, scales, plain


def is_quantized(name: str) -> bool:
    """Projections are; embeddings, norms, heads and routers are not, as in the released checkpoints."""
    return name.endswith("_proj.weight") or "kv_a_proj_with_mqa" in name


def write(folder: Path, kind: str, rows: int, columns: int) -> tuple[Path, Path]:
    """(the folder in blocks, the folder with the plain values of the same blocks)."""
    config_kind, model_kind, settings = CASES[kind]
    torch.manual_seed(11)
    model = model_kind(config_kind(**settings)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "gate.weight" in name or "experts" in name:
                tensor.copy_(torch.randn_like(tensor) * 0.3)
    model.save_pretrained(folder / "plain")
    weights = load_file(folder / "plain" / "model.safetensors")
    stored: dict[str, Tensor] = {}
    for name, weight in weights.items():
        stored[name] = weight
        if is_quantized(name):
            stored[name], stored[f"{name}_scale_inv"], weights[name] = quantized(weight, rows, columns)
    save_file(weights, folder / "plain" / "model.safetensors", {"format": "pt"})
    (folder / "blocks").mkdir()
    save_file(stored, folder / "blocks" / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "plain" / "config.json").read_text())
    rewrite(folder / "blocks", config, quantization_config={**FP8, "weight_block_size": [rows, columns]})
    return folder / "blocks", folder / "plain"


def rewrite(folder: Path, config: dict[str, Any], **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("block", [(128, 128), (16, 16), (7, 32)], ids=str)
def test_block_weights_answer_as_their_plain_values_do_in_transformers(
    tmp_path: Path, kind: str, block: tuple[int, int]
) -> None:
    blocks, plain = write(tmp_path, kind, *block)
    runtime = load_runtime(config_from_toml(f'[model]\npath = "{blocks}"\n'))
    assert runtime.config.model.dtype == "float32"
    answer = generate(runtime, PROMPT, Sampling(), Speculation("off"), max_tokens=24)
    reference = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    theirs = reference.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False)
    assert answer.token_ids == theirs[0, len(PROMPT) :].tolist()
    ours, values = load_target(blocks, torch.float32), load_target(plain, torch.float32)
    for (name, tensor), (_, wanted) in zip(ours.named_parameters(), values.named_parameters(), strict=True):
        assert torch.equal(tensor, wanted), name


@given(st.data())
def test_every_value_is_under_the_scale_of_its_own_block(data: st.DataObject) -> None:
    out, inputs, rows, columns = (data.draw(st.integers(1, 9)) for _ in range(4))
    weight = torch.randn(out, inputs).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-out // rows), -(-inputs // columns))
    plain = dequantized(weight, scales, FloatBlocks(rows, columns), torch.float32)
    row, column = data.draw(st.integers(0, out - 1)), data.draw(st.integers(0, inputs - 1))
    assert plain.shape == weight.shape
    assert plain[row, column] == weight[row, column].float() * scales[row // rows, column // columns]


def test_stacked_matrices_and_scales_in_powers_of_two_are_read() -> None:
    weight = torch.full((2, 3, 4), 1.5).to(torch.float8_e4m3fn)
    scales = torch.tensor([[[0.5, 2.0]], [[4.0, 0.25]]]).to(torch.float8_e8m0fnu)
    plain = dequantized(weight, scales, FloatBlocks(3, 2), torch.bfloat16)
    assert plain[:, 0].tolist() == [[0.75, 0.75, 3.0, 3.0], [6.0, 6.0, 0.375, 0.375]]


def test_a_value_is_rounded_once() -> None:
    weight, scale = torch.tensor([[1.125]]).to(torch.float8_e4m3fn), torch.tensor([[1.00390625]])
    # In bfloat16 the scale alone would become 1.0, and the product 1.125 instead of the nearer 1.1328125.
    assert dequantized(weight, scale, FloatBlocks(128, 128), torch.bfloat16).tolist() == [[1.1328125]]


@pytest.mark.parametrize(
    ("quantization", "says"),
    [
        ({"quant_method": "fp8"}, "quantization fp8 without weight_block_size is not supported; plain weights,"),
        ({"quant_method": "awq", "bits": 4}, "quantization awq is not supported"),
        ({"quant_method": "gptq", "bits": 4}, "quantization gptq is not supported"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantization bitsandbytes is not supported"),
        ({"quant_method": "mxfp4"}, "quantization mxfp4 is not supported"),
        ({"quant_method": "fbgemm_fp8"}, "quantization fbgemm_fp8 is not supported"),
        (
            {"quant_method": "compressed-tensors", "format": "float-quantized"},
            "quantization compressed-tensors float-quantized is not supported",
        ),
        ({"bits": 4}, "quantization without a name is not supported"),
        ({**FP8, "weight_block_size": [16]}, "weight_block_size = [16] is not two whole numbers"),
        ({**FP8, "weight_block_size": [0, 16]}, "weight_block_size = [0, 16] is not a list of whole numbers of 1"),
        ({**FP8, "fmt": "e5m2", "weight_block_size": [16, 16]}, 'fmt = "e5m2" is not supported, only e4m3'),
        (
            {**FP8, "activation_scheme": "static", "weight_block_size": [16, 16]},
            'activation_scheme = "static" is not supported, only dynamic',
        ),
        (
            {**FP8, "weight_block_size": [16, 32]},
            "down_proj.weight_scale_inv has shape [3, 4], and blocks of 16 x 32 ask for [3, 2]",
        ),
        (None, "holds torch.float8_e4m3fn, and the config names no scales for it (quantization_config)"),
    ],
)
def test_another_quantization_is_refused_by_name_in_one_line(
    tmp_path: Path, quantization: dict[str, Any] | None, says: str
) -> None:
    blocks, _ = write(tmp_path, "qwen3", 16, 16)
    rewrite(blocks, json.loads((blocks / "config.json").read_text()), quantization_config=quantization)
    refused_with(blocks, says)


def test_scales_and_matrices_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    blocks, _ = write(tmp_path, "qwen3", 16, 16)
    weights, name = load_file(blocks / "model.safetensors"), "model.layers.1.mlp.down_proj.weight"
    plain = {**weights, name: weights[name].float()}
    save_file(plain, blocks / "model.safetensors")
    refused_with(blocks, "layers.1.mlp.down_proj.weight has scales and holds torch.float32, not 8-bit floats")
    save_file({key: weights[key] for key in weights if key != name}, blocks / "model.safetensors")
    refused_with(
        blocks, "the weights hold layers.1.mlp.down_proj.weight_scale_inv and lack layers.1.mlp.down_proj.weight"
    )
    save_file({key: weights[key] for key in weights if key != f"{name}_scale_inv"}, blocks / "model.safetensors")
    refused_with(
        blocks, "layers.1.mlp.down_proj.weight holds torch.float8_e4m3fn, and the config names no scales for it"
    )


def refused_with(folder: Path, says: str) -> None:
    with pytest.raises(EngineError) as caught:
        load_target(folder, torch.float32)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{folder}: ")
