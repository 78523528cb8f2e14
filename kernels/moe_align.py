"""Sort (token, expert) pairs by expert, each expert's run padded to whole blocks: what a grouped product works through.

Pair p = token * per_token + rank. Block b holds `block` pairs of one expert; places past the expert's last pair hold -1.
Within an expert pairs keep their order, so sums over them do not depend on timing: no atomic operation anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import Argument, Case, Floor, Launch, cdiv, jit, on_triton, pow2, require, tl


@dataclass(frozen=True)
class Blocks:
    """`pairs` int32 [most, block]: pair numbers or -1. `experts` int32 [most]: each block's expert, -1 for a block unused."""

    pairs: Tensor
    experts: Tensor

    @property
    def block(self) -> int:
        """Pairs of a block."""
        return self.pairs.shape[1]


def most_blocks(pairs: int, experts: int, block: int) -> int:
    """The most blocks that `pairs` can come to: every expert taken leaves at most one block partly filled."""
    taken = min(pairs, experts)
    return taken + (pairs - taken) // block


def moe_align(picks: Tensor, experts: int, block: int) -> Blocks:
    """picks int32 [tokens, per_token], each below `experts` -> the pairs in blocks. Raises ValueError that names the argument."""
    most = most_blocks(picks.numel(), experts, block)
    blocks = Blocks(
        torch.empty(most, block, dtype=torch.int32, device=picks.device),
        torch.empty(most, dtype=torch.int32, device=picks.device),
    )
    if not on_triton(picks):
        return reference(picks, experts, blocks)
    for launch in launches(picks.contiguous(), experts, blocks):
        launch.run()
    return blocks


def reference(picks: Tensor, experts: int, blocks: Blocks) -> Blocks:
    """`moe_align` in torch."""
    flat, at = picks.flatten(), 0
    blocks.pairs.fill_(-1)
    blocks.experts.fill_(-1)
    for expert in flat.unique().tolist():
        pairs = torch.where(flat == expert)[0].to(torch.int32)
        used = cdiv(len(pairs), blocks.block)
        blocks.experts[at : at + used] = expert
        blocks.pairs[at : at + used].view(-1)[: len(pairs)] = pairs
        at += used
    return blocks


@jit(varying=("pairs",))
def moe_count_kernel(
    picks_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    pairs: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    expert = tl.program_id(0)
    found = tl.zeros([CHUNK], dtype=tl.int32)
    for start in range(0, pairs, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        found += (tl.load(picks_ptr + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(found, axis=0))


@jit(varying=("pairs", "most"))
def moe_place_kernel(
    picks_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    out_ptr: tl.tensor,
    experts_ptr: tl.tensor,
    pairs: tl.tensor,
    most: tl.tensor,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    expert = tl.program_id(0)  # one past the last expert is the program that clears what no expert uses
    lane = tl.arange(0, LANES)
    counts = tl.load(counts_ptr + lane, mask=lane < EXPERTS, other=0)
    used = (counts + BLOCK - 1) // BLOCK
    before = tl.sum(tl.where(lane < expert, used, 0), axis=0)
    count = tl.sum(tl.where(lane == expert, counts, 0), axis=0)
    end = before + tl.sum(tl.where(lane == expert, used, 0), axis=0)
    label = expert
    if expert == EXPERTS:
        end = most
        label = -1
    # Places no pair falls into, then the pairs themselves: the two sets are disjoint.
    for start in range(before * BLOCK, end * BLOCK, CHUNK):
        place = start + tl.arange(0, CHUNK)
        tl.store(
            out_ptr + place,
            -1 + tl.zeros([CHUNK], dtype=tl.int32),
            mask=(place >= before * BLOCK + count) & (place < end * BLOCK),
        )
    for start in range(before, end, CHUNK):
        block = start + tl.arange(0, CHUNK)
        tl.store(experts_ptr + block, label + tl.zeros([CHUNK], dtype=tl.int32), mask=block < end)
    done = 0
    if count > 0:
        for start in range(0, pairs, CHUNK):
            pair = start + tl.arange(0, CHUNK)
            mine = tl.load(picks_ptr + pair, mask=pair < pairs, other=-1) == expert
            place = before * BLOCK + done + tl.cumsum(mine.to(tl.int32), axis=0) - 1
            tl.store(out_ptr + place, pair, mask=mine)
            done += tl.sum(mine.to(tl.int32), axis=0)


def config(arch: int, pairs: int) -> tuple[int, int]:
    """(pairs a step, warps), on every architecture."""
    return min(max(pow2(pairs), 32), 1024), 1 if pairs <= 256 else 4


def floor(pairs: int, experts: int, block: int) -> Floor:
    """Reads the picks, writes the blocks; what it takes is latency."""
    return Floor(4 * (pairs + most_blocks(pairs, experts, block) * (block + 1)), pairs)


def launches(picks: Tensor, experts: int, blocks: Blocks, chunk: int | None = None) -> tuple[Launch, Launch]:
    """The count, then the placing. picks contiguous. `chunk` replaces the configuration's."""
    require(picks.dtype is torch.int32, "picks", "int32", picks.dtype)
    pairs = picks.numel()
    of_config, warps = config(0, pairs)
    chunk = chunk or of_config
    counts = torch.empty(experts, dtype=torch.int32, device=picks.device)
    count: dict[str, Argument] = {"picks_ptr": picks, "counts_ptr": counts, "pairs": pairs, "CHUNK": chunk}
    place: dict[str, Argument] = {
        "picks_ptr": picks, "counts_ptr": counts, "out_ptr": blocks.pairs, "experts_ptr": blocks.experts, "pairs": pairs,
        "most": len(blocks.experts), "EXPERTS": experts, "LANES": pow2(experts), "BLOCK": blocks.block, "CHUNK": chunk,
    }  # fmt: skip
    return (
        Launch(moe_count_kernel, (experts,), count, warps, stages=1),
        Launch(moe_place_kernel, (experts + 1,), place, warps, stages=1),
    )


def cases(arch: int) -> Iterator[Case]:
    """Verify passes of one and of 64 nodes, and a prefill, over Qwen3-MoE's and Kimi K2's experts."""
    for tokens, experts, block in ((1, 128, 16), (64, 384, 16), (512, 384, 64)):
        picks = torch.empty(tokens, 8, dtype=torch.int32, device="meta")
        most = most_blocks(picks.numel(), experts, block)
        pairs = torch.empty(most, block, dtype=torch.int32, device="meta")
        for launch in launches(picks, experts, Blocks(pairs, pairs[:, 0])):
            yield f"tokens={tokens} experts={experts} block={block}", launch
