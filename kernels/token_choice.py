"""The target's token after each node: the most probable, or one sampled, the same whatever the tree or the batch was.

token = argmax_v(logits_v / temperature - log E_v) with exponential noise E_v that is a function of (seed, position, v) alone:
Philox4x32-10 with counter (v, position, 0, 0) under the seed as key (Salmon et al. 2011). So a sampled tree run equals the
sampled autoregressive run, up to rounding of the logits. top_k, top_p and min_p leave tokens out as in `engine.sampling`, in
that order; tokens that tie with the last one kept are kept as well, found by bisection over float32 values, no sort.

E = -log(1 - u) with u of 64 random bits, whose smallest values a float32 holds: rare noise wins as often as it should.
Sampling parameters are read on the device, so one captured graph serves every request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.draft_topk import sortable
from kernels.launch import Argument, Case, Floor, Launch, cdiv, jit, on_triton, pow2, require, tl

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy."""


@dataclass(frozen=True)
class SamplingTensors:
    """A request's sampling, on the device. `seed` int64 [1]; `top_k` int32 [1], 0 for none.

    `factors` float32 [3]: temperature, top_p (1 for none), min_p (0 for none).
    """

    seed: Tensor
    top_k: Tensor
    factors: Tensor

    @staticmethod
    def of(seed: int, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> SamplingTensors:
        """On the CPU; `fill` carries it to a device."""
        factors = torch.tensor([temperature, top_p, min_p])
        return SamplingTensors(torch.tensor([seed]), torch.tensor([top_k], dtype=torch.int32), factors)

    def fill(self, other: SamplingTensors) -> None:
        """Take over the other's values, in place."""
        self.seed.copy_(other.seed)
        self.top_k.copy_(other.top_k)
        self.factors.copy_(other.factors)


def token_choice(logits: Tensor, positions: Tensor, sampling: SamplingTensors) -> Tensor:
    """logits [rows, vocab], positions int64 [rows]: absolute position of the token each row chooses -> int64 [rows]."""
    if not on_triton(logits):
        return reference(logits, positions, sampling)
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for launch in launches(logits if logits.stride(1) == 1 else logits.contiguous(), positions, sampling, out):
        launch.run()
    return out


def reference(logits: Tensor, positions: Tensor, sampling: SamplingTensors) -> Tensor:
    """`token_choice` in torch, in float64 beyond the scaled logits."""
    temperature, top_p, min_p = sampling.factors.tolist()
    if temperature < GREEDY_BELOW:
        return logits.float().argmax(dim=-1)
    scaled = (logits.float() / temperature).double()
    cut = cut_reference(scaled, int(sampling.top_k), top_p, min_p)
    token = torch.arange(logits.shape[1], device=logits.device)
    noise = exponential_noise(int(sampling.seed), positions[:, None], token)
    return (scaled - noise.log()).masked_fill(scaled < cut[:, None], -torch.inf).argmax(dim=-1)


def cut_reference(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The smallest scaled logit each row keeps, float64 [rows]; -inf where nothing is left out."""
    cut = torch.full((len(scaled),), -torch.inf, dtype=scaled.dtype, device=scaled.device)
    by_rank = scaled.sort(dim=-1, descending=True).values
    if 0 < top_k < scaled.shape[1]:
        cut = by_rank[:, top_k - 1]
    if top_p < 1:
        probs = by_rank.masked_fill(by_rank < cut[:, None], -torch.inf).softmax(dim=-1)
        kept = (probs.cumsum(dim=-1) - probs < top_p).sum(dim=-1, keepdim=True)
        cut = torch.maximum(cut, by_rank.gather(1, kept - 1)[:, 0])
    if min_p > 0:
        cut = torch.maximum(cut, by_rank[:, 0] + torch.tensor(min_p, dtype=scaled.dtype).log())
    return cut


def exponential_noise(seed: int, positions: Tensor, tokens: Tensor) -> Tensor:
    """Exponential noise, float64, a function of (seed, position, token) alone; positions and tokens int64, broadcast."""
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    zero = torch.zeros_like(positions + tokens)
    c = [zero + (tokens & 0xFFFFFFFF), zero + (positions & 0xFFFFFFFF), zero, zero]
    for _ in range(10):
        (high_0, low_0), (high_1, low_1) = _product(0xD2511F53, c[0]), _product(0xCD9E8D57, c[2])
        c = [high_1 ^ c[1] ^ key[0], low_1, high_0 ^ c[3] ^ key[1], low_0]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    u = c[0].double() * 2.0**-32 + c[1].double() * 2.0**-64
    return -torch.log1p(-u.clamp(2.0**-64, 1 - 2.0**-24))


def _product(factor: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of factor * x, both of 32 bits, in int64 without overflow."""
    low = (factor & 0xFFFF) * x
    high = (factor >> 16) * x + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


@jit()
def ordered(
    x: tl.tensor,
) -> tl.tensor:
    """float32 -> int32 of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit()
def kept_at(
    row_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    peak: tl.tensor,
    least: tl.tensor,
    BLOCK: tl.constexpr,
    MASS: tl.constexpr,
) -> tl.tensor:
    """How many scaled logits of a row are `least` or more (ordered), or with MASS the sum of their exp(x - peak)."""
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32) / temperature
        weight = tl.exp(x - peak) if MASS else tl.full([BLOCK], 1.0, dtype=tl.float32)
        sums += tl.where((token < vocab) & (ordered(x) >= least), weight, 0.0)
    return tl.sum(sums, axis=0)


@jit()
def least_kept(
    row_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    peak: tl.tensor,
    low: tl.tensor,
    wanted: tl.tensor,
    BLOCK: tl.constexpr,
    MASS: tl.constexpr,
) -> tl.tensor:
    """The greatest ordered value at which `kept_at` still reaches `wanted`; `low` surely does, anything over peak does not."""
    low, high = low.to(tl.int64), ordered(peak).to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        enough = kept_at(row_ptr, vocab, temperature, peak, middle, BLOCK, MASS) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low.to(tl.int32)


@jit()
def choice_cut_kernel(
    logits_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    factors_ptr: tl.tensor,
    cut_ptr: tl.tensor,
    vocab: tl.tensor,
    row_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    temperature, top_p, min_p = tl.load(factors_ptr), tl.load(factors_ptr + 1), tl.load(factors_ptr + 2)
    top_k = tl.load(top_k_ptr)
    cut = float("-inf") + tl.zeros([], dtype=tl.float32)
    limited = (top_k > 0) & (top_k < vocab)
    if (temperature >= 1.0e-5) & (limited | (top_p < 1.0) | (min_p > 0.0)):
        peaks = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
        lows = tl.full([BLOCK], float("inf"), dtype=tl.float32)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32) / temperature
            peaks = tl.maximum(peaks, x)
            lows = tl.minimum(lows, tl.where(token < vocab, x, float("inf")))
        peak = tl.max(peaks, axis=0)
        low = ordered(tl.min(lows, axis=0))
        if limited:
            low = least_kept(row_ptr, vocab, temperature, peak, low, top_k.to(tl.float32), BLOCK, False)
        if top_p < 1.0:
            mass = kept_at(row_ptr, vocab, temperature, peak, low, BLOCK, True)
            low = least_kept(row_ptr, vocab, temperature, peak, low, top_p * mass, BLOCK, True)
        cut = (low ^ ((low >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        if min_p > 0.0:
            cut = tl.maximum(cut, peak + tl.log(min_p))
    tl.store(cut_ptr + row, cut)


@jit(varying=("parts",))
def choice_scan_kernel(
    logits_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    factors_ptr: tl.tensor,
    cut_ptr: tl.tensor,
    best_ptr: tl.tensor,
    vocab: tl.tensor,
    parts: tl.tensor,
    row_stride: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits_ptr + row * row_stride + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    temperature = tl.load(factors_ptr)
    if temperature >= 1.0e-5:
        x = x / temperature
        position = tl.load(positions_ptr + row).to(tl.uint32)
        zero = tl.zeros([CHUNK], dtype=tl.uint32)
        first, second, _, _ = tl.philox(tl.load(seed_ptr), token.to(tl.uint32), zero + position, zero, zero)
        u = first.to(tl.float32) * 2.3283064365386963e-10 + second.to(tl.float32) * 5.421010862427522e-20
        u = tl.minimum(tl.maximum(u, 5.421010862427522e-20), 0.99999994)
        noise = tl.where(u < 1.0e-3, u * (1.0 + u * (0.5 + u * 0.33333334)), -tl.log(1.0 - u))
        x = tl.where(x >= tl.load(cut_ptr + row), x - tl.log(noise), float("-inf"))
    packed = tl.where(token < vocab, sortable(x, token), -(2**63))
    tl.store(best_ptr + row * parts + part, tl.max(packed, axis=0))


@jit(varying=("parts",))
def choice_pick_kernel(
    best_ptr: tl.tensor,
    out_ptr: tl.tensor,
    parts: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    best = tl.max(tl.load(best_ptr + row * parts + part, mask=part < parts, other=-(2**63)), axis=0)
    tl.store(out_ptr + row, 0xFFFFFFFF - (best & 0xFFFFFFFF))


def config(arch: int, vocab: int) -> tuple[int, int]:
    """(tokens a program, warps): many programs a row, so that few rows fill the GPU; on every architecture."""
    return (2048, 4) if vocab > 2048 else (max(pow2(vocab), 32), 1)


def floor(rows: int, vocab: int, element_bytes: int) -> Floor:
    """Reads the logits once (a filter reads them some 70 times more, from the L2 cache); about 60 operations of noise a logit."""
    return Floor(rows * (vocab * element_bytes + 8), 60 * rows * vocab)


def launches(
    logits: Tensor, positions: Tensor, sampling: SamplingTensors, out: Tensor, chunk: int | None = None
) -> tuple[Launch, ...]:
    """The cut, the scan, the pick. logits contiguous within a row. `chunk` replaces the configuration's."""
    rows, vocab = logits.shape
    require(
        positions.shape == (rows,) and positions.dtype is torch.int64,
        "positions",
        f"int64 [{rows}]",
        tuple(positions.shape),
    )
    require(sampling.seed.device == logits.device, "sampling", f"on {logits.device} like logits", sampling.seed.device)
    of_config, warps = config(0, vocab)
    chunk = chunk or of_config
    parts = cdiv(vocab, chunk)
    cut = torch.empty(rows, device=logits.device)
    best = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
    filtered: dict[str, Argument] = {
        "logits_ptr": logits, "top_k_ptr": sampling.top_k, "factors_ptr": sampling.factors, "cut_ptr": cut,
        "vocab": vocab, "row_stride": logits.stride(0), "BLOCK": min(4 * chunk, 4096),
    }  # fmt: skip
    scan: dict[str, Argument] = {
        "logits_ptr": logits, "positions_ptr": positions, "seed_ptr": sampling.seed, "factors_ptr": sampling.factors, "cut_ptr": cut,
        "best_ptr": best, "vocab": vocab, "parts": parts, "row_stride": logits.stride(0), "CHUNK": chunk,
    }  # fmt: skip
    pick: dict[str, Argument] = {"best_ptr": best, "out_ptr": out, "parts": parts, "PARTS": pow2(parts)}
    wide = logits.stride(0) % 8 == 0 and chunk >= 1024
    return (
        Launch(choice_cut_kernel, (rows,), filtered, 8 if chunk >= 1024 else 1),
        Launch(choice_scan_kernel, (rows, parts), scan, warps, wide=wide),
        Launch(choice_pick_kernel, (rows,), pick, 1),
    )


def cases(arch: int) -> Iterator[Case]:
    """The vocabularies of Qwen3 and of a toy."""
    for vocab in (64, 151936):
        logits = torch.empty(65, vocab, dtype=torch.bfloat16, device="meta")
        ids = torch.empty(65, dtype=torch.int64, device="meta")
        sampling = SamplingTensors(ids, torch.empty(1, dtype=torch.int32, device="meta"), torch.empty(3, device="meta"))
        for launch in launches(logits, ids, sampling, ids):
            yield f"vocab={vocab}", launch
