"""SwiGLU's elementwise half: silu(gate) * up."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [..., 2 * inner], gate first -> [..., inner]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
