"""A mixture of experts in place of the MLP: a router, the routed experts, and the shared one every token takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.models.config import Experts
from engine.models.int4 import PER_WORD, unpack
from engine.models.layers import Mlp
from kernels.int4_gemm import GROUP
from kernels.launch import on_triton
from kernels.linear import linear
from kernels.moe_gemm import ExpertWeights, expert_mlp
from kernels.moe_router import Routing, moe_router
from kernels.silu_mul import silu_mul


class Router(nn.Module):
    """Which experts a token takes, and with what weights. Scores are computed in float32 whatever the model's dtype is."""

    def __init__(self, hidden: int, shape: Experts) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.count, hidden))
        if shape.score == "sigmoid":
            self.e_score_correction_bias = nn.Parameter(torch.empty(shape.count, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] -> (experts [tokens, per_token], their weights float32 of the same shape)."""
        shape = self.shape
        if on_triton(x):
            return self._routed_by_kernel(x)
        if shape.score == "softmax":
            scores = linear(x, self.weight).float().softmax(dim=-1)
            picks = scores.topk(shape.per_token, dim=-1).indices
        else:
            scores = linear(x.float(), self.weight.float()).sigmoid()
            picks = self._within_groups(scores + self.e_score_correction_bias).topk(shape.per_token, dim=-1).indices
        weights = scores.gather(1, picks)
        if shape.normalized:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return picks, weights * shape.scale

    def _routed_by_kernel(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.shape
        routing = Routing(shape.score, shape.per_token, shape.groups, shape.top_groups, shape.normalized, shape.scale)
        if shape.score == "softmax":
            return moe_router(linear(x, self.weight), None, routing)
        return moe_router(linear(x.float(), self.weight.float()), self.e_score_correction_bias, routing)

    def _within_groups(self, choice: Tensor) -> Tensor:
        """Scores for the choice, with those outside the best groups at -inf. A group is as good as its two best experts."""
        shape = self.shape
        if shape.groups == 1:
            return choice
        grouped = choice.view(len(choice), shape.groups, -1)
        merit = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        best = merit.topk(shape.top_groups, dim=-1).indices
        outside = torch.ones_like(merit, dtype=torch.bool).scatter(1, best, False)
        return grouped.masked_fill(outside.unsqueeze(-1), -torch.inf).view_as(choice)


class RoutedExperts(nn.Module):
    """The experts' matrices, stacked. Packed ones stay packed; an expert's weights are unpacked when it is used."""

    def __init__(self, hidden: int, shape: Experts) -> None:
        super().__init__()
        self.packed, self.group = bool(shape.packed_group), shape.packed_group
        sizes = {"gate_up_proj": (2 * shape.inner, hidden), "down_proj": (hidden, shape.inner)}
        for name, (outputs, inputs) in sizes.items():
            if self.packed:
                words = torch.empty(shape.count, outputs, inputs // PER_WORD, dtype=torch.int32)
                scales = torch.empty(shape.count, outputs, inputs // shape.packed_group)
                self.register_parameter(f"{name}_packed", nn.Parameter(words, requires_grad=False))
                self.register_parameter(f"{name}_scale", nn.Parameter(scales))
            else:
                self.register_parameter(name, nn.Parameter(torch.empty(shape.count, outputs, inputs)))

    def weight(self, name: str, expert: int, dtype: torch.dtype) -> Tensor:
        """One expert's "gate_up_proj" or "down_proj", [outputs, inputs]."""
        if self.packed:
            words, scales = self.get_parameter(f"{name}_packed"), self.get_parameter(f"{name}_scale")
            return unpack(words[expert], scales[expert], dtype)
        return self.get_parameter(name)[expert]

    def forward(self, x: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
        """Sum over each token's experts, weighted: x [tokens, hidden], picks and weights [tokens, per_token].

        Experts go in order of their number, so a token's sum does not depend on the tokens beside it. Packed weights run
        in the kernels where their scales are for 32 inputs each.
        """
        if on_triton(x) and (not self.packed or self.group == GROUP):
            return expert_mlp(
                x, picks.to(torch.int32), weights, self._stacked("gate_up_proj"), self._stacked("down_proj")
            )
        out = torch.zeros_like(x)
        for expert in picks.unique().tolist():
            tokens, ranks = torch.where(picks == expert)
            inner = silu_mul(linear(x[tokens], self.weight("gate_up_proj", expert, x.dtype)))
            rows = linear(inner, self.weight("down_proj", expert, x.dtype))
            out.index_add_(0, tokens, (rows * weights[tokens, ranks, None]).to(x.dtype))
        return out

    def _stacked(self, name: str) -> ExpertWeights:
        if self.packed:
            return ExpertWeights(self.get_parameter(f"{name}_packed"), self.get_parameter(f"{name}_scale"))
        return ExpertWeights(self.get_parameter(name))


class ExpertMlp(nn.Module):
    """The router's experts, plus the shared one."""

    def __init__(self, hidden: int, shape: Experts) -> None:
        super().__init__()
        self.gate = Router(hidden, shape)
        self.experts = RoutedExperts(hidden, shape)
        self.shared_experts = Mlp(hidden, shape.shared) if shape.shared else None

    def forward(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] -> [tokens, hidden]."""
        routed: Tensor = self.experts(x, *self.gate(x))
        return routed if self.shared_experts is None else routed + self.shared_experts(x)
