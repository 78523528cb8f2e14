"""Settings that others have reported to fail, each with its small figures: refused or warned of before a restart."""

from __future__ import annotations

import pytest

from console.deployment.base import ModelFacts
from console.deployment.capacity import kv_shape
from console.deployment.generations import differences, tried_fractions
from console.deployment.memory_window import Tried, memory_window
from console.deployment.sglang import Sglang
from console.deployment.vllm import Vllm
from console.errors import UsageError

SGLANG = Sglang()
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
YARN = ModelFacts(
    kv_shape(
        {
            "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128,
            "num_attention_heads": 32, "hidden_size": 4096, "max_position_embeddings": 32768,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        }
    )
)  # fmt: skip
EAGLE = "--speculative-algorithm EAGLE --speculative-draft-model-path /d --page-size 64 --speculative-eagle-topk "
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB."
LITTLE = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.84"


def file(arguments: str, more: str = "") -> str:
    return f'{more}SGLANG_ARGS="--model-path /m {arguments}"\n'


def test_a_draft_tree_over_pages_of_several_tokens_is_refused_on_a_backend_that_cannot() -> None:
    with pytest.raises(UsageError) as caught:
        SGLANG.inspect(file(EAGLE + "8 --attention-backend flashmla"), None)
    assert str(caught.value).startswith("page_size: 64 does not work with --speculative-eagle-topk 8 on flashmla")
    assert "set page_size=1" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        ("8 --attention-backend triton", True),
        ("8", True),
        ("8 --attention-backend flashinfer", False),
        ("1 --attention-backend flashmla", False),
    ],
)
def test_where_only_older_releases_fail_on_such_a_tree_it_is_a_warning(arguments: str, warned: bool) -> None:
    warnings = SGLANG.inspect(file(EAGLE + arguments), None)
    assert [line.partition(":")[0] for line in warnings] == ["page_size 64 with --speculative-eagle-topk 8"] * warned


def test_a_context_that_only_yarn_reaches_names_the_flag_and_all_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        SGLANG.inspect(file("--context-length 128000"), YARN)
    for part in ("128000", "32768", "131072", f"set {LONGER}=1"):
        assert part in str(caught.value)
    assert SGLANG.inspect(file("--context-length 128000", f"{LONGER}=1\n"), YARN) == ()
    assert SGLANG.inspect(file("--context-length 32768"), YARN) == ()
    with pytest.raises(UsageError, match="above the model's 131072"):
        SGLANG.inspect(file("--context-length 140000"), YARN)
    assert Vllm().inspect('VLLM_ARGS="/m --max-model-len 128000"\n', YARN) == ()  # it counts the factor by itself


def test_two_failed_fractions_beside_each_other_leave_none_to_try() -> None:
    told = memory_window([Tried(0.85, OOM), Tried(0.84, LITTLE)], 0.845)
    assert told is not None and told.startswith(
        "memory_fraction 0.84 was too little and 0.85 ran out of memory: no value"
    )
    assert "tree_budget" in told


def test_a_fraction_beyond_one_that_failed_is_warned_of_and_one_between_is_worth_a_try() -> None:
    tried = [Tried(0.9, OOM), Tried(0.7, LITTLE)]
    assert memory_window(tried, 0.8) is None
    assert memory_window(tried, 0.92) == "memory_fraction 0.9 ran out of memory before, and 0.92 is no less"
    assert memory_window(tried, 0.7) == "memory_fraction 0.7 was too little before, and 0.7 is no more"
    assert memory_window([Tried(0.9, "port is in use")], 0.9) is None


def test_only_tries_since_settings_last_held_count() -> None:
    def entry(fraction: str, outcome: str, reason: str | None) -> dict[str, object]:
        return {"text": file(f"--mem-fraction-static {fraction}"), "outcome": outcome, "reason": reason}

    generations = [
        entry("0.95", "rolled_back", OOM),
        entry("0.80", "confirmed", None),
        entry("0.85", "rolled_back", OOM),
        entry("0.84", "rolled_back", LITTLE),
    ]
    assert tried_fractions(SGLANG, generations) == (Tried(0.85, OOM), Tried(0.84, LITTLE))


def test_the_engines_environment_is_part_of_what_changed_and_its_secrets_are_not_shown() -> None:
    old = file("--page-size 1", "SGLANG_KERNEL=a\nHF_TOKEN=one\n")
    new = file("--page-size 16", "HF_TOKEN=two\nSGLANG_SPLIT=8\n")
    assert [(d.name, d.old, d.new) for d in differences(SGLANG, old, new)] == [
        ("page_size", 1, 16),
        ("HF_TOKEN", "(hidden)", "(hidden)"),
        ("SGLANG_KERNEL", "a", None),
        ("SGLANG_SPLIT", None, "8"),
    ]
