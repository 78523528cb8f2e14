"""Which experts a token takes, and with what weights.

softmax (Qwen3-MoE): s = softmax(logits), the k best by s. sigmoid (DeepSeek-V3, arXiv 2412.19437, 2.1.2): s =
sigmoid(logits), the k best by c = s + bias, the bias for the choice only; with groups, only those of the best groups, a group
being as good as its two best c. Weights are s at the picks, divided by their sum + 1e-20 where `normalized`, times `factor`.
Equal scores: the lower expert first. All in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Launch, jit, on_triton, pow2, require, tl


@dataclass(frozen=True)
class Routing:
    """How experts are scored and chosen: `per_token` of them, from the `top_groups` best of `groups` groups."""

    score: Literal["softmax", "sigmoid"]
    per_token: int
    groups: int = 1
    top_groups: int = 1
    normalized: bool = True
    factor: float = 1.0


def moe_router(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """logits [tokens, experts], bias float32 [experts] or None -> (experts int32, weights float32) [tokens, per_token].

    Raises ValueError that names the argument.
    """
    if not on_triton(logits):
        return reference(logits, bias, routing)
    picks = torch.empty(len(logits), routing.per_token, dtype=torch.int32, device=logits.device)
    weights = torch.empty(len(logits), routing.per_token, device=logits.device)
    launch(logits, bias, routing, picks, weights).run()
    return picks, weights


def reference(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """`moe_router` in torch."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = wide.softmax(dim=-1) if routing.score == "softmax" else wide.sigmoid()
    choice = scores if bias is None else scores + bias
    if routing.groups > 1:
        grouped = choice.unflatten(-1, (routing.groups, -1))
        merit = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        best = merit.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_groups]
        outside = torch.ones_like(merit, dtype=torch.bool).scatter(1, best, False)
        choice = grouped.masked_fill(outside.unsqueeze(-1), -torch.inf).flatten(1)
    picks = choice.sort(dim=-1, descending=True, stable=True).indices[:, : routing.per_token]
    weights = scores.gather(1, picks)
    if routing.normalized:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return picks.to(torch.int32), weights * routing.factor


@jit()
def moe_router_kernel(
    logits_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    picks_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    token_stride: tl.tensor,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_LANES: tl.constexpr,
    MEMBERS: tl.constexpr,
    PICKS: tl.constexpr,
    LANES: tl.constexpr,
    SIGMOID: tl.constexpr,
    BIASED: tl.constexpr,
    NORMALIZED: tl.constexpr,
    FACTOR: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    # Experts as [groups, members]: lanes past the last group or member hold nothing.
    group = tl.arange(0, GROUP_LANES)[:, None]
    member = tl.arange(0, MEMBERS)[None, :]
    expert = group * GROUP + member
    real = (group < GROUPS) & (member < GROUP)
    x = tl.load(logits_ptr + token * token_stride + expert, mask=real, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
    else:
        scores = tl.exp(x - tl.max(tl.max(x, axis=1), axis=0))
        scores = scores / tl.sum(tl.sum(scores, axis=1), axis=0)
    choice = scores
    if BIASED:
        choice += tl.load(bias_ptr + expert, mask=real, other=0.0)
    choice = tl.where(real, choice, float("-inf"))
    if GROUPS > 1:
        best = tl.max(choice, axis=1)
        merit = best
        if GROUP > 1:
            first = tl.min(tl.where(choice == best[:, None], member, MEMBERS), axis=1)
            merit += tl.max(tl.where(member == first[:, None], float("-inf"), choice), axis=1)
        lane = tl.arange(0, GROUP_LANES)
        merit = tl.where(lane < GROUPS, merit, float("-inf"))
        chosen = tl.zeros([GROUP_LANES], dtype=tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            top = tl.min(tl.where(merit == tl.max(merit, axis=0), lane, GROUP_LANES), axis=0)
            chosen = tl.where(lane == top, 1, chosen)
            merit = tl.where(lane == top, float("-inf"), merit)
        choice = tl.where(chosen[:, None] > 0, choice, float("-inf"))
    place = tl.arange(0, LANES)
    picks = tl.zeros([LANES], dtype=tl.int32)
    weights = tl.zeros([LANES], dtype=tl.float32)
    for rank in tl.static_range(PICKS):
        best = tl.max(tl.max(choice, axis=1), axis=0)
        pick = tl.min(tl.min(tl.where(choice == best, expert, EXPERTS), axis=1), axis=0)
        here = expert == pick
        weight = tl.sum(tl.sum(tl.where(here & real, scores, 0.0), axis=1), axis=0)
        picks = tl.where(place == rank, pick, picks)
        weights = tl.where(place == rank, weight, weights)
        choice = tl.where(here, float("-inf"), choice)
    if NORMALIZED:
        weights = weights / (tl.sum(weights, axis=0) + 1.0e-20)
    tl.store(picks_ptr + token * PICKS + place, picks, mask=place < PICKS)
    tl.store(weights_ptr + token * PICKS + place, weights * FACTOR, mask=place < PICKS)


def config(arch: int, experts: int) -> int:
    """Warps for one token's experts: rounds of a maximum over registers, so few; the same on every architecture."""
    return 1 if experts <= 256 else 4


def floor(tokens: int, experts: int, per_token: int, element_bytes: int) -> Floor:
    """Reads the logits, writes picks and weights; what it takes is latency: `per_token` maxima over the experts."""
    return Floor(tokens * (experts * element_bytes + 8 * per_token), tokens * experts * (per_token + 4))


def launch(logits: Tensor, bias: Tensor | None, routing: Routing, picks: Tensor, weights: Tensor) -> Launch:
    """logits contiguous within a token; picks and weights [tokens, per_token] contiguous."""
    tokens, experts = logits.shape
    groups = routing.groups
    require(logits.stride(1) == 1, "logits", "contiguous within a token", f"strided {logits.stride()}")
    require(experts % groups == 0, "groups", f"a divisor of {experts} experts", groups)
    reachable = experts // groups * min(routing.top_groups, groups)
    require(0 < routing.per_token <= reachable, "per_token", f"from 1 to {reachable}", routing.per_token)
    require(
        bias is None or bias.shape == (experts,), "bias", f"[{experts}]", None if bias is None else tuple(bias.shape)
    )
    arguments: dict[str, Argument] = {
        "logits_ptr": logits, "bias_ptr": bias, "picks_ptr": picks, "weights_ptr": weights, "token_stride": logits.stride(0),
        "EXPERTS": experts, "GROUPS": groups, "TOP_GROUPS": routing.top_groups, "GROUP": experts // groups,
        "GROUP_LANES": pow2(groups), "MEMBERS": pow2(experts // groups), "PICKS": routing.per_token, "LANES": pow2(routing.per_token),
        "SIGMOID": routing.score == "sigmoid", "BIASED": bias is not None, "NORMALIZED": routing.normalized, "FACTOR": routing.factor,
    }  # fmt: skip
    return Launch(moe_router_kernel, (tokens,), arguments, config(0, experts), stages=1)


def cases(arch: int) -> Iterator[Case]:
    """Qwen3-MoE, Kimi K2 and DeepSeek-V3."""
    kinds = (
        ("qwen3", 128, Routing("softmax", 8)),
        ("kimi-k2", 384, Routing("sigmoid", 8, factor=2.827)),
        ("deepseek-v3", 256, Routing("sigmoid", 8, groups=8, top_groups=4, factor=2.5)),
    )
    for name, experts, routing in kinds:
        logits = torch.empty(16, experts, device="meta")
        bias = logits[0] if routing.score == "sigmoid" else None
        yield name, launch(logits, bias, routing, logits[:, :8].to(torch.int32), logits[:, :8])
