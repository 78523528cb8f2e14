"""The training objective: weighted cross-entropy of every slot of every block, over a draft vocabulary."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.drafter import Drafter
from engine.models.decoder import Decoder
from engine.training.blocks import Blocks, block_attention


@dataclass(frozen=True)
class DraftVocabulary:
    """The commonest tokens of the corpus, ids ascending int64 [n]; `places` int64 [vocab] maps an id to its row, -1 elsewhere.

    The loss reads logits for these rows, for the step's own rarer labels, and for a fresh draw of other tokens, weighted to stand for
    all the rest: the drafter learns to leave tokens alone that it never sees, at a fraction of the whole head's cost.
    """

    token_ids: Tensor
    places: Tensor

    @staticmethod
    def of(token_ids: Tensor, vocab_size: int, most: int = 0) -> "DraftVocabulary":
        """The vocabulary of a corpus given all its token ids: the `most` frequent ones (the lower id first), 0 for all."""
        counts = token_ids.bincount(minlength=vocab_size)
        by_count = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
        present = (by_count[:most] if most else by_count).sort().values
        places = torch.full((vocab_size,), -1, device=present.device)
        places[present] = torch.arange(len(present), device=present.device)
        return DraftVocabulary(present, places)

    def on(self, device: torch.device) -> "DraftVocabulary":
        """The same vocabulary on `device`."""
        return DraftVocabulary(self.token_ids.to(device), self.places.to(device))

    def draw_others(self, count: int, dice: torch.Generator) -> Tensor:
        """Up to `count` tokens outside the vocabulary, drawn evenly, int64."""
        absent = (self.places < 0).nonzero()[:, 0]
        return absent[torch.randperm(len(absent), generator=dice, device="cpu")[:count].to(absent.device)]


@dataclass(frozen=True)
class BlockScore:
    """`loss` for the optimiser (scalar with graph); `kept` float [blocks]: tokens a chain round would keep, bonus included."""

    loss: Tensor
    kept: Tensor

    @property
    def commit_length(self) -> float:
        """Mean of `kept`."""
        return float(self.kept.mean())


def draft_hidden(drafter: Drafter, target: Decoder, blocks: Blocks) -> Tensor:
    """Final hidden rows of every block [blocks, block_size, hidden]: the training forward."""
    context = drafter.context(blocks.features.to(drafter.fc.weight.dtype))
    embedded = target.embed(blocks.inputs(drafter.config.mask_token_id)).to(drafter.fc.weight.dtype)
    hidden = drafter(embedded, blocks.block_positions(), context, blocks.positions, block_attention(blocks))
    return hidden.view(*blocks.token_ids.shape, -1)


def slot_weights(block_size: int, gamma: float) -> Tensor:
    """exp(-(k - 1) / gamma) for slots k = 1 .. block_size - 1: an early miss costs all that follows it."""
    return torch.exp(-torch.arange(block_size - 1, device="cpu") / gamma)


def score_blocks(
    drafter: Drafter,
    target: Decoder,
    blocks: Blocks,
    vocabulary: DraftVocabulary,
    *,
    others: Tensor,
    gamma: float,
) -> BlockScore:
    """Loss and estimated commit length of packed blocks. `others`: token ids outside the vocabulary, see DraftVocabulary."""
    trained = blocks.trained[:, 1:]
    hidden = draft_hidden(drafter, target, blocks)[:, 1:]
    head = target.embed_tokens.weight if target.lm_head is None else target.lm_head.weight
    exact, labels = _with_rare_labels(vocabulary, blocks.token_ids[:, 1:], trained)
    others = others[~torch.isin(others, exact)]
    rows = head[torch.cat((exact, others))].to(hidden.dtype)
    logits = F.linear(hidden[trained], rows).float()
    if len(others):
        absent = len(vocabulary.places) - len(exact)
        stand_for = torch.zeros(len(rows), device=rows.device)
        stand_for[len(exact) :] = math.log(absent / len(others))
        logits = logits + stand_for
    losses = F.cross_entropy(logits, labels[trained], reduction="none")
    weights = slot_weights(blocks.block_size, gamma).to(rows.device).expand_as(trained)[trained]
    correct = torch.zeros(trained.shape, device=rows.device)
    correct[trained] = (logits.detach().argmax(-1) == labels[trained]).float()
    return BlockScore((losses * weights).sum() / weights.sum(), 1.0 + correct.cumprod(dim=1).sum(dim=1))


def _with_rare_labels(vocabulary: DraftVocabulary, token_ids: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
    """The rows with logits of their own (the vocabulary, then the labels outside it), and every label's row, shaped as token_ids."""
    places = vocabulary.places[token_ids]
    rare, which = token_ids[trained & (places < 0)].unique(return_inverse=True)
    labels = places.clone()
    labels[trained & (places < 0)] = len(vocabulary.token_ids) + which
    return torch.cat((vocabulary.token_ids, rare)), labels
