"""KV bytes per token, pages, and what is refused before a restart."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.analysis.kv_bytes import KvWidth
from console.analysis.kv_layers import KvLayers
from console.deployment.capacity import Capacity, KvShape, check_context, element_bytes, in_words, kv_shape, pool_of
from console.errors import UsageError

TINY = Path(__file__).parents[2] / "data" / "tiny-ddtree" / "target" / "config.json"
KIMI_K2: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 262144,
    "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
}


def test_grouped_query_bytes_follow_from_layers_heads_and_type() -> None:
    shape = kv_shape(json.loads(TINY.read_text()))
    assert shape.bytes_per_token(4) == 2 * 6 * 2 * 16 * 4
    assert shape.max_position_embeddings == 2048
    assert element_bytes("auto", shape.dtype) == 4


def test_latent_attention_of_kimi_k2_takes_70272_bytes_in_bf16_on_every_device() -> None:
    shape = kv_shape(KIMI_K2)
    assert shape.bytes_per_token(2) == 70_272
    assert shape.bytes_per_token(2, tensor_parallel=16) == 70_272
    assert shape.bytes_per_token(1) == 35_136
    assert shape.max_position_embeddings == 262_144


def test_heads_are_split_over_devices_and_repeated_below_one_each() -> None:
    shape = KvShape("LlamaForCausalLM", KvLayers(32), KvWidth(8, 128, 128), 8192, "bfloat16")
    assert [shape.bytes_per_token(2, devices) for devices in (1, 4, 8, 16)] == [131072, 32768, 16384, 16384]


@pytest.mark.parametrize(
    ("stated", "rope", "reach"),
    [
        (40960, None, 40960),
        (32768, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (131072, {"type": "yarn", "factor": 32, "original_max_position_embeddings": 4096}, 131072),
        (32768, {"type": "yarn", "factor": 2.0}, 65536),
        (131072, {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
    ],
)
def test_the_longest_context_counts_rope_scaling_once(stated: int, rope: dict[str, Any] | None, reach: int) -> None:
    config = {**KIMI_K2, "max_position_embeddings": stated, "rope_scaling": rope}
    assert kv_shape(config).max_position_embeddings == reach


def test_a_config_without_its_keys_names_the_one_missing() -> None:
    with pytest.raises(UsageError, match=r"^config\.json: num_hidden_layers is missing"):
        kv_shape({"num_attention_heads": 4})


GROUPED: dict[str, Any] = {
    **{"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 512},
    "max_position_embeddings": 8192,
}
A_LAYER = 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("family", "taken", "note"),
    [
        ({"full_attention_interval": 4, "linear_num_key_heads": 16}, 3 * A_LAYER, "9 layers keep nothing"),
        ({"attn_type_list": [0, 0, 1] * 4}, 4 * A_LAYER, "8 layers keep nothing"),
        ({"attn_layer_period": 6, "attn_layer_offset": 2, "mamba_d_state": 16}, 2 * A_LAYER, "10 layers keep nothing"),
        ({"hybrid_override_pattern": "M-M*-M*-M-M*"}, 3 * A_LAYER, "9 layers keep nothing"),
        ({"layer_types": ["conv", "full_attention"] * 6}, 6 * A_LAYER, "6 layers keep nothing"),
        ({"cross_attention_layers": [3, 8]}, 10 * A_LAYER, "2 layers keep nothing"),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 12 * A_LAYER, f"takes {2 * A_LAYER:,} B"),
        ({"sliding_window": 1024, "model_type": "gemma2"}, 12 * A_LAYER, f"takes {6 * A_LAYER:,} B"),
        ({"sliding_window": 1024, "use_sliding_window": False}, 12 * A_LAYER, ""),
        ({"sliding_window": 8192}, 12 * A_LAYER, ""),
        ({"num_kv_shared_layers": 4}, 8 * A_LAYER, ""),
        ({"num_key_value_heads": None, "multi_query": True}, 6 * A_LAYER, ""),
        ({"v_head_dim": 32}, 9 * A_LAYER, ""),
    ],
)
def test_layers_that_keep_less_than_every_token_are_told_apart(family: dict[str, Any], taken: int, note: str) -> None:
    shape = kv_shape({**GROUPED, "torch_dtype": "bfloat16", **family})
    assert shape.bytes_per_token(2) == taken
    assert (note in " ".join(shape.notes(2))) if note else shape.notes(2) == ()


@pytest.mark.parametrize(
    ("family", "named"),
    [
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2'"),
        ({"num_key_value_heads": [2, 2]}, "num_key_value_heads"),
        ({"num_key_value_heads": -2}, "num_key_value_heads"),
        ({"head_dim": 64.5}, "head_dim"),
        ({"head_dim": None, "hidden_size": 511}, "hidden_size 511"),
        ({"text_config": [1]}, "text_config"),
        ({"rope_scaling": "yarn"}, "rope_scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": float("nan")}}, "factor"),
        ({"layer_types": ["warp_attention"] * 12}, "warp_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"block_configs": [{}]}, "block_configs"),
        ({"swa_num_key_value_heads": 8}, "swa_num_key_value_heads"),
        ({"mamba_d_ssm": 4096}, "mamba_d_ssm"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"torch_dtype": {"text": "float32"}}, "dtype"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(family: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        kv_shape({**GROUPED, **family})
    assert named in str(caught.value)


@pytest.mark.parametrize("config", [None, [], "x", 3])
def test_what_is_no_object_is_no_config(config: Any) -> None:
    with pytest.raises(UsageError, match="one JSON object"):
        kv_shape(config)


def test_a_context_above_the_models_names_both_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        check_context(4096, kv_shape(json.loads(TINY.read_text())), pages=0, page_size=16)
    assert str(caught.value) == "context_length: 4096 is above the model's 2048; use 2048 or less"


def test_a_context_above_a_fixed_pool_names_both_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        check_context(2000, kv_shape(json.loads(TINY.read_text())), pages=100, page_size=16)
    assert str(caught.value) == (
        "context_length: 2000 needs 125 pages of 16, the pool has 100 (1600 tokens); use 1600 or less, or pages=125"
    )


def test_the_sentences_hold_the_arithmetic() -> None:
    fits = Capacity(bytes_per_token=70_272, page_size=64, pages=3846, context_length=200_000)
    assert (
        fits.sentences()[0]
        == "200,000 tokens × 70,272 B = 14.1 GB of 17.3 GB in the pool → 1.2 requests at full length"
    )
    short = Capacity(bytes_per_token=70_272, page_size=64, pages=100, context_length=200_000)
    assert short.sentences()[0].endswith("→ does not fit")


@given(st.integers(1, 200_000), st.integers(1, 256), st.integers(0, 10**12), st.integers(1, 10**6))
def test_a_pool_never_takes_more_than_the_memory_and_wastes_less_than_a_page(
    bytes_per_token: int, page_size: int, memory: int, context: int
) -> None:
    pool = pool_of(bytes_per_token, page_size, memory, context)
    assert 0 <= memory - pool.pool_bytes < bytes_per_token * page_size
    assert pool.fits == (ceil(context / page_size) <= pool.pages)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (14_054_400_000, "14.1 GB"), (345_000, "345 kB")]
)
def test_bytes_read_as_three_digits(count: int, words: str) -> None:
    assert in_words(count) == words
