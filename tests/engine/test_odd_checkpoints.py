"""Model folders as they are found in the wild: those that can be run are, and the others are refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small_models import write_models
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.config import config_from_toml
from engine.errors import EngineError
from engine.generate import generate
from engine.models.config import end_of_text_ids
from engine.models.loader import read_model_config
from engine.runtime import Sampling, Speculation, load_runtime
from engine.tokenizer import load_tokenizer

PROMPT = [1, 2, 3, 50, 7]
Q, INDEX = "model.layers.0.self_attn.q_proj.weight", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 268435456\n"
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> a model folder as `transformers` saves it."""
    return {kind: write_models(kind, tmp_path_factory.mktemp(kind))[0] for kind in ("llama", "qwen3-moe", "deepseek")}


@pytest.fixture
def folder(sources: dict[str, Path], tmp_path: Path) -> Folder:
    """A copy of a model folder: `config` changes config.json (None removes), `weights` the tensors (None removes),
    `files` whole files (None removes)."""

    def make(
        kind: str = "llama",
        config: dict[str, Any] | None = None,
        weights: dict[str, Tensor | None] | None = None,
        files: dict[str, bytes | None] | None = None,
    ) -> Path:
        target = tmp_path / "model"
        shutil.copytree(sources[kind], target)
        changed = {**json.loads((target / "config.json").read_text()), **(config or {})}
        kept = {key: value for key, value in changed.items() if value is not None or key not in (config or {})}
        (target / "config.json").write_text(json.dumps(kept))
        if weights:
            tensors = {**load_file(target / "model.safetensors"), **weights}
            stored = {name: tensor for name, tensor in tensors.items() if tensor is not None}
            save_file(stored, target / "model.safetensors", {"format": "pt"})
        for name, content in (files or {}).items():
            if content is None:
                (target / name).unlink()
            else:
                (target / name).write_bytes(content)
        return target

    return make


def answer(folder: Path, max_tokens: int = 12, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    settings = f'[model]\npath = "{folder}"\n[context]\ncontext_length = 64\n'
    runtime = load_runtime(config_from_toml(settings))
    greedy, plain = Sampling(), Speculation("off")
    return generate(runtime, PROMPT, greedy, plain, max_tokens=max_tokens, stop_ids=stop_ids).token_ids


def theirs(folder: Path) -> list[int]:
    """What `transformers` makes of the same folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = model.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False)
    return [int(token) for token in tokens[0, len(PROMPT) :]]


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("llama", {"rope_parameters": {"rope_theta": 5.0}}),
        ("llama", {"rope_parameters": None, "rope_theta": 5.0}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 5.0}),
        ("llama", {"head_dim": None, "num_key_value_heads": 2}),
        ("llama", {"rope_parameters": None, "rope_theta": 5.0, "rope_scaling": YARN, "max_position_embeddings": 64}),
        ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5.0}, "original_max_position_embeddings": 8}),
        ("llama", {"rope_parameters": {**YARN, "rope_theta": 5.0}, "original_max_position_embeddings": 8}),
        ("llama", {"rope_parameters": {**YARN, "rope_theta": 5.0}, "rope_theta": 5.0, "rope_scaling": YARN}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"sliding_window": 4096}),
        ("llama", {"architectures": None}),
        ("qwen3-moe", {"head_dim": None}),
        ("qwen3-moe", {"mlp_only_layers": None, "decoder_sparse_step": None}),
        ("deepseek", {"rope_interleave": None, "norm_topk_prob": None, "attention_bias": None}),
        ("deepseek", {"routed_scaling_factor": None, "n_shared_experts": None}),
    ],
)
def test_what_a_config_leaves_unsaid_is_read_as_transformers_reads_it(
    folder: Folder, kind: str, config: dict[str, Any]
) -> None:
    found = folder(kind, config)
    assert answer(found) == theirs(found)


def test_position_scaling_told_apart_by_kind_of_layer_is_that_of_full_attention(folder: Folder) -> None:
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10.0}
    apart = {"full_attention": linear, "sliding_attention": {"rope_type": "default", "rope_theta": 999.0}}
    found = folder(config={"rope_parameters": apart})
    ours = answer(found)
    (found / "config.json").write_text(
        json.dumps({**json.loads((found / "config.json").read_text()), "rope_parameters": linear})
    )
    assert ours == answer(found) == theirs(found)


def test_half_and_double_precision_and_a_byte_order_mark_change_nothing(
    folder: Folder, sources: dict[str, Path]
) -> None:
    text = (sources["llama"] / "config.json").read_bytes()
    norm = load_file(sources["llama"] / "model.safetensors")["model.norm.weight"]
    found = folder(weights={"model.norm.weight": norm.double()}, files={"config.json": b"\xef\xbb\xbf" + text})
    assert answer(found) == answer(sources["llama"])


def test_ends_of_text_are_those_of_both_files_and_each_ends_an_answer(folder: Folder) -> None:
    found = folder()
    tokens = answer(found)
    first, second = list(dict.fromkeys(tokens))[1:3]
    config = json.loads((found / "config.json").read_text())
    (found / "config.json").write_text(json.dumps({**config, "eos_token_id": [second, 52]}))
    (found / "generation_config.json").write_text(json.dumps({"eos_token_id": first}))
    ends = end_of_text_ids(found, read_model_config(found))
    assert ends == {first, second, 52}
    assert answer(found, stop_ids=ends) == tokens[: tokens.index(first) + 1]
    assert answer(found, stop_ids=ends - {first}) == tokens[: tokens.index(second) + 1]


def test_a_folder_without_tokenizer_files_has_token_ids_only(folder: Folder) -> None:
    assert load_tokenizer(folder()) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        # shapes and sizes
        ({"config": {"num_hidden_layers": 10**9}}, "num_hidden_layers = 1000000000 is more than 10000"),
        ({"config": {"num_hidden_layers": 3.0}}, "num_hidden_layers = 3.0 is not a whole number of 1 or more"),
        ({"config": {"hidden_size": 10**25}}, "hidden_size = 10000000000000000000000000 is more than 1048576"),
        ({"config": {"vocab_size": 99}}, "embed_tokens.weight has shape [53, 32], and the config asks for [99, 32]"),
        ({"config": {"head_dim": 7}}, "head_dim = 7 is odd"),
        ({"config": {"max_position_embeddings": None}}, "config.json lacks max_position_embeddings"),
        ({"config": {"max_position_embeddings": 4}}, 'lower it to 4, or set rope_scaling = "yarn:16"'),
        ({"config": {"rms_norm_eps": float("nan")}}, "rms_norm_eps = NaN is not a number above 0"),
        ({"config": {"eos_token_id": "</s>"}}, 'eos_token_id = "</s>" is not a list of whole numbers'),
        # positions
        ({"config": {"rope_parameters": []}}, "rope_parameters = [] is not an object"),
        ({"config": {"rope_parameters": {"rope_type": "dynamic"}}}, "rope scaling 'dynamic' is not supported"),
        ({"config": {"rope_parameters": {**YARN, "rope_theta": 1.0}}}, "rope_theta = 1.0 is not a number above 1"),
        ({"config": {"rope_parameters": {**YARN, "factor": float("inf")}}}, "factor = Infinity is not a number"),
        (
            {"config": {"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": YARN}},
            "rope_parameters and rope_scaling differ; keep the one that is meant",
        ),
        ({"config": {"partial_rotary_factor": 0.5}}, "partial rotary embeddings are not supported"),
        # windows and kinds
        ({"config": {"sliding_window": 4}}, "sliding-window attention in the target is not supported (of 4 tokens)"),
        ({"config": {"use_sliding_window": True}}, "sliding-window attention in the target is not supported"),
        (
            {"config": {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}},
            "sliding-window attention in the target is not supported",
        ),
        ({"config": {"layer_types": ["full_attention"]}}, "has 1 entries for 3 layers"),
        (
            {"config": {"architectures": ["MistralForCausalLM"]}},
            "architecture MistralForCausalLM is not one the engine",
        ),
        (
            {"config": {"architectures": None, "model_type": None}},
            "the architecture unnamed is not one the engine knows",
        ),
        ({"config": {"text_config": []}}, "text_config = [] is not an object"),
        (
            {"kind": "qwen3-moe", "config": {"num_experts": None, "num_local_experts": None}},
            "config.json lacks num_experts",
        ),
        # tensors
        ({"weights": {"lm_head.weight": None}}, "the weights lack lm_head.weight"),
        ({"weights": {Q: None}}, "the weights lack layers.0.self_attn.q_proj.weight"),
        ({"weights": {Q: torch.tensor(1.0)}}, "has shape [] and [16, 32] and [16, 32]"),
        ({"weights": {Q: torch.ones(32, 32, dtype=torch.int8)}}, "q_proj.weight holds torch.int8, and floating-point"),
        (
            {"weights": {Q.replace("weight", "bias"): torch.zeros(32)}},
            "the weights hold tensors the model has no place for: layers.0.self_attn.q_proj.bias",
        ),
        ({"config": {"attention_bias": True}}, "the weights lack layers.0.self_attn.q_proj.bias"),
        (
            {"weights": {"norm.weight": torch.ones(32)}},
            "the weights hold norm.weight twice, again in model.safetensors",
        ),
        ({"weights": {"model.norm.weight": torch.full((32,), torch.nan)}}, "the target's logits are not finite"),
        (
            {"kind": "deepseek", "weights": {"model.layers.0.self_attn.q_b_proj.weight": torch.tensor(1.0)}},
            "q_b_proj.weight has shape [], and the config asks for [48, 16]",
        ),
        (
            {"kind": "deepseek", "weights": {"model.layers.1.mlp.experts.3.up_proj.weight": None}},
            "the weights lack layers.1.mlp.experts.3.up_proj.weight",
        ),
        # files
        ({"files": {"config.json": b""}}, "config.json: cannot read it as JSON"),
        ({"files": {"config.json": b"[" * 100_000}}, "it is nested too deep"),
        ({"files": {"config.json": POINTER}}, "config.json: it is a Git LFS pointer, not the file itself; run git lfs"),
        ({"files": {"model.safetensors": b""}}, "cannot read model.safetensors"),
        ({"files": {"model.safetensors": POINTER}}, "model.safetensors: it is a Git LFS pointer, not the file itself"),
        ({"files": {"model.safetensors": b"<!DOCTYPE html><html>404</html>"}}, "cannot read model.safetensors"),
        ({"files": {"model.safetensors": None}}, "no model.safetensors in the folder"),
        ({"files": {"model.safetensors": None, "pytorch_model.bin": b"x"}}, "reads safetensors, so convert it"),
        (
            {"files": {"model.safetensors": None, "model-00001-of-00004.safetensors": b"x"}},
            "model-00001-of-00004.safetensors is one of 4 parts; copy the others",
        ),
        (
            {"files": {"model.safetensors": None, "consolidated.safetensors": b"x"}},
            "consolidated.safetensors is there; rename it if it holds the whole model",
        ),
        ({"files": {INDEX: b"{}"}}, "it has no weight_map of tensors to files"),
        ({"files": {INDEX: b'{"weight_map": {"a": "../x"}}'}}, "weight_map names ../x, which is no file of the folder"),
        ({"files": {INDEX: b'{"weight_map": {"a": ".."}}'}}, "weight_map names .., which is no file of the folder"),
        (
            {"files": {INDEX: b'{"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors"}}'}},
            "missing model-1.safetensors, one of 2 weight files",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_that_names_the_folder(
    folder: Folder, change: dict[str, Any], says: str
) -> None:
    found = folder(**change)
    with pytest.raises(EngineError) as caught:
        answer(found)
    message = str(caught.value)
    assert says in message and "\n" not in message
    assert message.startswith(str(found)) or "not finite" in message


@pytest.mark.parametrize("missing_bytes", [1, 100, 20_000])
def test_truncated_weights_are_refused_before_any_is_used(folder: Folder, missing_bytes: int) -> None:
    found = folder()
    whole = (found / "model.safetensors").read_bytes()
    (found / "model.safetensors").write_bytes(whole[:-missing_bytes])
    with pytest.raises(EngineError, match=r"cannot read model\.safetensors"):
        answer(found)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tokenizer_config.json", "not JSON"),
        ("tokenizer.json", "not a tokenizer"),
        ("model.safetensors", "cannot read"),
    ],
)
def test_a_folder_where_a_file_should_be_is_named(folder: Folder, name: str, says: str) -> None:
    found = folder()
    (found / name).unlink(missing_ok=True)
    (found / name).mkdir()
    with pytest.raises(EngineError, match=says):
        load_tokenizer(found)
        answer(found)


ODD_VALUES = [
    None,
    True,
    0,
    1,
    -1,
    3,
    10**7,
    10**30,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    [],
    [1],
    ["x"],
    {},
    {"a": 1},
]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_stands_in_a_config_the_folder_is_run_or_refused_in_one_line(
    sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(sorted(sources)))
    part = data.draw(st.sampled_from(["target", "drafter"]))
    found = shutil.copytree(sources[kind].parent, tmp_path_factory.mktemp("odd") / "folders")
    config = json.loads((found / part / "config.json").read_text())
    inner = data.draw(
        st.sampled_from([config, *(value for value in config.values() if isinstance(value, dict) and value)])
    )
    more = ["text_config", "quantization_config", "rope_scaling", "sliding_window"]
    inner[data.draw(st.sampled_from([*inner, *more]))] = data.draw(st.sampled_from(ODD_VALUES))
    (found / part / "config.json").write_text(json.dumps(config))
    tables = f'[model]\npath = "{found}/target"\ndrafter = "{found}/drafter"\n[context]\ncontext_length = 48\n'
    try:
        runtime = load_runtime(config_from_toml(tables))
        tokens = generate(runtime, PROMPT, Sampling(), Speculation("ddtree", 4), max_tokens=3).token_ids
        assert len(tokens) == 3
    except EngineError as refusal:
        assert "\n" not in str(refusal)
    finally:
        shutil.rmtree(found)
