"""Pure choices of the kernels: tiles that are compiled, splits, floors; and what is refused. Nothing is compiled or run here."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import draft_topk, int4_gemm, latent_attention, moe_gemm, paged_attention, rms_norm, tree_build
from kernels.__main__ import main
from kernels.launch import KNOWN_GPUS, Gpu
from kernels.moe_align import most_blocks
from kernels.split_attention import split_count

ARCHITECTURES = st.sampled_from(sorted(KNOWN_GPUS))


@cache
def tiles(module: ModuleType, arch: int) -> set[tuple[int, ...]]:
    """(padded head size, rows, keys, warps, stages) of every compiled attention configuration."""
    launches = [launch for _, launch in module.cases(arch)]
    width = "COLUMNS" if "COLUMNS" in launches[0].arguments else "LATENT"
    return {
        (*(launch.arguments[name] for name in (width, "ROWS", "KEYS")), launch.warps, launch.stages)
        for launch in launches
    }


@settings(deadline=None)
@given(
    ARCHITECTURES,
    st.integers(1, 257),
    st.sampled_from([(32, 8, 128), (9, 3, 64), (16, 2, 256)]),
    st.integers(0, 262144),
)
def test_every_attention_tile_that_is_chosen_is_compiled(
    arch: int, nodes: int, heads: tuple[int, int, int], length: int
) -> None:
    shape = paged_attention.Shape(nodes, *heads, length, 16)
    tile = paged_attention.config(arch, shape)
    # Heads of 64 take the tiles of 128, which need half as much of everything there.
    width = max(heads[2], 128)
    assert (width, tile.rows, tile.keys, tile.warps, tile.stages) in tiles(paged_attention, arch)


@settings(deadline=None)
@given(ARCHITECTURES, st.integers(1, 257), st.sampled_from([8, 16, 64, 128]), st.integers(0, 262144))
def test_every_latent_tile_that_is_chosen_is_compiled(arch: int, nodes: int, heads: int, length: int) -> None:
    tile = latent_attention.config(arch, latent_attention.Shape(nodes, heads, 512, 64, length, 16))
    assert (512, tile.rows, tile.keys, tile.warps, tile.stages) in tiles(latent_attention, arch)


@settings(deadline=None)
@given(ARCHITECTURES, st.integers(1, 513), st.integers(1, 4096))
def test_every_product_tile_that_is_chosen_is_compiled(arch: int, rows: int, pairs: int) -> None:
    names = ("ROWS", "OUTPUTS", "INPUTS")
    compiled = {
        (*(launch.arguments[name] for name in names), launch.warps, launch.stages)
        for module in (int4_gemm, moe_gemm)
        for _, launch in module.cases(arch)
        if "INPUTS" in launch.arguments
    }
    assert int4_gemm.config(arch, rows) in compiled
    block = moe_gemm.block_size(pairs, 128)
    assert (block, *moe_gemm.config(arch, block)) in compiled


@settings(deadline=None)
@given(ARCHITECTURES, st.integers(1, 256))
def test_every_lane_count_of_a_tree_is_compiled_or_lies_between_two_that_are(arch: int, budget: int) -> None:
    lanes, warps = tree_build.config(arch, budget)
    assert budget < lanes <= 512 and warps == (1 if lanes <= 256 else 4)


def test_splits_fill_a_gpu_with_the_fewest_that_do() -> None:
    h200 = Gpu(90, 132)
    assert split_count(h200, 8, 1, per_sm=2, partial_rows=4, length=64) == 1  # one tile cannot be split
    assert split_count(h200, 8, 2048, per_sm=2, partial_rows=4, length=131072) == 32  # 8 * 32 = 256 of 264 places
    assert split_count(h200, 32, 256, per_sm=1, partial_rows=64, length=16384) == 4  # 128 of 132
    assert split_count(h200, 264, 4096, per_sm=2, partial_rows=4, length=262144) == 1  # full without


@settings(deadline=None)
@given(
    st.integers(1, 4096),
    st.integers(1, 8192),
    st.integers(1, 2),
    st.integers(1, 512),
    st.integers(1, 262144),
    ARCHITECTURES,
)
def test_splits_keep_four_tiles_each_and_little_to_merge(
    blocks: int, tile_count: int, per_sm: int, rows: int, length: int, arch: int
) -> None:
    splits = split_count(KNOWN_GPUS[arch], blocks, tile_count, per_sm=per_sm, partial_rows=rows, length=length)
    assert splits & (splits - 1) == 0 and splits <= 64
    assert splits == 1 or (4 * splits <= tile_count and splits * rows * 4 * 8 <= 4 * length)


def test_floors_are_the_known_figures() -> None:
    decode = paged_attention.Shape(1, 32, 8, 128, 131071, 16)
    per_token = paged_attention.floor(decode, 2).bytes_moved - 2 * 32 * 128 * 2
    assert per_token == 131072 * 147_456 // 36  # Qwen3-8B: 147,456 bytes a token over 36 layers
    kimi = latent_attention.floor(latent_attention.Shape(1, 8, 512, 64, 1023, 64), 2)
    assert kimi.bytes_moved - 8 * (576 + 512) * 2 == 1024 * 1152
    assert kimi.operations == 2 * 8 * (576 + 512) * 1024
    expert = int4_gemm.floor(1, 4096, 7168, 2).bytes_moved + int4_gemm.floor(1, 7168, 2048, 2).bytes_moved
    assert expert - 2 * (4096 + 7168 + 7168 + 2048) == 24_772_608  # Kimi K2: 24.8 MB an expert
    assert rms_norm.floor(2, 4096, 2, add=True).bytes_moved == (4 * 2 + 1) * 4096 * 2
    assert draft_topk.floor(15, 151936, 64, 2).bytes_moved == 15 * (151936 * 2 + 12 * 64)


def test_the_most_blocks_is_what_the_worst_routing_comes_to() -> None:
    assert most_blocks(16, 384, 16) == 16  # every pair an expert of its own
    assert most_blocks(100, 4, 16) == 4 + 96 // 16
    assert most_blocks(0, 8, 16) == 0


@pytest.mark.parametrize(("arguments", "said"), [
    (["check", "--arch", "70"], "70 is not known; take some of 80, 90, 100, 120"),
    (["check", "--arch", "new"], "--arch new is not a list of numbers"),
    (["check", "--only", "rms"], "rms is not known; take some of rms_norm"),
])  # fmt: skip
def test_bad_arguments_are_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


def test_without_triton_the_operations_run_on_the_cpu_and_the_check_says_what_is_missing() -> None:
    program = """
import sys
sys.modules["triton"] = None  # importing it now fails, as where it is not installed
import torch
from kernels.rms_norm import rms_norm
from kernels.token_choice import SamplingTensors, token_choice
from kernels.__main__ import main
assert rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6).sum() > 7
assert token_choice(torch.eye(3), torch.arange(3), SamplingTensors.of(0, 0.0)).tolist() == [0, 1, 2]
import kernels.moe_gemm, kernels.latent_attention, kernels.tree_build, kernels.accept_walk
sys.exit(main(["check"]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 4, ended.stderr
    assert ended.stderr == "kernels: the triton package is not installed; install the extra `test`\n"
