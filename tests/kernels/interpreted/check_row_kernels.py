"""RMS norm, rotary embedding and SiLU in the interpreter against float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels import rms_norm as norms
from kernels import rope as ropes
from kernels import silu_mul as silus
from kernels.launch import KNOWN_GPUS
from tests.kernels.interpreted.inputs import close, guarded, numbers, programs_in_another_order

DTYPES = [torch.float32, torch.float16]


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (5, 16), (3, 100), (7, 576), (2, 1025)])
def test_rms_norm_divides_rows_by_their_root_mean_square(dtype: torch.dtype, rows: int, size: int) -> None:
    memory = torch.full((rows, size + 5), math.nan, dtype=dtype)
    x, weight = memory[:, :size], numbers(size, dtype=dtype, seed=1)
    x.copy_(numbers(rows, size) * 5)
    out, guard = guarded(rows, size, dtype=dtype, fill=math.nan)
    with programs_in_another_order(seed=rows):
        norms.launch(x, None, weight, 1e-5, out, KNOWN_GPUS[90]).run()
    close(out, exact_norm(x, weight, 1e-5))
    assert guard.isnan().all() and memory[:, size:].isnan().all()
    assert torch.equal(norms.rms_norm(x.view(rows, 1, size), weight, 1e-5)[:, 0], out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 24), (2, 3, 600)])
def test_the_residual_is_added_in_place_before_the_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    stream, delta, weight = (
        numbers(*shape, dtype=dtype),
        numbers(*shape, dtype=dtype, seed=1),
        numbers(shape[-1], dtype=dtype),
    )
    before = stream.clone()
    normed = norms.add_rms_norm(stream, delta, weight, 1e-6)
    assert torch.equal(stream, before + delta)
    close(normed, exact_norm(stream, weight, 1e-6))


def test_a_residual_of_another_shape_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"delta must be shaped \(2, 8\) like x, not \(2, 4\)"):
        norms.add_rms_norm(numbers(2, 8), numbers(2, 4), numbers(8), 1e-6)
    with pytest.raises(ValueError, match="x must be contiguous"):
        norms.add_rms_norm(numbers(8, 2).T, numbers(2, 8), numbers(8), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 24), (5, 64), (2, 130)])
def test_rotary_embedding_turns_by_each_rows_position(dtype: torch.dtype, heads: int, head_dim: int) -> None:
    positions = torch.tensor([0, 1, 1, 2, 70_001])
    frequencies = ropes.rope_frequencies(head_dim, 1e4)
    x = numbers(5, heads + 2, head_dim, dtype=dtype)[:, 1 : heads + 1]
    with programs_in_another_order(seed=heads):
        cos, sin = ropes.rope_tables(positions, frequencies, dtype)
        turned = ropes.apply_rope(x, cos, sin)
    angles = positions[:, None].float() * frequencies  # the angle itself is a float32 product, by contract
    close(cos[:, 0], torch.cat((angles, angles), -1).double().cos())
    close(sin[:, 0], torch.cat((-angles, angles), -1).double().sin())
    close(turned, ropes.reference(x.double(), cos.double(), sin.double()))


def test_tables_of_other_rows_are_refused_by_name() -> None:
    x, cos = numbers(4, 2, 8), numbers(3, 1, 8)
    with pytest.raises(ValueError, match="cos must be shaped"):
        ropes.apply_rope(x, cos, cos)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (3, 100), (2, 300), (2, 1100)])
def test_silu_mul_takes_the_gate_first(dtype: torch.dtype, rows: int, inner: int) -> None:
    memory = torch.full((rows, 2 * inner + 3), math.nan, dtype=dtype)
    gate_up = memory[:, : 2 * inner]
    gate_up.copy_(numbers(rows, 2 * inner) * 3)
    out, guard = guarded(rows, inner, dtype=dtype, fill=math.nan)
    with programs_in_another_order(seed=inner):
        silus.launch(gate_up, out).run()
    gate, up = gate_up.double().chunk(2, dim=-1)
    close(out, gate * gate.sigmoid() * up)
    assert guard.isnan().all()
    assert torch.equal(silus.silu_mul(gate_up), out)


def test_rows_that_begin_past_two_to_the_31_are_found() -> None:
    stride = 2**31 // 2 + 64
    far = torch.empty(2 * stride + 64, dtype=torch.float16).as_strided(
        (3, 32), (stride, 1)
    )  # never touched but for the rows
    far.copy_(numbers(3, 32))
    out = torch.empty(3, 16, dtype=torch.float16)
    silus.launch(far, out).run()
    close(out, silus.reference(far.double()))
    close(
        norms.rms_norm(far, numbers(32, dtype=torch.float16), 1e-6),
        exact_norm(far, numbers(32, dtype=torch.float16), 1e-6),
    )


def test_a_wanted_gradient_takes_the_reference() -> None:
    x = numbers(2, 8).requires_grad_()
    norms.rms_norm(x, torch.ones(8), 1e-6).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())
