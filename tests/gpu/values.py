"""Values of every kernel in bfloat16 at real sizes against float64 references; whatever is an integer has to be equal."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from kernels import (
    draft_topk,
    int4_gemm,
    kv_store,
    latent_attention,
    moe_align,
    moe_gemm,
    moe_router,
    paged_attention,
    path_commit,
    rms_norm,
    rope,
    silu_mul,
    token_choice,
    tree_build,
)
from kernels.accept_walk import Accepted, accept_walk
from kernels.accept_walk import reference as walk_reference
from kernels.moe_gemm import ExpertWeights
from kernels.moe_router import Routing
from kernels.token_choice import SamplingTensors
from kernels.tree_build import TreeTensors, ancestor_words
from tests.gpu.measure import Bench, Row

LIMIT = 8e-3
"""RMS error over RMS of the exact values: bfloat16 rounds by 2^-9 at most, 0.0011 in the mean; sums add little."""


Check = Callable[[Bench], float]


def all_checks() -> tuple[Check, ...]:
    """One or more a kernel, each giving its error ratio."""
    return (
        norms, rotary, silu, stored, attention, windowed_attention, latents, commit, trees, walks, candidates, greedy, sampled,
        routers, alignment, int4, experts_dense, experts_packed,
    )  # fmt: skip


def checked(check: Check, bench: Bench) -> list[Row]:
    """The row of a check. Raises AssertionError where its values are wrong, with the figure."""
    error = check(bench)
    assert error <= LIMIT, f"error ratio {error:.2e} over {LIMIT:.0e}"
    return [Row("values", check.__name__, note="equal" if error == 0 else f"error ratio {error:.1e}")]


def numbers(bench: Bench, *shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator(bench.device).manual_seed(seed), device=bench.device)
    return made.to(dtype)


def integers(values: list[int] | list[list[int]], bench: Bench) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=bench.device)


def error_ratio(ours: Tensor, exact: Tensor) -> float:
    difference = (ours.double() - exact.double()).square().mean() / exact.double().square().mean()
    return difference.sqrt().item()


def equal(*pairs: tuple[Tensor, Tensor]) -> float:
    for ours, exact in pairs:
        assert torch.equal(ours, exact), f"{int((ours != exact).sum())} of {ours.numel()} differ"
    return 0.0


def random_tree(nodes: int, seed: int) -> tuple[list[int], list[int]]:
    """(parents, depths)"""
    dice = random.Random(seed)
    parents, depths = [-1], [0]
    for node in range(1, nodes):
        parents.append(dice.randrange(max(0, node - 8), node))
        depths.append(depths[parents[-1]] + 1)
    return parents, depths


def pages(bench: Bench, tokens: int, page_size: int) -> tuple[Tensor, int]:
    """(a shuffled page table, slots of the pool)"""
    count = -(-tokens // page_size)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    return order.to(torch.int32).to(bench.device), count * page_size


def norms(bench: Bench) -> float:
    x, delta, weight = numbers(bench, 65, 4096), numbers(bench, 65, 4096, seed=1), numbers(bench, 4096, seed=2)
    stream = x.clone()
    normed = rms_norm.add_rms_norm(stream, delta, weight, 1e-6)
    equal((stream, x + delta))
    wide = stream.double()
    return error_ratio(normed, wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double())


def rotary(bench: Bench) -> float:
    positions = torch.arange(65, device=bench.device) * 2001
    frequencies = rope.rope_frequencies(128, 1e6).to(bench.device)
    cos, sin = rope.rope_tables(positions, frequencies, torch.float32)
    angles = positions[:, None].float() * frequencies
    assert (cos[:, 0, :64].double() - angles.double().cos()).abs().max() < 2e-6
    x = numbers(bench, 65, 40, 128)
    tables = (cos.bfloat16(), sin.bfloat16())
    return error_ratio(rope.apply_rope(x, *tables), rope.reference(x.double(), tables[0].double(), tables[1].double()))


def silu(bench: Bench) -> float:
    x = numbers(bench, 65, 2 * bench.size(12288, 96))
    gate, up = x.double().chunk(2, dim=-1)
    return error_ratio(silu_mul.silu_mul(x), gate * gate.sigmoid() * up)


def stored(bench: Bench) -> float:
    table, slots = pages(bench, 300, 16)
    extent = integers([200, 60], bench)
    qkv, weights = numbers(bench, 65, 48, 128), (numbers(bench, 128, seed=1), numbers(bench, 128, seed=2))
    depths = torch.arange(65, device=bench.device) % 9
    tables = rope.tables_reference(200 + depths, rope.rope_frequencies(128, 1e6).to(bench.device), torch.bfloat16)
    keys, values = (torch.zeros(slots, 8, 128, dtype=torch.bfloat16, device=bench.device) for _ in range(2))
    q = kv_store.kv_store(qkv, weights, 1e-6, tables, table, extent, keys, values, page_size=16)
    wide = [t.double() for t in (keys * 0, values * 0)]
    given = (qkv.double(), (weights[0].double(), weights[1].double()), 1e-6, (tables[0].double(), tables[1].double()))
    exact = kv_store.reference(*given, table, extent, *wide, 16)
    equal((values, wide[1].bfloat16()))
    return max(error_ratio(q, exact), error_ratio(keys, wide[0]))


def attention_scene(bench: Bench, nodes: int, page_size: int) -> tuple[Tensor, ...]:
    """(q, keys, values, page table, extent, ancestors, depths); the pool is poisoned but for the request's slots."""
    length = bench.size(8000, 90)
    table, slots = pages(bench, length + nodes, page_size)
    parents, depths = random_tree(nodes, nodes)
    used = torch.arange(length + nodes, device=bench.device)
    used = table[used // page_size].long() * page_size + used % page_size
    cache = torch.full((2, slots, 8, 128), math.nan, dtype=torch.bfloat16, device=bench.device)
    cache[:, used] = numbers(bench, 2, length + nodes, 8, 128)
    q, words = numbers(bench, nodes, 32, 128, seed=2), ancestor_words(parents).to(bench.device)
    return q, cache[0], cache[1], table, integers([length, nodes], bench), words, integers(depths, bench)


def attention(bench: Bench) -> float:
    errors = []
    for nodes in (1, 4, 8, 33, 65):
        for page_size in (1, 7, 16, 64, 256):
            q, keys, values, *rest, _ = attention_scene(bench, nodes, page_size)
            longest = int(rest[1][0])
            ours = paged_attention.paged_attention(q, keys, values, *rest, page_size=page_size, longest=longest)
            given = (q.double(), keys.double(), values.double(), *rest)
            errors.append(error_ratio(ours, paged_attention.reference(*given, page_size, 128**-0.5)))
    return max(errors)


def windowed_attention(bench: Bench) -> float:
    q, keys, values, *rest, depths = attention_scene(bench, 16, 16)
    window, longest = bench.size(2048, 30), int(rest[1][0])
    ours = paged_attention.paged_attention(
        q, keys, values, *rest, page_size=16, longest=longest, window=window, depths=depths
    )
    given = (q.double(), keys.double(), values.double(), *rest)
    return error_ratio(ours, paged_attention.reference(*given, 16, 128**-0.5, window, depths))


def latents(bench: Bench) -> float:
    errors = []
    for nodes, page_size in ((1, 64), (16, 1), (16, 64)):
        length = bench.size(4000, 60)
        table, slots = pages(bench, length + nodes, page_size)
        words = ancestor_words(random_tree(nodes, nodes)[0]).to(bench.device)
        q, cache = numbers(bench, nodes, 8, 576), numbers(bench, slots, 576, seed=1)
        rest = (table, integers([length, nodes], bench), words)
        ours = latent_attention.latent_attention(
            q, cache, *rest, rank=512, scale=0.05, page_size=page_size, longest=length
        )
        exact = latent_attention.reference(q.double(), cache.double(), *rest, 512, 0.05, page_size)
        errors.append(error_ratio(ours, exact))
    return max(errors)


def commit(bench: Bench) -> float:
    """The one kernel that waits inside: many times over, since a race need not show at once."""
    table, slots = pages(bench, 400, 16)
    extent = integers([300, 65], bench)
    for turn in range(bench.size(50, 2)):
        dice = random.Random(turn)
        path = [0, *sorted(dice.sample(range(1, 65), 9))]
        padded = integers(path + [-1] * 6, bench)
        cache = numbers(bench, 36, slots, 8, 128, seed=turn) if bench.measures else numbers(bench, 2, slots, 2, 8)
        exact = cache.clone()
        path_commit.path_commit((cache,), table, extent, padded, page_size=16)
        path_commit.reference((exact,), table, extent, padded, 16)
        equal((cache, exact))
    return 0.0


def trees(bench: Bench) -> float:
    """Budgets, ties (few distinct logits), ranks past 127, adaptive stops."""
    seed = torch.tensor([5], device=bench.device)
    for budget, levels, adaptive in ((16, 0, False), (64, 0, False), (64, 3, False), (200, 0, False), (64, 0, True)):
        logits = numbers(bench, 15, 600, dtype=torch.float32, seed=budget) * 2
        if levels:
            logits = logits.mul(levels).round().div(levels)
        best = torch.log_softmax(logits, -1).sort(dim=-1, descending=True, stable=True)
        ids, log_probs = best.indices[:, :budget].contiguous(), best.values[:, :budget].contiguous()
        costs = torch.tensor([20 + 0.05 * n**1.5 for n in range(budget + 1)], device=bench.device) if adaptive else None
        same_tree(bench, seed, ids, log_probs, budget, costs)
    flat = torch.full((2, 200), -1.0, device=bench.device)
    flat[1] = -50.0
    same_tree(bench, seed, torch.arange(200, device=bench.device).expand(2, 200).contiguous(), flat, 180, None)
    return 0.0


def same_tree(bench: Bench, seed: Tensor, ids: Tensor, log_probs: Tensor, budget: int, costs: Tensor | None) -> None:
    ours = tree_build.tree_build(seed, ids, log_probs, budget, costs=costs)
    room = TreeTensors.empty(budget + 1, bench.device)
    exact = tree_build.reference(seed, ids, log_probs, budget, room, costs)
    equal(
        *(
            (getattr(ours, name), getattr(exact, name))
            for name in ("live", "token_ids", "parents", "depths", "ancestors")
        )
    )


def walks(bench: Bench) -> float:
    for turn in range(bench.size(40, 3)):
        dice = random.Random(turn)
        nodes, live = 65, dice.randrange(1, 66)
        parents = random_tree(live, turn)[0] + [-1] * (nodes - live)
        tokens = list(range(nodes))
        choices = [dice.choice([n for n in range(1, live) if parents[n] == node] or [999]) for node in range(nodes)]
        given = [torch.tensor(values, device=bench.device) for values in (tokens, choices)]
        rest = (integers(parents, bench), integers([live], bench), given[1])
        ours = accept_walk(given[0], *rest, 64)
        exact = walk_reference(given[0], *rest, Accepted.empty(65, bench.device))
        equal((ours.path, exact.path), (ours.token_ids, exact.token_ids), (ours.count, exact.count))
    return 0.0


def candidates(bench: Bench) -> float:
    logits = numbers(bench, 15, bench.size(151936, 500), dtype=torch.float32) * 3
    errors = []
    for k in (1, 16, 64, 200):
        ids, log_probs = draft_topk.draft_topk(logits, k)
        best = torch.log_softmax(logits.double(), -1).sort(dim=-1, descending=True, stable=True)
        equal((ids, best.indices[:, :k]))
        errors.append(error_ratio(log_probs, best.values[:, :k]))
    return max(errors)


def greedy(bench: Bench) -> float:
    logits = numbers(bench, 65, bench.size(151936, 300))
    positions = torch.arange(65, device=bench.device)
    ours = token_choice.token_choice(logits, positions, on(bench, SamplingTensors.of(0, 0.0)))
    best = logits.float().max(dim=-1, keepdim=True).values
    return equal((ours, (logits.float() == best).int().argmax(dim=-1)))  # the lower id of equals


def sampled(bench: Bench) -> float:
    """Equal to the reference draw by draw; logarithms differ in the last place, so 1 in 200 may differ."""
    logits = numbers(bench, 64, bench.size(20000, 300), dtype=torch.float32) * 3
    positions = torch.arange(64, device=bench.device) * 977
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (50, 0.9, 0.0), (0, 0.95, 0.02)):
        sampling = on(bench, SamplingTensors.of(2**61 + 7, 0.8, top_k, top_p, min_p))
        ours = token_choice.token_choice(logits, positions, sampling)
        different = int((ours != token_choice.reference(logits, positions, sampling)).sum())
        assert different <= 1, f"{different} of 64 draws differ from the reference's"
    return 0.0


def on(bench: Bench, sampling: SamplingTensors) -> SamplingTensors:
    return SamplingTensors(*(t.to(bench.device) for t in (sampling.seed, sampling.top_k, sampling.factors)))


def routers(bench: Bench) -> float:
    errors = []
    kinds = (
        (128, Routing("softmax", 8)),
        (384, Routing("sigmoid", 8, factor=2.827)),
        (256, Routing("sigmoid", 8, 8, 4, True, 2.5)),
    )
    for experts, routing in kinds:
        logits = numbers(bench, 65, experts, dtype=torch.float32)
        bias = numbers(bench, experts, dtype=torch.float32, seed=1) * 0.1 if routing.score == "sigmoid" else None
        picks, weights = moe_router.moe_router(logits, bias, routing)
        exact_picks, exact_weights = moe_router.reference(
            logits.double(), None if bias is None else bias.double(), routing
        )
        equal((picks, exact_picks))
        errors.append(error_ratio(weights, exact_weights))
    return max(errors)


def random_picks(bench: Bench, tokens: int, per_token: int, experts: int) -> Tensor:
    scores = numbers(bench, tokens, experts, dtype=torch.float32, seed=tokens)
    return scores.topk(per_token, dim=-1).indices.to(torch.int32)


def alignment(bench: Bench) -> float:
    for tokens, experts, block in ((1, 128, 16), (65, 384, 16), (bench.size(512, 40), 128, 64)):
        picks = random_picks(bench, tokens, 8, experts)
        ours = moe_align.moe_align(picks, experts, block)
        exact = moe_align.reference(picks, experts, moe_align.Blocks(ours.pairs.clone(), ours.experts.clone()))
        equal((ours.pairs, exact.pairs), (ours.experts, exact.experts))
    return 0.0


def packed(bench: Bench, *shape: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(-(2**31), 2**31, (*shape[:-1], shape[-1] // 8), device=bench.device).to(torch.int32)
    return words, numbers(bench, *shape[:-1], shape[-1] // 32) * 0.02


def int4(bench: Bench) -> float:
    errors = []
    for rows in (1, 16, 33, 65):
        outputs, inputs = bench.size(4096, 64), bench.size(7168, 96)
        x, (words, scales) = numbers(bench, rows, inputs), packed(bench, outputs, inputs)
        exact = x.double() @ int4_gemm.unpack(words, scales, torch.bfloat16).double().T
        errors.append(error_ratio(int4_gemm.int4_gemm(x, words, scales), exact))
    return max(errors)


def experts_of(bench: Bench, gate_up: ExpertWeights, down: ExpertWeights, tokens: int, hidden: int) -> float:
    experts = len(gate_up.values)
    picks = random_picks(bench, tokens, 4, experts)
    x, weights = numbers(bench, tokens, hidden), numbers(bench, tokens, 4, dtype=torch.float32, seed=3).abs()
    ours = moe_gemm.expert_mlp(x, picks, weights, gate_up, down)
    exact = torch.zeros(tokens, hidden, dtype=torch.float64, device=bench.device)
    wide_gate_up, wide_down = gate_up.dense(torch.bfloat16).double(), down.dense(torch.bfloat16).double()
    for token in range(tokens):
        for rank, expert in enumerate(picks[token].tolist()):
            gate, up = (wide_gate_up[expert] @ x[token].double()).chunk(2)
            inner = (gate * gate.sigmoid() * up).bfloat16().double()
            exact[token] += weights[token, rank].double() * (wide_down[expert] @ inner)
    return error_ratio(ours, exact)


def experts_dense(bench: Bench) -> float:
    hidden, inner = bench.size(2048, 64), bench.size(768, 32)
    gate_up = ExpertWeights(numbers(bench, 16, 2 * inner, hidden) * 0.02)
    down = ExpertWeights(numbers(bench, 16, hidden, inner, seed=1) * 0.02)
    return experts_of(bench, gate_up, down, 33, hidden)


def experts_packed(bench: Bench) -> float:
    hidden, inner = bench.size(2048, 64), bench.size(768, 32)
    gate_up, down = (ExpertWeights(*packed(bench, 16, *shape)) for shape in ((2 * inner, hidden), (hidden, inner)))
    return experts_of(bench, gate_up, down, 33, hidden)
