"""Blocks at random anchors, and who sees whom while many of them are trained in one forward.

A block is the clean token at its anchor followed by masks. Its rows see the context of their own response strictly before the anchor
and each other both ways, nothing else; slot k is trained on the token at anchor + k, slot 0 on nothing (DFlash, arXiv 2602.06036).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.layers import Attend


@dataclass(frozen=True)
class Passage:
    """A response to cut blocks from: ids [n], features bfloat16 [n - 1, width], where the target's own words begin."""

    token_ids: Sequence[int]
    features: Tensor
    prompt_tokens: int


@dataclass(frozen=True)
class Blocks:
    """Blocks of several responses, packed.

    features [rows, width], positions and owners int64 [rows]: the context rows of all responses one after the other.
    anchors int64 [blocks]: absolute positions. block_owners int64 [blocks]: the response each block belongs to.
    token_ids int64 [blocks, block_size]: the true tokens from the anchor on. trained bool [blocks, block_size]: slots with a label.
    """

    features: Tensor
    positions: Tensor
    owners: Tensor
    anchors: Tensor
    block_owners: Tensor
    token_ids: Tensor
    trained: Tensor

    @property
    def block_size(self) -> int:
        return self.token_ids.shape[1]

    def on(self, device: torch.device) -> "Blocks":
        """The same blocks on `device`."""
        return Blocks(**{name: tensor.to(device) for name, tensor in vars(self).items()})

    def inputs(self, mask_token_id: int) -> Tensor:
        """What the drafter is given: the anchor's token, then masks; int64 [blocks * block_size]."""
        masked = torch.full_like(self.token_ids, mask_token_id)
        masked[:, 0] = self.token_ids[:, 0]
        return masked.flatten()

    def block_positions(self) -> Tensor:
        """Absolute position of every block row, int64 [blocks * block_size]."""
        return (self.anchors[:, None] + torch.arange(self.block_size, device=self.anchors.device)).flatten()

    def visible_context(self) -> Tensor:
        """bool [blocks, rows]: the context rows a block sees."""
        own = self.owners[None] == self.block_owners[:, None]
        return own & (self.positions[None] < self.anchors[:, None])


def anchor_positions(passage: Passage) -> range:
    """Where a block may start: any token of the response that has a token after it."""
    return range(max(passage.prompt_tokens, 1), len(passage.token_ids) - 1)


def draw_anchors(passage: Passage, count: int, dice: torch.Generator) -> list[int]:
    """Up to `count` different anchors, drawn evenly."""
    places = anchor_positions(passage)
    chosen: list[int] = torch.randperm(len(places), generator=dice, device="cpu")[:count].tolist()
    return sorted(places[index] for index in chosen)


def pack_blocks(passages: Sequence[Passage], anchors: Sequence[Sequence[int]], block_size: int) -> Blocks:
    """Blocks at the given anchors of each response, in main memory; context rows no block can see are left out."""
    host = torch.device("cpu")
    features, positions, owners, starts, block_owners, tokens, trained = [], [], [], [], [], [], []
    for owner, (passage, places) in enumerate(zip(passages, anchors, strict=True)):
        seen = max(places, default=0)
        features.append(passage.features[:seen])
        positions.append(torch.arange(seen, device=host))
        owners.append(torch.full((seen,), owner, device=host))
        for anchor in places:
            window = list(passage.token_ids[anchor : anchor + block_size])
            missing = block_size - len(window)
            starts.append(anchor)
            block_owners.append(owner)
            tokens.append(window + [0] * missing)
            trained.append([False] + [True] * (len(window) - 1) + [False] * missing)
    return Blocks(
        torch.cat(features),
        torch.cat(positions),
        torch.cat(owners),
        torch.tensor(starts, device=host),
        torch.tensor(block_owners, device=host),
        torch.tensor(tokens, device=host),
        torch.tensor(trained, device=host),
    )


def block_attention(blocks: Blocks) -> Attend:
    """The `attend` of a packed forward: keys of all context rows, then of all block rows."""
    count, size, rows = len(blocks.anchors), blocks.block_size, len(blocks.positions)
    hidden = ~blocks.visible_context()[None, :, None]  # [1, blocks, 1, rows]

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        heads, head_dim = queries.shape[1:]
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        # [kv_heads, blocks, size * group, head_dim]: the query heads that share a KV head stand as rows
        folded = queries.view(count, size, kv_heads, group, head_dim).permute(2, 0, 1, 3, 4)
        folded = folded.reshape(kv_heads, count, size * group, head_dim) * head_dim**-0.5
        context_keys, own_keys = (
            keys[:rows].transpose(0, 1),
            keys[rows:].view(count, size, kv_heads, head_dim).permute(2, 0, 1, 3),
        )
        context_values, own_values = (
            values[:rows].transpose(0, 1),
            values[rows:].view(count, size, kv_heads, head_dim).permute(2, 0, 1, 3),
        )
        flat = folded.reshape(kv_heads, -1, head_dim)
        on_context = (flat @ context_keys.transpose(1, 2)).view(kv_heads, count, size * group, rows)
        on_own = folded @ own_keys.transpose(2, 3)
        scores = torch.cat((on_context.masked_fill(hidden, float("-inf")), on_own), dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
        from_context = weights[..., :rows].reshape(kv_heads, -1, rows) @ context_values
        mixed = from_context.view(kv_heads, count, size * group, head_dim) + weights[..., rows:] @ own_values
        unfolded = mixed.view(kv_heads, count, size, group, head_dim).permute(1, 2, 0, 3, 4)
        return unfolded.reshape(count * size, heads * head_dim)

    return attend
