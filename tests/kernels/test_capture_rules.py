"""What a CUDA graph forbids, looked for without a GPU: the whole round on a device that has shapes and no values.

`pretended_device.py` runs every plan of every kind of target there: a read-back, a copy from the host or a tensor left on the
processor ends it, and a capture must launch just what its warm-up compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux only")


def test_a_captured_round_reads_nothing_back_and_leaves_the_device_nowhere() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.pretended_device"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {line["case"]: set(line["kernels"]) for line in map(json.loads, done.stdout.splitlines())}
    assert list(found) == ["llama", "a draft vocabulary", "experts", "packed experts", "latents", "two devices"]
    everywhere = {
        "accept_walk_kernel", "choice_cut_kernel", "choice_pick_kernel", "choice_scan_kernel", "kv_store_kernel", "paged_attention_kernel",
        "path_commit_kernel", "rms_norm_kernel", "rope_tables_kernel", "silu_mul_kernel", "topk_merge_kernel", "topk_scan_kernel",
        "tree_ancestors_kernel", "tree_build_kernel",
    }  # fmt: skip
    experts = {"moe_combine_kernel", "moe_count_kernel", "moe_gemm_kernel", "moe_place_kernel", "moe_router_kernel"}
    assert everywhere <= found["llama"] == found["a draft vocabulary"]
    assert everywhere | experts <= found["experts"] == found["packed experts"]
    assert everywhere | experts | {"latent_attention_kernel", "rope_kernel"} <= found["latents"]
    assert found["two devices"] == {"AssertionError"}, "a tensor elsewhere is seen"
