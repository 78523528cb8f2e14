"""Llama and Qwen3 targets against `transformers`, from the same folder, in float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from engine.config import config_from_toml
from engine.errors import EngineError
from engine.generate import generate
from engine.models.decoder import Decoder
from engine.models.loader import load_target
from engine.runtime import Sampling, Speculation, load_runtime
from kernels.tree_attention import tree_attention, tree_bias

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PROMPT = [(11 * i + 5) % 97 for i in range(70)]

CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "llama, tied, biased": (LlamaConfig, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama3 scaling": (LlamaConfig, {"rope_parameters": {**LLAMA3, "rope_theta": 5000.0}}),
    "linear scaling": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}}),
    "qwen3": (Qwen3Config, {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3, tied, biased": (Qwen3Config, {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3, llama3 scaling": (Qwen3Config, {"head_dim": 16, "rope_parameters": {**LLAMA3, "rope_theta": 1e4}}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PreTrainedModel]]:
    """Case name -> (its model folder as `transformers` saves it, the model)."""
    made: dict[str, tuple[Path, PreTrainedModel]] = {}

    def make(name: str) -> tuple[Path, PreTrainedModel]:
        if name not in made:
            kind, changes = CASES[name]
            torch.manual_seed(3)
            config = kind(**{**SHAPE, **changes})
            model = (LlamaForCausalLM if kind is LlamaConfig else Qwen3ForCausalLM)(config).eval()
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if "norm" in parameter_name or parameter_name.endswith("bias"):
                        parameter.add_(torch.randn_like(parameter) * 0.2)
            path = tmp_path_factory.mktemp("target")
            model.save_pretrained(path)
            made[name] = path, model
        return made[name]

    return make


def run_plain(model: Decoder, token_ids: list[int], taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """The model over a whole text, each token seeing those before it -> (logits, features)."""
    config, length = model.config, len(token_ids)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    bias = tree_bias(causal, length, config.heads // config.kv_heads, model.dtype)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tree_attention(q, k, v, slice(0, length), bias)

    hidden, features = model(torch.tensor(token_ids), torch.arange(length), attend, taps)
    return model.logits(hidden), features


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-4 * theirs.abs().max())


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_logits_and_features_are_those_of_transformers(
    folder: Callable[[str], tuple[Path, PreTrainedModel]], name: str
) -> None:
    path, reference = folder(name)
    logits, features = run_plain(load_target(path, torch.float32), PROMPT, taps=(0, 1))
    theirs = reference(torch.tensor([PROMPT]), output_hidden_states=True)
    assert close(logits, theirs.logits[0])
    # hidden_states[0] is the embedding: the output of layer l is entry l + 1.
    assert close(features, torch.cat((theirs.hidden_states[1][0], theirs.hidden_states[2][0]), dim=-1))


@torch.inference_mode()
def test_a_tap_on_the_last_layer_gives_the_residual_stream_before_the_final_norm(
    folder: Callable[[str], tuple[Path, PreTrainedModel]],
) -> None:
    path, reference = folder("llama")
    model = load_target(path, torch.float32)
    _, features = run_plain(model, PROMPT, taps=(2,))
    assert close(model.norm(features), reference(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[3][0])


@pytest.mark.parametrize("name", ["llama3 scaling", "qwen3"])
@pytest.mark.parametrize("page_size", [1, 7])
def test_greedy_answers_are_those_of_transformers(
    folder: Callable[[str], tuple[Path, PreTrainedModel]], name: str, page_size: int
) -> None:
    path, reference = folder(name)
    runtime = load_runtime(config_from_toml(f'[model]\npath = "{path}"\n[kv]\npage_size = {page_size}'))
    answer = generate(runtime, PROMPT, Sampling(), Speculation("off"), max_tokens=40)
    theirs = reference.generate(torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False)
    assert answer.token_ids == theirs[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("name", ["llama3 scaling", "llama", "qwen3"])
@torch.inference_mode()
def test_the_older_config_form_gives_the_same_model(
    folder: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path, name: str
) -> None:
    path, _ = folder(name)
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"], config["text_config"] = config.pop("dtype"), None
    copy_model(path, tmp_path, config)
    older, newer = load_target(tmp_path, torch.float32), load_target(path, torch.float32)
    assert older.config == newer.config
    assert torch.equal(run_plain(older, PROMPT)[0], run_plain(newer, PROMPT)[0])


@torch.inference_mode()
def test_a_language_model_nested_under_text_config_is_found(
    folder: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path
) -> None:
    path, _ = folder("qwen3")
    config = json.loads((path / "config.json").read_text())
    nested = {"architectures": ["SomeVisionLanguageModel"], "model_type": "some_vl", "text_config": config}
    weights = load_file(path / "model.safetensors")
    renamed = {f"model.language_model.{name.removeprefix('model.')}": tensor for name, tensor in weights.items()}
    renamed["model.vision_tower.patch.weight"] = torch.zeros(2, 2)
    copy_model(path, tmp_path, nested, renamed)
    assert torch.equal(
        run_plain(load_target(tmp_path, torch.float32), PROMPT)[0],
        run_plain(load_target(path, torch.float32), PROMPT)[0],
    )


@torch.inference_mode()
def test_a_checkpoint_in_shards_is_read_through_its_index(
    folder: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path
) -> None:
    path, reference = folder("llama")
    reference.save_pretrained(tmp_path, max_shard_size="40KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    sharded = run_plain(load_target(tmp_path, torch.float32), PROMPT)[0]
    assert torch.equal(sharded, run_plain(load_target(path, torch.float32), PROMPT)[0])
    shards[1].unlink()
    with pytest.raises(EngineError, match=f"missing {shards[1].name}, one of {len(shards)} weight files"):
        load_target(tmp_path, torch.float32)


@torch.inference_mode()
def test_bfloat16_stays_near_float32(folder: Callable[[str], tuple[Path, PreTrainedModel]]) -> None:
    path, _ = folder("qwen3")
    wide = run_plain(load_target(path, torch.float32), PROMPT)[0]
    narrow = run_plain(load_target(path, torch.bfloat16), PROMPT)[0]
    assert narrow.dtype is torch.bfloat16
    assert (narrow.float() - wide).square().mean().sqrt() < 0.05 * wide.square().mean().sqrt()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "architecture GPT2LMHeadModel is not one"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope scaling 'longrope' is not supported"),
        ({"layer_types": ["linear_attention"] * 3}, "layers of the kind linear_attention are not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "rope scaling 'llama3' lacks low_freq_factor"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"use_sliding_window": True}, "sliding-window attention in the target is not supported"),
        ({"vocab_size": None}, "config.json lacks vocab_size"),
        ({"num_key_value_heads": 4}, "6 attention heads do not divide over 4 key-value heads"),
        ({"intermediate_size": 64}, "shape [160, 48], and the config asks for [128, 48]"),
        ({"num_hidden_layers": 4}, "the weights lack layers.3.input_layernorm.weight"),
        ({"num_hidden_layers": 2}, "the weights hold tensors the model has no place for: layers.2."),
    ],
)
def test_a_folder_the_engine_cannot_run_is_refused_in_one_line(
    folder: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path, _ = folder("llama")
    copy_model(path, tmp_path, {**json.loads((path / "config.json").read_text()), **changes})
    with pytest.raises(EngineError) as caught:
        load_target(tmp_path, torch.float32)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}: ") and "\n" not in str(caught.value)


def test_a_folder_without_config_or_weights_is_refused_in_one_line(
    folder: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"no config\.json in the folder; give a Hugging Face model folder"):
        load_target(tmp_path, torch.float32)
    with pytest.raises(EngineError, match=r"no config\.json in the folder; there is no such folder"):
        load_target(tmp_path / "absent", torch.float32)
    (tmp_path / "config.json").write_text((folder("llama")[0] / "config.json").read_text())
    with pytest.raises(EngineError, match=r"no model\.safetensors in the folder"):
        load_target(tmp_path, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(EngineError, match=r"cannot read model\.safetensors"):
        load_target(tmp_path, torch.float32)


def copy_model(source: Path, target: Path, config: dict[str, Any], weights: dict[str, Tensor] | None = None) -> None:
    """A model folder like `source` with another config, and other weights where given."""
    (target / "config.json").write_text(json.dumps(config))
    save_file(weights or load_file(source / "model.safetensors"), target / "model.safetensors", {"format": "pt"})
