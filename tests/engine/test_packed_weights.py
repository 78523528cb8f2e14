"""Packed weights give the plain weights' numbers, bit for bit, and keep no second copy of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import KINDS, write_models

from engine.config import config_from_toml
from engine.drafter import load_drafter
from engine.generate import generate
from engine.models.layers import Linear
from engine.models.loader import load_target
from engine.runtime import Runtime, Sampling, Speculation, load_runtime
from kernels.linear import linear, pack_weight, packed_linear, packs

pytestmark = pytest.mark.skipif(not packs(torch.bfloat16), reason="this processor's library packs no bfloat16 weights")


@pytest.mark.parametrize("rows", [1, 2, 8, 17, 33, 65, 128, 129, 200])
def test_a_packed_product_is_the_plain_one_bit_for_bit(rows: int) -> None:
    torch.manual_seed(rows)
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((rows, 96), (80, 96), (80,)))
    assert torch.equal(packed_linear(x, pack_weight(weight), bias), linear(x, weight, bias))
    assert torch.equal(packed_linear(x, pack_weight(weight)), linear(x, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_a_runtime_of_packed_weights_answers_as_its_models_do(tmp_path: Path, kind: str) -> None:
    target, drafter = write_models(kind, tmp_path)
    tables = f'[model]\npath = "{target}"\ndrafter = "{drafter}"\ndtype = "bfloat16"\n[kv]\npages = 20\n'
    packed = load_runtime(config_from_toml(tables))
    plain_target = load_target(target, torch.bfloat16)
    plain_drafter = load_drafter(drafter, plain_target.config, torch.bfloat16)
    assert packed.drafting is not None
    answers = []
    for speculation in (Speculation("off"), Speculation("ddtree", 13)):
        answers.append(generate(packed, [5, 9, 2], Sampling(), speculation, max_tokens=24).token_ids)
    drafting = packed.drafting.__class__(plain_drafter, packed.drafting.kv, packed.drafting.block_size)
    plain = Runtime(packed.config, plain_target, packed.pool, packed.target_kv, drafting)
    for speculation, answer in zip((Speculation("off"), Speculation("ddtree", 13)), answers, strict=True):
        assert generate(plain, [5, 9, 2], Sampling(), speculation, max_tokens=24).token_ids == answer
    linears = [module for module in packed.target.layers.modules() if isinstance(module, Linear)]
    stored = [module for module in linears if module.weight.device.type != "meta"]
    assert len(stored) == (packed.target.config.layers if kind == "deepseek" else 0)
    assert all((module.packed is None) is (module in stored) for module in linears)
