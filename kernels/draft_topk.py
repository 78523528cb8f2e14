"""The best candidates of each drafted position, with log-probabilities over the whole vocabulary.

On a GPU: parts of the vocabulary each keep their k best and (peak, sum of exponentials); the lists then merge, a fixed
number at a time. Equal logits: the lower token id first, which torch's own selection leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Launch, cdiv, jit, on_triton, pow2, require, tl


def draft_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """logits [depths, vocab] -> (token ids int64, log-probabilities float32), each [depths, k], best first.

    Neither temperature nor any filter applies: the draft side stays the drafter's own distribution.
    """
    if not on_triton(logits):
        return reference(logits, k)
    ids = torch.empty(len(logits), k, dtype=torch.int64, device=logits.device)
    log_probs = torch.empty(len(logits), k, device=logits.device)
    for launch in launches(logits if logits.stride(1) == 1 else logits.contiguous(), ids, log_probs):
        launch.run()
    return ids, log_probs


def reference(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`draft_topk` in torch."""
    wide = logits.float()
    best = wide.topk(k, dim=-1)
    return best.indices, best.values - wide.logsumexp(dim=-1, keepdim=True)


@jit()
def sortable(
    x: tl.tensor,
    index: tl.tensor,
) -> tl.tensor:
    """float32 x and its place -> int64 whose order is x's, equal x by falling place."""
    bits = x.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - index.to(tl.int64))


@jit()
def best_of(
    packed: tl.tensor,
    K: tl.constexpr,
) -> tl.tensor:
    """The K greatest of a tile, greatest first."""
    if K == 1:
        return tl.max(packed, axis=0, keep_dims=True)
    return tl.topk(packed, K)


@jit(varying=("parts",))
def topk_scan_kernel(
    logits_ptr: tl.tensor,
    packed_ptr: tl.tensor,
    peak_ptr: tl.tensor,
    total_ptr: tl.tensor,
    vocab: tl.tensor,
    parts: tl.tensor,
    row_stride: tl.tensor,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits_ptr + row * row_stride + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, axis=0)
    total = tl.sum(tl.where(token < vocab, tl.exp(x - peak), 0.0), axis=0)
    packed = tl.where(token < vocab, sortable(x, token), -(2**63))
    at = row * parts + part
    tl.store(packed_ptr + at * K + tl.arange(0, K), best_of(packed, K))
    tl.store(peak_ptr + at, peak)
    tl.store(total_ptr + at, total)


@jit(varying=("lists", "groups", "parts", "k"))
def topk_merge_kernel(
    packed_ptr: tl.tensor,
    merged_ptr: tl.tensor,
    peak_ptr: tl.tensor,
    total_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    log_probs_ptr: tl.tensor,
    lists: tl.tensor,
    groups: tl.tensor,
    parts: tl.tensor,
    k: tl.tensor,
    K: tl.constexpr,
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    LAST: tl.constexpr,
) -> None:
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = group * SIZE + tl.arange(0, SIZE)
    packed = tl.load(packed_ptr + row * lists * K + place, mask=place < lists * K, other=-(2**63))
    best = best_of(packed, K)
    rank = tl.arange(0, K)
    if LAST:
        part = tl.arange(0, PARTS)
        peaks = tl.load(peak_ptr + row * parts + part, mask=part < parts, other=float("-inf"))
        totals = tl.load(total_ptr + row * parts + part, mask=part < parts, other=0.0)
        peak = tl.max(peaks, axis=0)
        log_total = peak + tl.log(tl.sum(totals * tl.exp(peaks - peak), axis=0))
        ordered = (best >> 32).to(tl.int32)
        x = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tl.store(ids_ptr + row * k + rank, 0xFFFFFFFF - (best & 0xFFFFFFFF), mask=rank < k)
        tl.store(log_probs_ptr + row * k + rank, x - log_total, mask=rank < k)
    else:
        tl.store(merged_ptr + (row * groups + group) * K + rank, best)


def config(arch: int, vocab: int, k: int) -> tuple[int, int, int]:
    """(tokens a part, candidates a merge, warps) for the k best of `vocab`; on every architecture."""
    chunk = max(min(1024, pow2(vocab)), pow2(k))
    candidates = cdiv(vocab, chunk) * pow2(k)
    return chunk, max(min(1024, pow2(candidates)), 2 * pow2(k)), 4


def floor(depths: int, vocab: int, k: int, element_bytes: int) -> Floor:
    """Reads the logits once, writes ids and log-probabilities; a comparison, an exponential and an addition a logit."""
    return Floor(depths * (vocab * element_bytes + 12 * k), 3 * depths * vocab)


def launches(
    logits: Tensor, ids: Tensor, log_probs: Tensor, chunk: int | None = None, size: int | None = None
) -> tuple[Launch, ...]:
    """The scan, then merges until one list a row is left. `chunk` and `size` replace the configuration's."""
    rows, vocab = logits.shape
    k = ids.shape[1]
    require(0 < k <= min(vocab, 256), "k", f"from 1 to {min(vocab, 256)}", k)
    of_config = config(0, vocab, k)
    chunk, size, padded = max(chunk or of_config[0], pow2(k)), max(size or of_config[1], 2 * pow2(k)), pow2(k)
    parts = cdiv(vocab, chunk)
    packed = torch.empty(rows, parts, padded, dtype=torch.int64, device=logits.device)
    peaks, totals = torch.empty(2, rows, parts, device=logits.device)
    scan: dict[str, Argument] = {
        "logits_ptr": logits, "packed_ptr": packed, "peak_ptr": peaks, "total_ptr": totals, "vocab": vocab, "parts": parts,
        "row_stride": logits.stride(0), "K": padded, "CHUNK": chunk,
    }  # fmt: skip
    found = [Launch(topk_scan_kernel, (rows, parts), scan, of_config[2], wide=logits.stride(0) % 8 == 0)]
    lists = parts
    while True:
        groups = cdiv(lists * padded, size)
        merged = torch.empty(rows, groups, padded, dtype=torch.int64, device=logits.device)
        merge: dict[str, Argument] = {
            "packed_ptr": packed, "merged_ptr": merged, "peak_ptr": peaks, "total_ptr": totals, "ids_ptr": ids,
            "log_probs_ptr": log_probs, "lists": lists, "groups": groups, "parts": parts, "k": k,
            "K": padded, "SIZE": size, "PARTS": pow2(parts), "LAST": groups == 1,
        }  # fmt: skip
        found.append(Launch(topk_merge_kernel, (rows, groups), merge, of_config[2]))
        if groups == 1:
            return tuple(found)
        packed, lists = merged, groups


def cases(arch: int) -> Iterator[Case]:
    """Chains, budgets of 16, 64 and 256, over the vocabulary of Qwen3."""
    for k in (1, 16, 64, 256):
        logits = torch.empty(15, 151936, dtype=torch.bfloat16, device="meta")
        ids = torch.empty(15, k, dtype=torch.int64, device="meta")
        first, *merges = launches(logits, ids, torch.empty(15, k, device="meta"))
        yield f"k={k}", first
        yield f"k={k} last=1", merges[-1]
        if k == 64:
            yield f"k={k} last=0", merges[0]
